"""A real HTTP server on loopback that speaks the chat protocol, and misbehaves on request."""

import importlib
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@dataclass
class Act:
    """What the server does about one request.

    ``text`` is the completion. ``body`` replaces the envelope, ``cut`` sends half of it, ``slow`` waits before it.
    """

    text: str = ""
    status: int = 200
    headers: dict = field(default_factory=dict)
    body: bytes | None = None
    cut: bool = False
    slow: float = 0.0
    usage: dict | None = field(default_factory=lambda: {"prompt_tokens": 100, "completion_tokens": 10})


class Endpoint:
    """``behave(number, body)`` gives the act for each request; ``requests`` and ``answered`` hold the bodies so far."""

    def __init__(self):
        self.behave = lambda number, body: Act()
        self.requests, self.answered, self.times = [], [], []
        self.hold = threading.Event()
        self.hold.set()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.hold.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self):
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one packet: apart they would wait for each other

            def log_message(self, *_):
                pass

            def do_POST(self):
                data = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "zstd":
                    data = importlib.import_module("zstandard").decompress(data)
                body = json.loads(data)
                with endpoint._lock:
                    number = len(endpoint.requests)
                    endpoint.requests.append(body)
                    endpoint.times.append(time.monotonic())
                act = endpoint.behave(number, body)
                time.sleep(act.slow)
                content = act.body if act.body is not None else envelope(body, act)
                try:
                    self.send_response(act.status)
                    for name, value in {"Content-Type": "application/json", **act.headers}.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    if act.cut:
                        self.wfile.write(content[: len(content) // 2])
                        self.wfile.flush()
                        self.close_connection = True
                        return
                    self.wfile.write(content)
                except OSError:
                    self.close_connection = True
                    return
                if act.status == 200:
                    with endpoint._lock:
                        endpoint.answered.append(body)

        return Handler


def envelope(body, act):
    message = {"role": "assistant", "content": act.text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    content = {"id": "c", "object": "chat.completion", "created": 1, "model": body.get("model"), "choices": [choice]}
    return json.dumps({**content, "usage": act.usage} if act.usage else content).encode()


@pytest.fixture
def endpoint():
    server = Endpoint()
    yield server
    server.close()


@pytest.fixture(scope="session")
def act():
    """Makes what the server does about a request."""
    return Act

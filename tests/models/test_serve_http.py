"""The server against clients that are slow, hostile or wrong: each gets a clear answer, and none harms another."""

import asyncio
import contextlib
import gzip
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib

import orjson
import pytest

from stepsieve.eval.load import SERVE, server
from stepsieve.models.judge import Judge

httpx = pytest.importorskip("httpx")
zstandard = pytest.importorskip("zstandard")
pytest.importorskip("fastapi")

from stepsieve.models.serving.app import Settings, create_app  # noqa: E402
from stepsieve.models.serving.work import Model  # noqa: E402

ONE, CHAT = "/v1/systemone", "/v1/chat/completions"
ARRIVAL = 1.0
"""Seconds that the server of these tests gives a request to arrive."""
SECRET = "SESAME-42"
"""Part of every trajectory sent here: no log may have it."""


@pytest.fixture(scope="module")
def url():
    with server("--arrival", str(ARRIVAL), "--max-body", "1") as url:
        yield url


@pytest.fixture(scope="module")
def system_one(system_one):
    """The body with the secret in it."""
    first, *others = system_one["state"]["messages"]
    state = {"messages": [{**first, "content": SECRET}, *others], "policy": SECRET}
    return {**system_one, "state": state}


def post(client, body, path=ONE, **headers):
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    return client.post(path, content=content, headers={"Content-Type": "application/json", **headers})


def still_works(client, body):
    assert post(client, body).status_code == 200


# --- bodies ----------------------------------------------------------------------------------------------------------


def test_bodies_come_plain_gzip_or_zstd(client, system_one):
    data = orjson.dumps(system_one)
    answers = [post(client, data).json()["answers"]]
    for encoding, compress in (("gzip", gzip.compress), ("zstd", zstandard.compress), ("GZIP", gzip.compress)):
        answers.append(post(client, compress(data), **{"Content-Encoding": encoding}).json()["answers"])
    assert answers[1:] == answers[:1] * 3


def bomb(size):
    packer = zlib.compressobj(9, wbits=31)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "make"),
    [
        ("gzip", lambda: bomb(200 << 20)),
        ("zstd", lambda: zstandard.compress(bytes(200 << 20))),
        ("gzip", lambda: gzip.compress(bytes(1_000_001))),
        (None, lambda: b'"' + bytes(2_000_000).replace(b"\0", b"x") + b'"'),
    ],
)
def test_what_inflates_beyond_the_limit_is_refused(client, system_one, encoding, make):
    body = make()
    headers = {"Content-Encoding": encoding} if encoding else {}
    started = time.monotonic()
    reply = post(client, body, **headers)
    assert reply.status_code == 413
    assert "at most 1,000,000 bytes" in reply.text
    assert time.monotonic() - started < 3
    still_works(client, system_one)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b"no gzip"),
        ("gzip", gzip.compress(b"{}" * 5000, mtime=0)[:-9]),
        ("gzip", gzip.compress(b"{}", mtime=0) + b"more"),
        ("gzip", gzip.compress(b"", mtime=0) * 20_000),
        ("gzip", b""),
        ("zstd", b"no zstd"),
        ("zstd", zstandard.compress(os.urandom(5000))[:-100]),
        ("zstd", b""),
        (None, b""),
        (None, b"{"),
        (None, b"\xff\xfe"),
        (None, b'{"state": NaN}'),
        (None, b'{"state": [Infinity, -Infinity]}'),
        (None, b'{"state": 1e999}'),
        (None, b'{"state": ' + b"9" * 5000 + b"}"),
        (None, b'{"state": "\\ud800"}'),
        (None, b"[" * 400_000),
        (None, b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    ],
)
def test_what_is_no_json_is_refused(client, encoding, body):
    reply = post(client, body, **({"Content-Encoding": encoding} if encoding else {}))
    assert reply.status_code == 400, reply.text
    assert reply.json()["detail"][0]["type"] == "invalid_json"
    assert "Traceback" not in reply.text


@pytest.mark.parametrize("level", [90, 101, 200, 253, 600, 1000])
def test_deep_nesting_is_answered_or_refused(client, system_one, completion, level):
    deep = "[" * level + "]" * level
    body = json.loads(json.dumps(system_one))
    call = next(message for message in body["state"]["messages"] if message["tool_calls"])["tool_calls"][0]
    call["arguments"] = {"deep": "HERE"}
    replies = [post(client, json.dumps(body).replace('"HERE"', deep).encode())]
    kind = system_one["questions"]["type"]
    described = {**kind, "criteria": {**kind["criteria"], "Duplicated Step": {"deep": "HERE"}}}
    for question in ({"type": "noul", "instructions": {"task": "HERE"}}, described):
        named = {**system_one, "questions": {"q": question}}
        replies.append(post(client, json.dumps(named).replace('"HERE"', deep).encode()))
    user = completion["messages"][1]["content"].replace("arguments={", f'arguments={{"deep": {deep}, ', 1)
    messages = [completion["messages"][0], {"role": "user", "content": user}]
    replies.append(post(client, {**completion, "messages": messages}, CHAT))
    assert {reply.status_code for reply in replies} <= {200, 400, 422}
    assert replies[0].status_code == (200 if level < 99 else 422)
    assert all(len(reply.content) < 4000 for reply in replies)


def test_other_types_and_encodings_are_refused(client, system_one):
    for media in ("text/plain", "multipart/form-data; boundary=x", "application/json; charset=latin-1", "json", ""):
        assert post(client, system_one, **{"Content-Type": media}).status_code == 415
    for media in ("application/json; charset=UTF-8", "application/problem+json"):
        assert post(client, system_one, **{"Content-Type": media}).status_code == 200
    for encoding in ("br", "gzip, zstd", "deflate"):
        reply = post(client, system_one, **{"Content-Encoding": encoding})
        assert (reply.status_code, reply.headers["accept-encoding"]) == (415, "gzip, zstd")


def test_a_run_that_is_too_long_is_refused(client):
    message = {"role": "user", "content": ""}
    reply = post(client, {"model": "", "state": [message] * 20_001, "questions": {"q": {"type": "box"}}})
    assert reply.status_code == 422
    assert "at most 20,000 messages" in reply.text


@pytest.mark.parametrize(
    "body",
    [
        [],
        None,
        {},
        {"model": "m"},
        {"model": 1, "state": [], "questions": {}},
        {"model": "m", "state": 1, "questions": {"q": {"type": "noul"}}},
        {"model": "m", "state": [], "questions": {"q": {"type": "other"}}},
        {"model": "m", "state": [], "questions": {"q": 1}},
        {"model": "m", "state": [], "questions": {"q": {"type": "choice", "criteria": {}}}},
        {"model": "m", "state": [], "questions": {str(n): {"type": "x" * 10_000} for n in range(60)}},
    ],
)
def test_what_is_no_request_is_refused_with_the_place(client, body):
    reply = post(client, body)
    assert reply.status_code == 422
    assert reply.json()["detail"][0]["loc"][0] == "body"
    assert len(reply.content) < 5000
    reply = post(client, body, CHAT)
    assert reply.status_code == 422
    assert reply.json()["error"]["message"]


# --- slow clients ----------------------------------------------------------------------------------------------------


def connect(url):
    host, _, port = url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=60)


HEAD = "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n"


def read_all(connection):
    """All that comes until the server closes."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def test_half_sent_requests_end_and_keep_no_one_waiting(url, client, system_one):
    data = orjson.dumps(system_one)
    head = HEAD.format(path=ONE, size=len(data)).encode()
    # Nothing, half a head, half a body, a body that trickles; each many times.
    starts = [b"", head[:40], head + data[:100], head] * 10
    connections = [connect(url) for _ in starts]
    for connection, start in zip(connections, starts, strict=True):
        connection.sendall(start)
    started = time.monotonic()
    for _ in range(5):
        still_works(client, system_one)
    assert time.monotonic() - started < ARRIVAL

    def trickle(connection):
        with contextlib.suppress(OSError):
            while True:
                connection.sendall(b" ")
                time.sleep(0.05)

    for connection in connections[3::4]:
        threading.Thread(target=trickle, args=(connection,), daemon=True).start()
    for number, connection in enumerate(connections):
        reply = read_all(connection)
        if number % 4 < 2:
            assert reply == b""
        else:
            assert reply.startswith(b"HTTP/1.1 408") or number % 4 == 3
        connection.close()
    assert ARRIVAL / 2 < time.monotonic() - started < 4 * ARRIVAL
    assert "stepsieve_body_bytes 0.0" in client.get("/metrics").text


def test_a_body_longer_than_declared_or_too_long_is_cut_off(url, client, system_one):
    for size in (10**7, 10**18):
        with connect(url) as connection:
            connection.sendall(HEAD.format(path=ONE, size=size).encode() + b"x" * 1000)
            assert read_all(connection).startswith(b"HTTP/1.1 413")
    still_works(client, system_one)


def test_a_client_that_leaves_is_forgotten(url, client, system_one):
    data = orjson.dumps(system_one)
    for cut in (10, len(data) // 2, len(data)):
        with connect(url) as connection:
            connection.sendall(HEAD.format(path=ONE, size=len(data)).encode() + data[:cut])
    still_works(client, system_one)
    assert "stepsieve_body_bytes 0.0" in client.get("/metrics").text


def test_no_http_is_refused(url):
    negative = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n"
    for data in (b"\x16\x03\x01\x02\x00", b"GET / SPDY\r\n\r\n", negative, b"A" * 100_000):
        with connect(url) as connection:
            connection.sendall(data)
            assert read_all(connection)[:12] in (b"HTTP/1.1 400", b"")


# --- load ------------------------------------------------------------------------------------------------------------


def long_body(steps):
    messages = [{"role": "user", "content": SECRET}]
    for n in range(steps):
        call = {"id": str(n), "name": "look", "arguments": {"n": n % 50}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "id": str(n), "content": f"found {n % 70}", "error": False},
        ]
    question = {"type": "noul", "instructions": {"task": "step_det", "redundant_step_idx": [1, 2]}}
    return orjson.dumps({"model": "m", "state": messages, "questions": {"q": question}})


def test_the_server_stays_responsive_while_it_predicts(url):
    async def go():
        async with httpx.AsyncClient(base_url=url, timeout=120) as client:
            headers = {"Content-Type": "application/json"}
            slow = asyncio.create_task(client.post(ONE, content=long_body(2000), headers=headers))
            waits = []
            await asyncio.sleep(0.1)
            while not slow.done():
                started = time.monotonic()
                assert (await client.get("/healthz")).status_code == 200
                waits.append(time.monotonic() - started)
                await asyncio.sleep(0.01)
            return waits, (await slow).status_code

    waits, status = asyncio.run(go())
    assert status == 200
    assert len(waits) > 5
    assert sorted(waits)[len(waits) // 2] < 1.0


def test_a_full_queue_says_when_to_come_back():
    body = long_body(50)
    headers = {"Content-Type": "application/json"}

    async def go(url, n):
        async with httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=n)) as client:
            return await asyncio.gather(*(client.post(ONE, content=body, headers=headers) for _ in range(n)))

    with server("--queue", "2") as url:
        replies = asyncio.run(go(url, 30))
        assert {reply.status_code for reply in replies} == {200, 429}
        for reply in replies:
            if reply.status_code == 429:
                assert int(reply.headers["retry-after"]) >= 1
                assert reply.json()["detail"][0]["type"] == "busy"
        # Who comes back as told is answered: the client of System One does so by itself.
        sdk = pytest.importorskip("typesafe_sdk")
        asked = orjson.loads(body)

        async def patient():
            retry = sdk.RetryPolicy(max_retries=20)
            async with sdk.AsyncTypeSafeClient(base_url=url, api_key="any", retry=retry) as client:
                return await asyncio.gather(*(client.system_one(asked["state"], asked["questions"]) for _ in range(6)))

        assert len(asyncio.run(patient())) == 6


def test_a_stop_answers_what_was_accepted(system_one):
    command = [sys.executable, SERVE, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    url = process.stdout.readline().split()[-1]
    bodies = [long_body(200)] * 12
    connections = [connect(url) for _ in bodies]
    idle = connect(url)
    for connection, body in zip(connections, bodies, strict=True):
        connection.sendall(HEAD.format(path=ONE, size=len(body)).encode() + body)
    # Accepted is what has arrived: the first answer shows that the others are being read too.
    connections[0].recv(1, socket.MSG_PEEK)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    for connection in connections:
        assert read_all(connection).startswith(b"HTTP/1.1 200")
    assert read_all(idle) == b""
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert SECRET not in errors


# --- inside: failures of the model ---------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def inside(app):
    """A client of the application in this process."""
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x")
    async with app.router.lifespan_context(app), client:
        yield client


class Failing(Judge):
    """Fails on runs that say BOOM."""

    def classify_batch(self, trajectories, pairs):
        if any(run.messages[0].content == "BOOM" for run in trajectories):
            raise RuntimeError(SECRET)
        return super().classify_batch(trajectories, pairs)


def test_one_failure_fails_no_other_and_tells_nothing(system_one, caplog):
    body = {**system_one, "questions": {"type": system_one["questions"]["type"]}}
    messages = body["state"]["messages"]
    boom = {**body, "state": [{**messages[0], "content": "BOOM"}, *messages[1:]]}
    app = create_app(Model(Failing(Judge.from_pretrained().heads), "m"), Settings(deadline=0.05))

    async def go():
        async with inside(app) as client:
            return await asyncio.gather(*(client.post(ONE, json=boom if k == 3 else body) for k in range(8)))

    with caplog.at_level(logging.DEBUG):
        replies = asyncio.run(go())
    assert [reply.status_code for reply in replies] == [200] * 3 + [500] + [200] * 4
    assert replies[3].json()["detail"][0]["msg"] == "the server failed to answer"
    assert SECRET not in replies[3].text + caplog.text
    assert "RuntimeError in" in caplog.text


def test_an_answer_that_takes_too_long_is_given_up(system_one):
    class Slow(Judge):
        def classify_batch(self, trajectories, pairs):
            time.sleep(0.5)
            return super().classify_batch(trajectories, pairs)

    body = {**system_one, "questions": {"type": system_one["questions"]["type"]}}
    app = create_app(Model(Slow(Judge.from_pretrained().heads), "m"), Settings(seconds=0.1))

    async def go():
        async with inside(app) as client:
            return await client.post(ONE, json=body)

    assert asyncio.run(go()).status_code == 504

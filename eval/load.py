"""Load test of the server: many small requests at once, and the time that detection in one run of 30 steps takes.

    python -m stepsieve.eval.load                                        # starts a server, and stops it again
    python -m stepsieve.eval.load --requests 10000 --concurrency 64
    STEPSIEVE_KEY=... python -m stepsieve.eval.load --url http://HOST:PORT

A small request is StepCls of one step, about a simulated run of its own, to POST /v1/systemone. Each has a name that
the reply has to repeat, and the answer has to be the one that the judge gives here. What is busy (429) is asked again
when it says so. Detection is RedundancyBench's prompt to POST /v1/chat/completions, one after another. The client is on
the same machine and takes its share of the cores.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from argparse import Namespace, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
from rich.console import Console
from rich.table import Table

from stepsieve.data.errors import DataError, Parser, run_cli
from stepsieve.data.messages import write_message
from stepsieve.data.simulate import simulate
from stepsieve.data.trajectory import REDUNDANCY_TYPES, Message, Trajectory
from stepsieve.eval.llm.transcript import transcript
from stepsieve.models import checkpoint
from stepsieve.models.judge import Judge

KEY = "STEPSIEVE_KEY"
SERVE = Path(__file__).parents[1] / "models" / "serve.py"
BAR = 15.0
"""Milliseconds that detection in a run of 30 steps is to take at most, at the median."""
STEPS = 30
TRIES = 100
"""How often a request that finds the server busy is sent again before it counts as an error."""


@dataclass(frozen=True)
class Ask:
    """A request: where it goes, its body without the name that tells it from others, and the answer due, if known."""

    path: str
    body: dict[str, Any]
    due: Any = None


@dataclass
class Outcome:
    """What became of the requests.

    Attributes:
        seconds: of each that was answered, from its first sending on.
        counts: answered, error (another status than 200), lost (no whole reply), wrong (not the answer due), and busy
            (429, sent again).
        wall: seconds for all.
    """

    seconds: list[float] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    wall: float = 0.0

    @property
    def failed(self) -> int:
        return sum(self.counts[name] for name in ("error", "lost", "wrong"))

    def milliseconds(self, share: float) -> float:
        """The quantile of the times; NaN without any."""
        ordered = sorted(self.seconds)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] * 1000 if ordered else float("nan")

    def to_dict(self) -> dict[str, float]:
        """Counts, median, 99th percentile and rate."""
        return {
            **{name: self.counts[name] for name in ("answered", "error", "lost", "wrong", "busy")},
            "p50_ms": self.milliseconds(0.5),
            "p99_ms": self.milliseconds(0.99),
            "per_second": self.counts["answered"] / self.wall if self.wall else float("nan"),
        }


# --- what is asked ---------------------------------------------------------------------------------------------------


def small_asks(judge: Judge | None, n: int = 100) -> list[Ask]:
    """StepCls of one step each, about n simulated runs, in the form of System One."""
    asks: list[Ask] = []
    for run in simulate(2 * n, seed=4):
        if not run.labels or len(asks) == n:
            continue
        step, evidence = run.labels[0].step, run.labels[0].evidence
        instructions = {"task": "step_cls", "redundant_step_idx": step, "evidence_step_idx": evidence}
        question = {"type": "choice", "instructions": instructions, "criteria": dict.fromkeys(REDUNDANCY_TYPES)}
        answer = judge.classify(run, step, evidence) if judge else None
        due = dict(zip(answer.options, answer.probabilities, strict=True)) if answer else None
        state = {"messages": [write_message(message) for message in run.messages]}
        asks.append(Ask("/v1/systemone", {"model": "any", "state": state, "questions": {"": question}}, due))
    return asks


def detection_ask(judge: Judge | None) -> Ask:
    """StepDet of one run of ``STEPS`` steps, as RedundancyBench's runner asks it."""
    run = _of_length(STEPS)
    system = (
        "Detect redundant assistant tool interactions in the recorded trajectory. Return exactly one JSON list:\n"
        '[{"redundant_step_idx": [4, 5], "evidence_step_idx": [2, 3], "redundant_step_type": "Duplicated Step", '
        '"confidence": 0.9}]'
    )
    messages = [{"role": "system", "content": system}, {"role": "user", "content": transcript(run)}]
    due = [found.to_dict() for found in judge.detect(run)] if judge else None
    return Ask("/v1/chat/completions", {"model": "any", "messages": messages}, due)


def _of_length(steps: int) -> Trajectory:
    """A simulated run of so many steps, made of several in a row, as one long session."""
    messages: list[Message] = []
    found = 0
    for number, run in enumerate(simulate(200, seed=6)):
        ids = {message.call_id for message in run.messages if message.role == "tool"}
        for message in run.messages:
            asked = sum(call.requestor == "assistant" and call.id in ids for call in message.tool_calls)
            if found + asked > steps:
                return Trajectory("long", tuple(messages), domain="simulated")
            found += asked
            messages.append(_renamed(message, number))
    raise AssertionError(f"simulated runs together have less than {steps} steps")


def _renamed(message: Message, number: int) -> Message:
    """The message with ids that no other run of the session has."""
    calls = tuple(replace(call, id=f"{number}:{call.id}") for call in message.tool_calls)
    return replace(message, tool_calls=calls, call_id=message.call_id and f"{number}:{message.call_id}")


# --- the client ------------------------------------------------------------------------------------------------------


class Connection:
    """One kept-alive connection; plain asyncio, since a client that does more would be what is measured."""

    def __init__(self, url: str, key: str | None) -> None:
        place = urlsplit(url)
        if place.scheme != "http" or not place.hostname:
            raise DataError(f"expected a URL such as http://127.0.0.1:8000, found {url!r}", field="--url")
        self._host, self._port = place.hostname, place.port or 80
        self._key = f"Authorization: Bearer {key}\r\n" if key else ""
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the response. Raises OSError or EOFError where no whole one comes."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        head = f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n{self._key}"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines if line)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        content = await reader.readexactly(int(headers["content-length"]))
        if headers.get("connection", "").lower() == "close":
            self.close()
        return int(first.split()[1]), headers, content

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def run(url: str, asks: Sequence[Ask], requests: int, concurrency: int, key: str | None = None) -> Outcome:
    """Send so many requests, so many at a time, the asks in turn."""
    outcome = Outcome()
    numbers = count()
    started = time.perf_counter()

    async def client() -> None:
        connection = Connection(url, key)
        while (number := next(numbers)) < requests:
            await _one(connection, asks[number % len(asks)], f"q{number}", outcome)
        connection.close()

    await asyncio.gather(*(client() for _ in range(min(concurrency, requests))))
    outcome.wall = time.perf_counter() - started
    return outcome


async def _one(connection: Connection, ask: Ask, name: str, outcome: Outcome) -> None:
    body = dict(ask.body)
    if "questions" in body:
        body["questions"] = {name: body["questions"][""]}
    data = orjson.dumps(body)
    started = time.perf_counter()
    for _ in range(TRIES):
        try:
            status, headers, content = await asyncio.wait_for(connection.post(ask.path, data), 120)
        except (OSError, EOFError, asyncio.TimeoutError):
            connection.close()
            outcome.counts["lost"] += 1
            return
        if status != 429:
            break
        outcome.counts["busy"] += 1
        await asyncio.sleep(float(headers.get("retry-after", 1)))
    if status != 200:
        outcome.counts["error"] += 1
        return
    outcome.seconds.append(time.perf_counter() - started)
    outcome.counts["answered"] += 1
    outcome.counts["wrong"] += not _is_due(orjson.loads(content), ask, name)


def _is_due(reply: Any, ask: Ask, name: str) -> bool:
    """Whether a reply is the one to this request, and holds the answer that is due."""
    if ask.path == "/v1/systemone":
        answers = reply["answers"]
        return list(answers) == [name] and ask.due in (None, answers[name]["probabilities"])
    found = orjson.loads(reply["choices"][0]["message"]["content"])
    return ask.due in (None, found)


@contextmanager
def server(*arguments: str) -> Iterator[str]:
    """The URL of a server on a free port, which is stopped at the end of the block.

    Raises:
        DataError: it did not start.
    """
    command = [sys.executable, str(SERVE), "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        match = re.search(r"http://\S+", process.stdout.readline())
        if match is None:
            raise DataError(process.stderr.read().strip().removeprefix("error: ") or "the server did not start")
        yield match[0]
    finally:
        process.terminate()
        process.communicate(timeout=30)


# --- the command -----------------------------------------------------------------------------------------------------


def _arguments() -> Namespace:
    form = RawDescriptionHelpFormatter
    parser = Parser("python -m stepsieve.eval.load", description=__doc__, formatter_class=form)
    add = parser.add_argument
    add("--requests", type=int, default=10_000, metavar="N", help="small requests (default: 10000)")
    add("--concurrency", type=int, default=64, metavar="N", help="of them at a time (default: 64)")
    add("--detections", type=int, default=200, metavar="N", help="detections, one after another (default: 200)")
    add("--url", help=f"a server that runs, with the key in ${KEY} (default: one is started)")
    add("--checkpoint", metavar="DIR", help="what is served, and what answers have to equal (default: the shipped one)")
    add("--json", metavar="FILE", help="write the figures as JSON")
    return parser.parse_args()


def _table(small: Outcome, concurrency: int, detection: Outcome) -> Table:
    table = Table(title="load test", title_justify="left")
    for column in ("", f"small requests, {concurrency} at a time", f"detection, {STEPS} steps, one at a time"):
        table.add_column(column, justify="right" if column else "left")
    rows = {"answered": "", "error": "", "lost": "", "wrong": "", "busy": "", "p50_ms": " ms", "p99_ms": " ms"}
    names = {"busy": "busy, sent again", "p50_ms": "p50", "p99_ms": "p99", "per_second": "per second"}
    for name, unit in {**rows, "per_second": ""}.items():
        values = [own.to_dict()[name] for own in (small, detection)]
        form = ".1f" if isinstance(values[0], float) else ",d"
        table.add_row(names.get(name, name), *(f"{value:{form}}{unit}" for value in values))
    return table


def main() -> None:
    arguments = _arguments()
    for name in ("requests", "concurrency", "detections"):
        if getattr(arguments, name) < 1:
            raise DataError(f"expected at least 1, found {getattr(arguments, name)}", field=f"--{name}")
    # What an unknown server answers is not known here.
    judge = None if arguments.url and not arguments.checkpoint else Judge.from_pretrained(arguments.checkpoint)
    asks, ask = small_asks(judge), detection_ask(judge)
    if arguments.url:
        small, detection = asyncio.run(_both(arguments.url, asks, ask, arguments))
    else:
        with server(*(("--checkpoint", arguments.checkpoint) if arguments.checkpoint else ())) as url:
            small, detection = asyncio.run(_both(url, asks, ask, arguments))
    Console(width=None if Console().is_terminal else 120).print(_table(small, arguments.concurrency, detection))
    median = detection.milliseconds(0.5)
    print(f"p50 of detection is {median:.1f} ms: {'within' if median <= BAR else 'over'} the bar of {BAR:.0f}")
    if arguments.json:
        figures = {"small": small.to_dict(), "detection": detection.to_dict()}
        checkpoint.write_atomic(Path(arguments.json), orjson.dumps(figures, option=orjson.OPT_INDENT_2) + b"\n")
    failed = small.failed + detection.failed
    if failed:
        raise DataError(f"expected an answer to every request, found {failed:,} failed")


async def _both(url: str, asks: Sequence[Ask], ask: Ask, arguments: Namespace) -> tuple[Outcome, Outcome]:
    key = os.environ.get(KEY)
    small = await run(url, asks, arguments.requests, arguments.concurrency, key)
    return small, await run(url, [ask], arguments.detections, 1, key)


if __name__ == "__main__":
    run_cli(main)

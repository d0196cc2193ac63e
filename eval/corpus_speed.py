"""How long ``eval/predict.py`` takes for a corpus of the benchmark's size, and how that grows.

    python -m stepsieve.eval.speed --corpus [--data DIR] [--plot FILE.svg]

The corpus has 1,920 trajectories and 60 MB: the runs at hand again and again, each time with other digits in all that
they hold, and with policies as long as the size takes (in the benchmark, half of the bytes are policies). *Wall* is
from the start of ``predict.py`` to its end, *CPU* what it and its workers took, *orjson* ``orjson.loads`` of the same
lines. Growth with the corpus is over parts of it. Growth with length is over runs joined end to end, of as many steps
in all at each length; this process scores the pieces that predict.py would.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from stepsieve.data.errors import DataError, require
from stepsieve.data.ingest import load
from stepsieve.data.messages import write_message
from stepsieve.data.simulate import simulate
from stepsieve.data.trajectory import Trajectory
from stepsieve.eval import sources
from stepsieve.eval.work import Options, Predictor, cores
from stepsieve.models.checkpoint import write_atomic

TRAJECTORIES, SIZE = 1920, 60_000_000
"""The benchmark's."""
BAR, AIM = 12.0, 6.0
"""Seconds that predict.py is to take at most on two cores, and times ``orjson.loads`` that are aimed at."""
PARTS = (0.25, 0.5, 0.75, 1.0)
"""Of the corpus: what growth is measured over; the whole of it last."""
LENGTHS = (10, 30, 100, 300, 1000, 2000)
"""Steps of the joined runs."""
LONG = 100
"""From so many steps on a step has all the rivals it can have: growth is to be linear from there."""
STEPS = 8000
"""About so many steps are scored at each length."""
PRICE = 0.05
"""Dollars of one core for an hour, about what clouds ask."""


@dataclass(frozen=True)
class Part:
    """What predict.py took for the first trajectories of the corpus.

    Attributes:
        wall, cpu: seconds, the latter of all processes. parse: CPU seconds of ``orjson.loads``.
    """

    trajectories: int
    megabytes: float
    steps: int
    wall: float
    cpu: float
    parse: float


@dataclass(frozen=True)
class Length:
    """CPU seconds that one core took to read and score runs of so many steps."""

    length: int
    steps: int
    cpu: float


# --- what is scored --------------------------------------------------------------------------------------------------


def line(run: Trajectory) -> bytes:
    """A run without its labels as one line of JSON Lines."""
    messages = [write_message(message) for message in run.messages]
    return orjson.dumps({"trajectory_id": run.id, "policy": run.policy, "messages": messages}) + b"\n"


def corpus(runs: Sequence[Trajectory], n: int, size: int) -> list[bytes]:
    """n lines of at least ``size`` bytes in all, of which no two runs are equal."""
    chance = random.Random(0)
    bare = [line(replace(run, policy="")) for run in runs]
    policy = max(0, size - sum(len(bare[k % len(runs)]) for k in range(n))) // n + 1
    made = []
    for k in range(n):
        run = runs[k % len(runs)]
        text = (run.policy or "No policy. ") * (policy // max(1, len(run.policy)) + 1)
        long = line(replace(run, id="", policy=text[: max(policy, len(run.policy))]))
        # Zeros stay: a number has none in front that it had not before.
        others = bytes(chance.sample(b"123456789", 9))
        record = orjson.loads(long.translate(bytes.maketrans(b"123456789", others)))
        made.append(orjson.dumps({**record, "trajectory_id": f"{run.id}#{k}"}) + b"\n")
    return made


def joined(runs: Sequence[Trajectory], length: int, steps: int) -> Iterator[Trajectory]:
    """Runs of at least ``length`` steps each, and ``steps`` in all, made of whole ones end to end."""
    source = count()
    while steps > 0:
        parts: list[Trajectory] = []
        while sum(len(part.interactions) for part in parts) < length:
            parts.append(_marked(runs[(number := next(source)) % len(runs)], f"#{number}"))
        whole = replace(parts[0], messages=tuple(message for part in parts for message in part.messages))
        steps -= len(whole.interactions)
        yield whole


def _marked(run: Trajectory, mark: str) -> Trajectory:
    """The run with a mark on its id and on those of its calls."""
    messages = tuple(
        replace(
            message,
            call_id=message.call_id and message.call_id + mark,
            tool_calls=tuple(replace(call, id=call.id and call.id + mark) for call in message.tool_calls),
        )
        for message in run.messages
    )
    return replace(run, id=run.id + mark, messages=messages)


# --- how long it takes -----------------------------------------------------------------------------------------------


def measure_parts(runs: Sequence[Trajectory], checkpoint: str | None, n: int, size: int) -> list[Part]:
    """predict.py over growing parts of a corpus."""
    lines = corpus(runs, n, size)
    steps = np.cumsum([len(runs[k % len(runs)].interactions) for k in range(n)])
    with TemporaryDirectory() as temporary:
        file = Path(temporary) / "corpus.jsonl"
        found = []
        for share in PARTS:
            some = lines[: max(1, round(share * n))]
            file.write_bytes(b"".join(some))
            parse = min(_cpu_of_parsing(some) for _ in range(3))
            wall, cpu = _predict(file, checkpoint)
            found.append(Part(len(some), file.stat().st_size / 1e6, int(steps[len(some) - 1]), wall, cpu, parse))
    return found


def _cpu_of_parsing(lines: Sequence[bytes]) -> float:
    started = time.process_time()
    for own in lines:
        orjson.loads(own)
    return time.process_time() - started


def _predict(file: Path, checkpoint: str | None) -> tuple[float, float]:
    """Seconds of wall clock and CPU that predict.py takes."""
    command = [sys.executable, "-m", "stepsieve.eval.predict", "--input", file, "--output", f"{file}.found.jsonl"]
    command += ["--checkpoint", checkpoint] if checkpoint else []
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode or done.stderr:
        raise DataError(f"expected predict.py to score all, found {(done.stderr or done.stdout).splitlines()[0]}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_lengths(runs: Sequence[Trajectory], checkpoint: str | None, lengths: Sequence[int]) -> list[Length]:
    """One core over runs of each length, from file to rows."""
    predictor = Predictor(Options(checkpoint, skip=False))
    found = []
    with TemporaryDirectory() as temporary, threadpool_limits(1):
        file = Path(temporary) / "corpus.jsonl"
        for length in lengths:
            made = list(joined(runs, length, STEPS))
            file.write_bytes(b"".join(map(line, made)))
            started = time.process_time()
            for piece in sources.pieces([file]):
                predictor.piece(piece)
            spent = time.process_time() - started
            found.append(Length(length, sum(len(run.interactions) for run in made), spent))
    return found


def exponent(lengths: Sequence[Length]) -> float:
    """p where the time of a run grows with its length to the power of p, from ``LONG`` steps on; 1 is linear."""
    long = [own for own in lengths if own.length >= LONG]
    each = [own.cpu / own.steps * own.length for own in long]
    return float(np.polyfit(np.log([own.length for own in long]), np.log(each), 1)[0])


# --- the command -----------------------------------------------------------------------------------------------------


def run(arguments: Namespace) -> None:
    """The command: ``--corpus`` of ``stepsieve.eval.speed``."""
    if arguments.plot:
        require("matplotlib.figure", "plots")
        if Path(arguments.plot).suffix not in (".svg", ".png"):
            raise DataError("expected a name in .svg or .png", file=arguments.plot)
    name = Path(arguments.data).name if arguments.data else "simulated"
    runs = list(load(arguments.data)) if arguments.data else simulate(arguments.simulated, 0)
    runs = [run for run in runs if run.interactions]
    if not runs:
        raise DataError("expected trajectories with steps, found none", file=arguments.data)
    parts = measure_parts(runs, arguments.checkpoint, TRAJECTORIES, SIZE)
    lengths = measure_lengths(runs, arguments.checkpoint, LENGTHS)
    console = Console(width=None if Console().is_terminal else 120)
    console.print(_parts_table(parts, name))
    console.print(_lengths_table(lengths))
    whole = parts[-1]
    verdict = "within" if whole.wall < BAR else "over"
    print(f"{whole.wall:.1f} s from file to JSON Lines on {cores()} cores: {verdict} the bar of {BAR:.0f} s on two")
    verdict = "within" if whole.cpu / whole.parse < AIM else "over"
    ratios = f"{whole.cpu / whole.parse:.1f} times orjson.loads in CPU time, {whole.wall / whole.parse:.1f} in wall"
    print(f"{ratios}: {verdict} the aim of {AIM:.0f}")
    print(f"time grows with length to the power of {exponent(lengths):.2f} from {LONG} steps on")
    rate = whole.steps / whole.cpu
    hours = 1e8 / rate / 3600
    print(f"{rate:,.0f} steps/s on a core: 100 million steps take {hours:.1f} core hours, ${hours * PRICE:.2f}")
    if arguments.json:
        figures: dict[str, Any] = {"parts": list(map(asdict, parts)), "lengths": list(map(asdict, lengths))}
        figures |= {"exponent": exponent(lengths), "steps_per_core_second": rate, "core_hours_per_100_million": hours}
        write_atomic(Path(arguments.json), orjson.dumps(figures, option=orjson.OPT_INDENT_2) + b"\n")
    if arguments.plot:
        draw(parts, lengths, Path(arguments.plot))


def _parts_table(parts: Sequence[Part], name: str) -> Table:
    columns = ("trajectories", "steps", "MB", "wall, s", "CPU, s", "orjson, s", "CPU/orjson", "CPU, ms per trajectory")
    table = Table(title=f"{name}: predict.py on {cores()} cores", title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    for part in parts:
        ratio, each = part.cpu / part.parse, 1000 * part.cpu / part.trajectories
        times = (f"{value:.2f}" for value in (part.wall, part.cpu, part.parse))
        sizes = f"{part.trajectories:,}", f"{part.steps:,}", f"{part.megabytes:.1f}"
        table.add_row(*sizes, *times, f"{ratio:.1f}", f"{each:.2f}")
    return table


def _lengths_table(lengths: Sequence[Length]) -> Table:
    table = Table(title="one core, by length", title_justify="left")
    for column in ("steps of a run", "steps", "CPU, s", "CPU, ms per step"):
        table.add_column(column, justify="right")
    for own in lengths:
        table.add_row(str(own.length), f"{own.steps:,}", f"{own.cpu:.2f}", f"{1000 * own.cpu / own.steps:.3f}")
    return table


def draw(parts: Sequence[Part], lengths: Sequence[Length], file: Path) -> None:
    """Write both growths as a plot, SVG or PNG by the file's name. Raises DataError: matplotlib is not installed."""
    figures, matplotlib = require("matplotlib.figure", "plots"), require("matplotlib", "plots")
    figure = figures.Figure(figsize=(9, 3.6), layout="constrained")
    size, length = figure.subplots(1, 2)
    for name in ("cpu", "wall"):
        size.plot([p.megabytes for p in parts], [getattr(p, name) for p in parts], marker="o", label=name)
    size.set(xlabel="corpus, MB", ylabel="seconds", xlim=(0, None), ylim=(0, None), title="predict.py")
    size.legend(["CPU", f"wall clock, {cores()} cores"])
    each = [1000 * own.cpu / own.steps for own in lengths]
    length.plot([own.length for own in lengths], each, marker="o")
    length.set(xscale="log", xlabel="steps of a run", ylabel="CPU, ms per step", ylim=(0, None), title="one core")
    for axes in (size, length):
        axes.grid(alpha=0.3)
    # The same bytes for the same figures: no date, no version, no random ids.
    metadata: dict[str, Any] = {"Date": None} if file.suffix == ".svg" else {"Software": None}
    with matplotlib.rc_context({"svg.hashsalt": "stepsieve"}):
        figure.savefig(file, dpi=120, metadata=metadata)

"""States per second of the encoder on one core, with and without packing, in torch and as an int8 ONNX graph.

    python -m stepsieve.eval.speed --backend encoder                                      # MiniLM as it comes
    python -m stepsieve.eval.speed --backend encoder --checkpoint DIR --onnx FOLDER       # FOLDER: from models.export

A *state* is a window of a simulated run with four steps; it is asked 16 questions: whether each step was redundant, in
each of four wordings. *Packed*, a call asks all questions of as many states as the batch size says. *Single* stands for
16 separate requests: each question brings its state, and a call takes as many questions as the batch size says. Both
tokenise, pack and score as a judge does. Times are CPU time of this process with one thread, the least of several.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table

from stepsieve.data.errors import DataError, require
from stepsieve.data.features import step_features
from stepsieve.data.features.index import Index
from stepsieve.data.simulate import simulate
from stepsieve.models.checkpoint import load_encoder, write_atomic
from stepsieve.models.prompts import STEP_WORDINGS, Prompt, Reader, step_prompts

if TYPE_CHECKING:
    from stepsieve.models.encoder import Encoder

QUESTIONS = 16
SIZES = (1, 8, 32)
"""Batch sizes."""

BAR = 4.0
"""Packing is to be at least so many times as fast as single requests."""


@dataclass(frozen=True)
class EncoderSpeed:
    """What one engine does at one batch size.

    Attributes:
        engine: torch or ONNX, and in what precision.
        batch: states in a call when packed, questions in a call when single.
        packed, single: states per second, each with all its questions.
    """

    engine: str
    batch: int
    packed: float
    single: float

    @property
    def ratio(self) -> float:
        """How many times as fast packing is."""
        return self.packed / self.single


def measure(encoder: Encoder, engine: str, sizes: Sequence[int], repeats: int) -> list[EncoderSpeed]:
    """States per second at each batch size; single requests are timed on as few states as fill a batch.

    Args:
        engine: the name that the figures get.
        sizes: the batch sizes.
        repeats: the least time of so many counts.
    """
    states = simulated_states(encoder, max(sizes))
    encoder.logits(states[0][:1])  # what is done once
    found = []
    with _one_thread():
        for size in sizes:
            some, few = states[:size], states[: -(-size // QUESTIONS)]
            apart = [prompt for state in few for prompt in state]
            together = [[prompt for state in some for prompt in state]]
            calls = [apart[start : start + size] for start in range(0, len(apart), size)]
            # In turns, so that whatever else the machine does slows both down.
            times = [(_seconds(encoder, together, True), _seconds(encoder, calls, False)) for _ in range(repeats)]
            packed, single = np.min(times, axis=0)
            found.append(EncoderSpeed(engine, size, float(len(some) / packed), float(len(few) / single)))
    return found


def simulated_states(encoder: Encoder, count: int) -> list[list[Prompt]]:
    """``count`` different states of simulated runs, each with ``QUESTIONS`` different questions."""
    states: dict[object, list[Prompt]] = {}
    for seed in range(100):
        index = Index(simulate(count, seed))
        rows = np.flatnonzero(index.calls.assistant)
        features = step_features(index)[rows]
        for number in range(len(STEP_WORDINGS)):
            reader = Reader(encoder.count, encoder.window, wording=number)
            for prompt in step_prompts(index, rows, features, reader):
                states.setdefault(prompt.state, []).append(prompt)
        full = [own for own in states.values() if len(set(own)) == QUESTIONS == len(own)]
        if len(full) >= count:
            return full[:count]
    raise DataError(f"expected {count} states with {QUESTIONS} questions in simulated runs, found {len(full)}")


@contextmanager
def _one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _seconds(encoder: Encoder, calls: Sequence[Sequence[Prompt]], packing: bool) -> float:
    """CPU seconds of all calls; no text is known from before."""
    encoder.forget()
    started = time.process_time()
    for call in calls:
        encoder.logits(call, packing)
    return time.process_time() - started


def run(arguments: Namespace) -> None:
    """The command: ``--backend encoder`` of ``stepsieve.eval.speed``."""
    require("torch", "encoder")
    from stepsieve.models.base_model import MINILM
    from stepsieve.models.encoder import Encoder
    from stepsieve.models.export import export
    from stepsieve.models.onnx_encoder import OnnxEncoder

    folder = arguments.checkpoint and Path(arguments.checkpoint)
    with _one_thread(), TemporaryDirectory() as temporary:
        encoder = load_encoder(folder, "cpu") if folder else Encoder.from_base(MINILM)
        exported = Path(arguments.onnx or Path(temporary) / "onnx")
        if not arguments.onnx:
            export(encoder, exported)
        graph = OnnxEncoder.load(exported)
        engines = {"torch float32": encoder, "ONNX int8": graph}
        speeds = [one for name, own in engines.items() for one in measure(own, name, SIZES, arguments.repeats or 3)]
        states = simulated_states(encoder, max(SIZES))
        lengths = [sum(map(len, encoder.packs(state, packing=False))) / QUESTIONS for state in states]
    console = Console(width=None if Console().is_terminal else 120)
    console.print(_table(speeds, folder.name if folder else MINILM, float(np.mean(lengths))))
    worst, fastest = min(one.ratio for one in speeds), max(one.packed for one in speeds)
    verdict = "over" if worst >= BAR else "under"
    print(
        f"packing is at least {worst:.1f} times as fast as {QUESTIONS} single requests: {verdict} the bar of {BAR:.0f}"
    )
    print(f"at most {fastest:.1f} states or {fastest * QUESTIONS:.0f} questions per second on one core")
    if arguments.json:
        content = [{**asdict(one), "ratio": one.ratio} for one in speeds]
        write_atomic(Path(arguments.json), orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")


def _table(speeds: Sequence[EncoderSpeed], name: str, length: float) -> Table:
    title = f"{name}: {QUESTIONS} questions about each state; state and question {length:.0f} tokens; one core"
    table = Table(title=title, title_justify="left")
    for column in ("", "batch", "packed: states/s", "questions/s", "single: states/s", "questions/s", "packed/single"):
        table.add_column(column, justify="right" if column else "left")
    for one in speeds:
        rates = [rate for own in (one.packed, one.single) for rate in (own, own * QUESTIONS)]
        table.add_row(one.engine, str(one.batch), *(f"{rate:.2f}" for rate in rates), f"{one.ratio:.1f}")
    return table

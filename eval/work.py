"""Scoring: a batch of trajectories becomes rows, in this process or in others, in order. See cluster.py for Ray."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TypeVar

from stepsieve.data.errors import DataError
from stepsieve.data.jsonio import dumps
from stepsieve.data.trajectory import Trajectory
from stepsieve.eval.sources import Piece
from stepsieve.models.judge import PRETRAINED, Judge

IN_PROCESS = 16 << 20
"""An input of at most so many bytes is scored here: other processes take longer to start than that takes to score."""
IN_FLIGHT = 24 << 20
"""About how many bytes of input may wait with each worker."""

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """What is predicted.

    Attributes:
        checkpoint: a checkpoint directory; None: the shipped one.
        returned: "best" for what clears the checkpoint's cutoff, "safe" for what can be pruned safely, "everything" for
            every step.
        explain: say of each prediction what moved it.
        skip: leave out what can't be scored, and say so, instead of failing.
        device: cpu, cuda or auto: where the encoder of heads that read text computes.
    """

    checkpoint: str | None = None
    returned: str = "best"
    explain: bool = False
    skip: bool = True
    device: str = "auto"


@dataclass(frozen=True)
class Row:
    """The result of one trajectory: a line of the output, and how many predictions it holds."""

    id: str
    line: bytes
    predictions: int


@dataclass(frozen=True)
class Scored:
    """The results of a piece: rows in order, and what was left out."""

    rows: tuple[Row, ...]
    problems: tuple[DataError, ...]
    progress: int = 0


class Predictor:
    """A checkpoint at work on batches of trajectories."""

    def __init__(self, options: Options) -> None:
        """Raises DataError: no usable checkpoint, one that can't do what is asked, or no such device."""
        self.options = options
        self.judge = load_judge(options)
        self.explain = None
        if options.explain:
            from stepsieve.eval.explain import Explainer

            self.explain = Explainer(self.judge).explain

    @property
    def reads_text(self) -> bool:
        """Whether any head has an encoder."""
        return any(head.encoder is not None for head in self.judge.heads.values())

    def piece(self, piece: Piece) -> Scored:
        """The results of a piece."""
        problems: list[DataError] = []
        with _uncollected():
            trajectories = list(piece.read(problems.append))
            if problems and not self.options.skip:
                return Scored((), (problems[0],))
            rows = self.rows(trajectories, problems)
        return Scored(tuple(rows), tuple(problems), piece.progress)

    def rows(self, trajectories: Sequence[Trajectory], problems: list[DataError]) -> list[Row]:
        """A row for each trajectory. One that can't be scored goes to ``problems`` instead, where that is asked."""
        if not self.options.skip:
            return self._rows(trajectories)
        try:
            return self._rows(trajectories)
        except Exception as error:
            # Whatever one trajectory does to the features, the others are not to suffer: halve until it is found.
            if len(trajectories) == 1:
                reason = f"{type(error).__name__}: {error}"
                problems.append(
                    DataError(
                        f"expected a trajectory that can be scored, found {reason}", trajectory=trajectories[0].id
                    )
                )
                return []
            middle = len(trajectories) // 2
            return [row for half in (trajectories[:middle], trajectories[middle:]) for row in self.rows(half, problems)]

    def _rows(self, trajectories: Sequence[Trajectory]) -> list[Row]:
        found = self.judge.detect_batch(trajectories, everything=self.options.returned == "everything")
        records = [[prediction.to_dict() for prediction in own] for own in found]
        if self.explain:
            for own, reasons in zip(records, self.explain(trajectories, found), strict=True):
                for record, reason in zip(own, reasons, strict=True):
                    record["because"] = reason
        return [
            Row(run.id, dumps({"trajectory_id": run.id, "predictions": own}), len(own))
            for run, own in zip(trajectories, records, strict=True)
        ]


@contextmanager
def _uncollected() -> Iterator[None]:
    """No search for cycles: a piece becomes many objects, all of which it would look at again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def load_judge(options: Options) -> Judge:
    """The judge of a checkpoint, set to return what is asked."""
    judge = Judge.from_pretrained(options.checkpoint, options.device)
    for task in ("det", "ret", "cls"):
        if task not in judge.heads:
            found = sorted(judge.heads)
            raise DataError(f"expected a checkpoint with the head {task!r}, found {found}", file=options.checkpoint)
    if options.returned == "safe":
        if judge.cutoff.safe is None:
            raise DataError(
                "expected a checkpoint with a cutoff for safe pruning; no cutoff of this one kept the precision",
                file=options.checkpoint,
            )
        judge.cutoff = replace(judge.cutoff, prune=True)
    return judge


# --- in other processes ----------------------------------------------------------------------------------------------


def score_here(pieces: Iterable[Piece], predictor: Predictor, workers: int) -> Generator[Scored, None, None]:
    """The results of the pieces, in order. Where there is little to do, no process is started for it."""
    source = iter(pieces)
    head: list[Piece] = []
    if workers > 1:
        weight = 0
        for piece in source:
            head.append(piece)
            weight += piece.weight
            if weight > IN_PROCESS:
                yield from _in_processes(chain(head, source), predictor.options, workers)
                return
    yield from map(predictor.piece, chain(head, source))


def _in_processes(pieces: Iterator[Piece], options: Options, workers: int) -> Iterator[Scored]:
    # More threads than cores would only wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start, (options,))
    try:
        yield from in_order(pieces, lambda piece: pool.submit(_piece, piece), Future[Scored].result, workers)
    except BrokenProcessPool:
        raise DataError(
            "a worker process ended before its time, killed or out of memory; the same command goes on from here"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    pieces: Iterable[Piece], submit: Callable[[Piece], T], result: Callable[[T], Scored], workers: int
) -> Iterator[Scored]:
    """Results in order; so many pieces wait that no worker does, and no more.

    Args:
        submit: hands a piece to a worker, at once.
        result: waits for what became of it.
    """
    waiting: deque[tuple[T, int]] = deque()
    weight = 0
    for piece in pieces:
        while waiting and (len(waiting) >= 2 * workers + 2 or weight + piece.weight > workers * IN_FLIGHT):
            first, size = waiting.popleft()
            weight -= size
            yield result(first)
        waiting.append((submit(piece), piece.weight))
        weight += piece.weight
    while waiting:
        yield result(waiting.popleft()[0])


_predictor: Predictor | None = None


def _start(options: Options) -> None:
    """What a worker does first. Ctrl-C is the reading process's affair, and a worker does not outlive that one."""
    global _predictor
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.join,), daemon=True).start()
    _predictor = Predictor(options)


def _end_with(wait: Callable[[], None]) -> None:
    wait()
    os._exit(1)


def _piece(piece: Piece) -> Scored:
    assert _predictor is not None, "a worker is started by _start"
    return _predictor.piece(piece)


def checkpoint_folder(options: Options) -> Path:
    """Where the checkpoint lies."""
    return PRETRAINED if options.checkpoint is None else Path(options.checkpoint)

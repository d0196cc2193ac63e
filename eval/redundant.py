"""Which steps of a run are taken as redundant: those of a prediction file, of a checkpoint, or of its gold labels."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepsieve.data.errors import DataError
from stepsieve.data.trajectory import Reference, Trajectory
from stepsieve.eval.results import DET, TITLES, read
from stepsieve.eval.work import Options, load_judge
from stepsieve.models.judge import Judge

Steps = tuple[Reference, ...]
Choose = Callable[[Sequence[Trajectory]], list[Steps | None]]
"""The redundant steps of each of some runs; None for a run that nobody answered for."""


@dataclass(frozen=True)
class Source:
    """Where redundant steps come from: what reports call it, what chooses them, and the checkpoint, if it is one."""

    name: str
    choose: Choose
    judge: Judge | None = None


def add_arguments(parser: ArgumentParser) -> None:
    """``--predictions`` and ``--checkpoint``, of which :func:`source` makes a source."""
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--predictions", metavar="FILE", help="StepDet results of anyone: a result file or JSON Lines")
    given.add_argument("--checkpoint", metavar="DIR", help="a checkpoint that predicts now (default: the shipped one)")


def source(arguments: Namespace, safe: bool) -> Source:
    """What was asked for.

    Args:
        safe: of a checkpoint only what can be deleted safely, else what it detects.

    Raises:
        DataError: a file or a checkpoint that can't be used, or no cutoff for safe pruning where that is asked.
    """
    if arguments.predictions:
        return Source(f"the predictions of {Path(arguments.predictions).name}", from_predictions(arguments.predictions))
    judge = load_judge(Options(arguments.checkpoint, "safe" if safe else "best"))
    name = "the shipped checkpoint" if arguments.checkpoint is None else f"the checkpoint {arguments.checkpoint}"
    return Source(f"what {name} {'finds safe to delete' if safe else 'detects'}", from_judge(judge), judge)


def from_predictions(path: Path | str) -> Choose:
    """The steps that a file predicts. What it names that is no step of the run is no step to take out, and left out.

    Raises:
        DataError: no StepDet predictions.
    """
    predictions = read(path)
    if predictions.task != DET:
        raise DataError(f"expected predictions of {TITLES[DET]}, found {TITLES[predictions.task]}", file=path)

    def choose(runs: Sequence[Trajectory]) -> list[Steps | None]:
        found: list[Steps | None] = []
        for run in runs:
            named = predictions.trajectories.get(run.id)
            existing = {it.reference for it in run.steps}
            own = dict.fromkeys(d.step for d in named or () if d.step in existing)
            found.append(None if named is None else tuple(step for step in own if step is not None))
        return found

    return choose


def from_judge(judge: Judge) -> Choose:
    """The steps that a checkpoint detects."""
    return lambda runs: [tuple(found.step for found in own) for own in judge.detect_batch(runs)]


def gold(runs: Sequence[Trajectory]) -> list[Steps | None]:
    """The labelled steps of each run; None for a run that was never annotated."""
    return [None if run.labels is None else tuple(dict.fromkeys(label.step for label in run.labels)) for run in runs]

"""Cascades: a small model answers where it is sure, and passes the rest on to a judge that costs more.

The threshold is chosen by conformal risk control (Angelopoulos, Bates, Fisch, Lei and Schuster, 2022, arXiv 2208.02814,
theorem 1). The loss of an item is what the judge would have scored more than the small model, where the small model
answers; it never grows with the threshold and is at most 1. The threshold is the least that keeps

    n / (n + 1) * mean loss of n calibration items + 1 / (n + 1)  <=  alpha

so that on new items, exchangeable with these, the cascade is expected to lose at most ``alpha`` to the judge alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepsieve.data.splits import assign_groups
from stepsieve.data.trajectory import Trajectory
from stepsieve.eval.detection import usable
from stepsieve.eval.metrics import Bools, Floats, Ints
from stepsieve.eval.results import DET
from stepsieve.eval.scores import Items

N_FOLDS = 5


def certainty(items: Items) -> Floats | None:
    """(n,) how sure a model is of each answer, or of its surest triple of a run (0 without one); None if unknown."""
    if items.task == DET:
        levels = [[found.confidence for found in own or ()] for own in items.triples]
    else:
        levels = [[answer.confidence] for answer in items.answers]
    if not any(levels) or not all(usable(level) for own in levels for level in own):
        return None
    return np.array([max((float(str(level)) for level in own), default=0.0) for own in levels])


@dataclass(frozen=True)
class Curve:
    """A cascade at every threshold, from all passed on to none; (k,) each.

    Attributes:
        threshold: units of at least this certainty are answered by the small model; infinite where all are passed on.
        passed: the share that is passed on. value: the mean score.
    """

    threshold: Floats
    passed: Floats
    value: Floats


def curve(sure: Floats, own: Floats, judge: Floats) -> Curve:
    """The curve, from the certainty of each unit and its scores by the small model and the judge; (n,) each, n > 0."""
    order, kept = _steps(sure)
    gain = np.cumsum((own - judge)[order])[kept - 1]
    return Curve(
        np.concatenate([[np.inf], sure[order][kept - 1]]),
        1 - np.concatenate([[0], kept]) / len(sure),
        judge.mean() + np.concatenate([[0.0], gain]) / len(sure),
    )


def threshold(sure: Floats, own: Floats, judge: Floats, alpha: float) -> float:
    """The least threshold that conformal risk control allows, from calibration units (n,); infinite where none is."""
    order, kept = _steps(sure)
    loss = np.cumsum(np.maximum(judge - own, 0.0)[order])[kept - 1]
    allowed = kept[(loss + 1.0) / (len(sure) + 1) <= alpha]
    return float(sure[order][allowed[-1] - 1]) if len(allowed) else float("inf")


def _steps(sure: Floats) -> tuple[Ints, Ints]:
    """(n,) the units, the surest first; and (k,) how many each threshold keeps: of equally sure ones all or none."""
    order = np.argsort(-sure, kind="stable")
    return order, np.flatnonzero(np.append(np.diff(sure[order]) != 0, True)) + 1


def answered_by_own(
    sure: Floats, own: Floats, judge: Floats, runs: Sequence[Trajectory], alpha: float, seed: int = 0
) -> Bools:
    """(n,) whether the small model answers each unit, by a threshold from the units of other tasks.

    Tasks are dealt into folds; each fold's threshold is calibrated on the rest. With one task alone there is nothing to
    calibrate on, and all is passed on.
    """
    tasks = len({run.group for run in runs})
    fold_of = assign_groups({run.id: run for run in runs}.values(), min(N_FOLDS, tasks), seed)
    fold = np.array([fold_of[run.group] for run in runs])
    answers = np.zeros(len(sure), dtype=bool)
    for number in range(min(N_FOLDS, tasks)):
        test, rest = fold == number, fold != number
        answers[test] = sure[test] >= threshold(sure[rest], own[rest], judge[rest], alpha)
    return answers

"""How a prefix stands to other runs of the same task whose outcome is known.

Calls are compared, never read: two are the same if tool and arguments are. What all successful runs do is a milestone
of the task; what only failed ones do leads astray.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepsieve.data.features.reader import canonical
from stepsieve.data.features.registry import Feature, count, difference, share
from stepsieve.data.trajectory import Trajectory

FEATURES: tuple[Feature, ...] = (
    count("known.runs", "other runs of the task that are known"),
    share("known.succeeded", "share of them that succeeded, one success and one failure added"),
    share("known.milestones", "share of the calls that all successful ones make that it has made"),
    share("known.sound", "share of its calls that a successful one makes too"),
    share("known.astray", "share of its calls that failed ones alone make"),
    difference("known.leaning", "likeness of its calls to the most alike successful one, less to the failed one"),
    share("known.alike_succeeded", "successes among known runs, each counted by the likeness of its calls"),
)

Keys = frozenset[tuple[str, bytes]]


@dataclass(frozen=True)
class Known:
    """What the other runs of a task did: the calls of each, successful ones and failed ones apart."""

    succeeded: tuple[Keys, ...]
    failed: tuple[Keys, ...]


def know(runs: Sequence[Trajectory]) -> Known:
    """Runs of one task with an outcome; one below 1 failed. Those without are left out."""
    judged = [(run.outcome >= 1, frozenset(call_keys(run))) for run in runs if run.outcome is not None]
    return Known(tuple(own for good, own in judged if good), tuple(own for good, own in judged if not good))


def call_keys(run: Trajectory) -> list[tuple[str, bytes]]:
    """The answered calls of the assistant in order, each as what it is compared by."""
    return [(step.call.name, canonical(step.call.arguments)) for step in run.steps]


def compute(keys: Sequence[tuple[str, bytes]], made: npt.NDArray[np.int64], known: Known) -> npt.NDArray[np.float32]:
    """(n, n_features) after each of n actions of a run.

    Args:
        keys: the calls of the run in order.
        made: (n,) how many of them had been made by then.
        known: the other runs of its task.
    """
    rows = [_row(frozenset(keys[:number]), known) for number in made.tolist()]
    return np.array(rows, dtype=np.float32).reshape(len(made), len(FEATURES))


def _row(own: Keys, known: Known) -> list[float]:
    good, bad = known.succeeded, known.failed
    number = len(good) + len(bad)
    if not number:
        return [0.0] + [np.nan] * (len(FEATURES) - 1)
    milestones = frozenset.intersection(*good) if good else frozenset()
    sound, failed = frozenset().union(*good), frozenset().union(*bad)
    likes_good, likes_bad = [_alike(own, other) for other in good], [_alike(own, other) for other in bad]
    weight = sum(likes_good) + sum(likes_bad)
    return [
        number,
        (len(good) + 1) / (number + 2),
        _share(own & milestones, milestones),
        _share(own & sound, own) if good else np.nan,
        _share((own & failed) - sound, own),
        max(likes_good) - max(likes_bad) if good and bad else np.nan,
        (sum(likes_good) + 0.5) / (weight + 1),
    ]


def _share(part: Set[object], whole: Set[object]) -> float:
    return len(part) / len(whole) if whole else np.nan


def _alike(one: Keys, other: Keys) -> float:
    """Jaccard likeness; of two runs without calls 1."""
    return len(one & other) / len(one | other) if one | other else 1.0

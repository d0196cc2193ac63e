"""What each task trains on: trajectories become rows of features with labels, and answers become metrics.

One registry, ``TASKS``. The loop knows nothing of a task beyond what ``Task`` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepsieve.data.features import PAIR_FEATURES, pair_features
from stepsieve.data.features.registry import Feature
from stepsieve.data.trajectory import REDUNDANCY_TYPES, Label, Trajectory
from stepsieve.eval import metrics
from stepsieve.eval.intervals import Interval, cluster_bootstrap
from stepsieve.models.questions import Choice


@dataclass(frozen=True, slots=True)
class Example:
    """One question about a trajectory, with its answer.

    Attributes:
        question: what is asked, with its options.
        features: (d,) float32.
        label: index of the true option.
        group: the task that the trajectory solves; never on both sides of a split.
        weight: how much the example counts in training, >= 0.
        trajectory, gold: where it comes from, for metrics and slices.
    """

    question: Choice
    features: npt.NDArray[np.float32]
    label: int
    group: tuple[str, str]
    weight: float
    trajectory: Trajectory
    gold: Label


@dataclass(frozen=True)
class Task:
    """A task of the loop.

    Attributes:
        name: its folder in a checkpoint and its key in metrics.json.
        classes: what the columns of the probabilities mean.
        features: the feature columns.
        headline: the metric that the tables show first.
        examples: trajectories -> the examples of each.
        report: examples, probabilities (n, n_classes), the fold that tested each example (n,), seed -> metrics by name.
    """

    name: str
    classes: tuple[str, ...]
    features: tuple[Feature, ...]
    headline: str
    examples: Callable[[Sequence[Trajectory]], list[list[Example]]]
    report: Callable[[Sequence[Example], npt.NDArray[np.float64], Sequence[str], int], dict[str, Interval]]


# --- StepCls: the step and its evidence are given, the type is asked -------------------------------------------------

TYPE_QUESTION = Choice("Why was this step redundant, given this evidence?", REDUNDANCY_TYPES)


def classify_examples(trajectories: Sequence[Trajectory]) -> list[list[Example]]:
    """One choice over the four types for each label of each trajectory."""
    labels = [trajectory.labels or () for trajectory in trajectories]
    rows = pair_features(trajectories, [[(label.step, label.evidence) for label in own] for own in labels])
    return [
        [
            Example(TYPE_QUESTION, row, REDUNDANCY_TYPES.index(label.type), run.group, 1.0, run, label)
            for row, label in zip(matrix, own, strict=True)
        ]
        for run, own, matrix in zip(trajectories, labels, rows, strict=True)
    ]


def classify_report(
    examples: Sequence[Example], probabilities: npt.NDArray[np.float64], folds: Sequence[str], seed: int
) -> dict[str, Interval]:
    """StepCls in full: everything over all labels, and the accuracy of each slice as ``accuracy[slice]``."""
    gold = np.array([example.label for example in examples])
    predicted = probabilities.argmax(axis=1)
    groups = [example.group for example in examples]
    report = metrics.classification_report(gold, predicted, groups, probabilities.max(axis=1), folds, seed)
    for name, mask in example_slices(examples).items():
        if name != "all":
            rows = np.flatnonzero(mask)
            report[f"accuracy[{name}]"] = cluster_bootstrap(
                gold[rows] == predicted[rows],
                [groups[row] for row in rows],
                seed,
                folds=[folds[row] for row in rows],
            )
    return report


def example_slices(examples: Sequence[Example]) -> dict[str, npt.NDArray[np.bool_]]:
    """Masks (n,) by slice name, ``all`` first."""
    runs = [example.trajectory for example in examples]
    return metrics.slices(
        domain=[run.domain for run in runs],
        subset=[run.subset for run in runs],
        agent=[run.agent for run in runs],
        n_messages=[len(run.messages) for run in runs],
        types=[example.gold.type for example in examples],
        synthetic=[example.gold.synthetic for example in examples],
    )


TASKS: dict[str, Task] = {
    "cls": Task("cls", REDUNDANCY_TYPES, PAIR_FEATURES, "accuracy", classify_examples, classify_report),
}

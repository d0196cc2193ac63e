"""What each head learns: trajectories become examples, examples become rows of features with labels.

A head answers one kind of question: ``cls`` a choice over the four types for a step and its evidence, ``ret`` a choice
over candidate references for a step, ``det`` a noul for each assistant step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepsieve.data.features import (
    BATCH,
    PAIR_FEATURES,
    RETRIEVAL_FEATURES,
    STEP_FEATURES,
    pair_features,
    retrieval_features,
    step_features,
)
from stepsieve.data.features.candidates import candidates
from stepsieve.data.features.index import Index
from stepsieve.data.features.registry import Feature
from stepsieve.data.references import normalise
from stepsieve.data.splits import AUTOMATED
from stepsieve.data.trajectory import REDUNDANCY_TYPES, Label, Reference, Trajectory
from stepsieve.models.judge import CLS, DET, RET
from stepsieve.models.questions import Choice, Noul, Question


@dataclass(frozen=True, slots=True)
class Example:
    """One question about a trajectory, with its answer.

    Attributes:
        question: what is asked, with its options.
        features: (n_rows, d) float32: one row, or where the options are candidates one per option.
        label: the true option; of a noul 1 for yes.
        group: the task that the trajectory solves; never on both sides of a split.
        weight: how much the example counts in training, >= 0.
        step: what is asked about.
    """

    question: Question
    features: npt.NDArray[np.float32]
    label: int
    group: tuple[str, str]
    weight: float
    step: Reference


@dataclass(frozen=True)
class HeadSpec:
    """A head of the checkpoint.

    Attributes:
        name: its folder in a checkpoint.
        classes: what the columns of the scorer's probabilities mean.
        features: the feature columns.
        by_candidate: an example has a row per candidate, of which one is right.
        simulated: at most so many simulated trajectories join a real training set, and an example of theirs counts
            ``simulated_weight`` beside a real one; both chosen by cross-validation.
        examples: trajectories -> the examples of each.
    """

    name: str
    classes: tuple[str, ...]
    features: tuple[Feature, ...]
    by_candidate: bool
    simulated: int
    simulated_weight: float
    examples: Callable[[Sequence[Trajectory]], list[list[Example]]]


@dataclass(frozen=True)
class Table:
    """The examples of a corpus as arrays.

    Attributes:
        features: (n, d) float32.
        labels: (n,) the class of each row; of a candidate's row 1 if it is the right one.
        weights: (n,).
        example: (n,) the example that each row belongs to, ascending.
        trajectory: (n,) the trajectory that each row belongs to.
    """

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]
    example: npt.NDArray[np.int64]
    trajectory: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: npt.NDArray[np.int64]) -> Table:
        """These rows."""
        return Table(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def of(self, trajectories: npt.NDArray[np.int64]) -> Table:
        """The rows of these trajectories."""
        return self.take(np.flatnonzero(np.isin(self.trajectory, trajectories)))


def simulated_table(head: HeadSpec, simulated: Sequence[Trajectory]) -> Table:
    """The examples that join every training set of real trajectories."""
    return tabulate(head, simulated[: head.simulated], head.simulated_weight)


def tabulate(head: HeadSpec, trajectories: Sequence[Trajectory], weight: float = 1.0) -> Table:
    """The examples of a corpus as arrays. A question whose answer is not among its options teaches nothing."""
    found = [
        (number, example)
        for number, own in enumerate(head.examples(trajectories))
        for example in own
        if example.label >= 0
    ]
    sizes = [len(example.features) for _, example in found]
    labels = [np.array([example.label]) for _, example in found]
    if head.by_candidate:
        labels = [np.arange(size) == example.label for size, (_, example) in zip(sizes, found, strict=True)]
    empty = np.zeros((0, len(head.features)), dtype=np.float32)
    return Table(
        np.vstack([empty, *(example.features for _, example in found)]),
        np.concatenate([np.zeros(0, dtype=np.int64), *labels]).astype(np.int64),
        np.repeat([example.weight * weight for _, example in found], sizes),
        np.repeat(np.arange(len(found)), sizes),
        np.repeat(np.array([number for number, _ in found], dtype=np.int64), sizes),
    )


# --- cls -------------------------------------------------------------------------------------------------------------

TYPE_QUESTION = Choice("Why was this step redundant, given this evidence?", REDUNDANCY_TYPES)


CONSENSUS = 0.1
"""Weight of a type that only models agreed on. Cross-validation: they are uneven where Incorrect and Exploratory meet,
and a scorer that takes them at their word is worse, on such labels too. Evidence and detection don't mind them."""


def type_examples(trajectories: Sequence[Trajectory]) -> list[list[Example]]:
    """One choice over the four types for each label of each trajectory."""
    labels = [trajectory.labels or () for trajectory in trajectories]
    rows = pair_features(trajectories, [[(label.step, label.evidence) for label in own] for own in labels])
    return [
        [
            Example(
                TYPE_QUESTION,
                row[None],
                REDUNDANCY_TYPES.index(label.type),
                run.group,
                CONSENSUS if run.subset == AUTOMATED else 1.0,
                label.step,
            )
            for row, label in zip(matrix, own, strict=True)
        ]
        for run, own, matrix in zip(trajectories, labels, rows, strict=True)
    ]


# --- ret -------------------------------------------------------------------------------------------------------------

EVIDENCE_QUESTION = "What shows that this step was redundant?"


def evidence_examples(trajectories: Sequence[Trajectory]) -> list[list[Example]]:
    """One choice over all candidate references for each label of each trajectory."""
    found: list[list[Example]] = []
    for start in range(0, len(trajectories), BATCH):
        runs = trajectories[start : start + BATCH]
        index = Index(runs)
        asked = [(number, label) for number, run in enumerate(runs) for label in run.labels or ()]
        rows = np.array([index.row(number, label.step) for number, label in asked], dtype=np.int64)
        among = candidates(index, rows)
        features = retrieval_features(index, among, step_features(index))
        bounds = np.searchsorted(among.question, np.arange(len(rows) + 1)).tolist()
        own: list[list[Example]] = [[] for _ in runs]
        for (number, label), low, high in zip(asked, bounds, bounds[1:], strict=False):
            options = [among.reference(index, place) for place in range(low, high)]
            own[number].append(_evidence_example(label, options, features[low:high], runs[number].group))
        found += own
    return found


def _evidence_example(
    label: Label, options: list[Reference], features: npt.NDArray[np.float32], group: tuple[str, str]
) -> Example:
    gold = normalise(label.evidence)
    right = options.index(gold) if gold in options else -1
    question = Choice(EVIDENCE_QUESTION, tuple(str(list(option)) for option in options))
    return Example(question, features, right, group, 1.0, label.step)


# --- det -------------------------------------------------------------------------------------------------------------

STEP_QUESTION = Noul("Was this step redundant?")


def step_examples(trajectories: Sequence[Trajectory]) -> list[list[Example]]:
    """One noul for each answered assistant interaction of each annotated trajectory."""
    found: list[list[Example]] = []
    for start in range(0, len(trajectories), BATCH):
        runs = trajectories[start : start + BATCH]
        index = Index(runs)
        features, calls = step_features(index), index.calls
        redundant = [{label.step for label in run.labels or ()} for run in runs]
        own: list[list[Example]] = [[] for _ in runs]
        for row in np.flatnonzero(calls.assistant).tolist():
            number, step = int(calls.run[row]), (int(calls.call[row]), int(calls.result[row]))
            if runs[number].labels is not None:
                label = int(step in redundant[number])
                own[number].append(
                    Example(STEP_QUESTION, features[row : row + 1], label, runs[number].group, 1.0, step)
                )
        found += own
    return found


HEADS: dict[str, HeadSpec] = {
    CLS: HeadSpec(CLS, REDUNDANCY_TYPES, PAIR_FEATURES, False, 800, 3.0, type_examples),
    RET: HeadSpec(RET, ("other", "evidence"), RETRIEVAL_FEATURES, True, 150, 0.3, evidence_examples),
    DET: HeadSpec(DET, ("necessary", "redundant"), STEP_FEATURES, False, 400, 0.3, step_examples),
}

"""Examples: what a question about a trajectory is to a scorer, and what a head of the checkpoint learns from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stepsieve.data.features import BATCH
from stepsieve.data.features.index import Index
from stepsieve.data.features.registry import Feature
from stepsieve.data.trajectory import Reference, Trajectory
from stepsieve.models.fusion import TEXT_BACKENDS, score_names
from stepsieve.models.prompts import Lesson, Prompt, Reader
from stepsieve.models.questions import Question


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
        prompt: the question as text over a window of the run; None unless it is to be read.
        offered: where the options are candidates, (n_rows,) bool which of them are in the prompt.
    """

    question: Question
    features: npt.NDArray[np.float32]
    label: int
    group: tuple[str, str]
    weight: float
    step: Reference
    prompt: Prompt | None = None
    offered: npt.NDArray[np.bool_] | None = None

    @property
    def lesson(self) -> Lesson | None:
        """The prompt with its answer, -1 where that is not among its options; None without a prompt."""
        if self.prompt is None:
            return None
        if self.offered is None or self.label < 0:
            return Lesson(self.prompt, self.label, self.weight)
        right = int(self.offered[: self.label].sum()) if self.offered[self.label] else -1
        return Lesson(self.prompt, right, self.weight)


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
        examples: trajectories, a reader if there is one -> the examples of each.
        only_alone: simulated trajectories teach it only where the corpus says nothing of what it learns.
        beside: where an example depends on other runs too, this in the place of ``examples``: trajectories, and the
            runs that are known (itself is none of them) -> the examples of each.
        readable: its questions can be put to an encoder as text.
    """

    name: str
    classes: tuple[str, ...]
    features: tuple[Feature, ...]
    by_candidate: bool
    simulated: int
    simulated_weight: float
    examples: Callable[[Sequence[Trajectory], Reader | None], list[list[Example]]]
    only_alone: bool = False
    beside: Callable[[Sequence[Trajectory], Sequence[Trajectory]], list[list[Example]]] | None = None
    readable: bool = True

    @property
    def score_names(self) -> tuple[str, ...]:
        """The columns that an encoder adds."""
        return score_names(self.classes, self.by_candidate)

    def columns(self, backend: str) -> tuple[str, ...]:
        """What a backend's scorer takes."""
        names = tuple(feature.name for feature in self.features)
        return names + self.score_names if backend in TEXT_BACKENDS else names


@dataclass(frozen=True)
class Table:
    """The examples of a corpus as arrays.

    Attributes:
        features: (n, d) float32.
        labels: (n,) the class of each row; of a candidate's row 1 if it is the right one.
        weights: (n,).
        example: (n,) the example that each row belongs to, ascending.
        trajectory: (n,) the trajectory that each row belongs to.
        offered: (n,) bool whether the encoder sees the row: all but unlikely candidates.
        lessons: of all examples of the corpus, by the numbers in ``example``; empty unless they are to be read.
    """

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]
    example: npt.NDArray[np.int64]
    trajectory: npt.NDArray[np.int64]
    offered: npt.NDArray[np.bool_]
    lessons: tuple[Lesson, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: npt.NDArray[np.int64]) -> Table:
        """These rows."""
        names = ("features", "labels", "weights", "example", "trajectory", "offered")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def lessons_of(self, trajectories: npt.NDArray[np.int64]) -> list[Lesson]:
        """The lessons of these trajectories."""
        return [self.lessons[number] for number in np.unique(self.of(trajectories).example)]

    def beside(self, columns: npt.NDArray[np.float32]) -> Table:
        """The same rows with more columns (n, k) after their features."""
        return replace(self, features=np.hstack([self.features, columns]))

    def of(self, trajectories: npt.NDArray[np.int64]) -> Table:
        """The rows of these trajectories."""
        return self.take(np.flatnonzero(np.isin(self.trajectory, trajectories)))


def simulated_table(head: HeadSpec, simulated: Sequence[Trajectory], reader: Reader | None = None) -> Table:
    """The examples that join every training set of real trajectories."""
    return tabulate(head, simulated[: head.simulated], head.simulated_weight, reader)


def tabulate(
    head: HeadSpec, trajectories: Sequence[Trajectory], weight: float = 1.0, reader: Reader | None = None
) -> Table:
    """The examples of a corpus as arrays. A question whose answer is not among its options teaches nothing."""
    return as_table(head, head.examples(trajectories, reader), weight)


def as_table(head: HeadSpec, examples: Sequence[Sequence[Example]], weight: float = 1.0) -> Table:
    """The examples of each trajectory as arrays."""
    found = [(number, example) for number, own in enumerate(examples) for example in own if example.label >= 0]
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
        np.concatenate([np.zeros(0, dtype=bool), *(_offered(example) for _, example in found)]),
        tuple(replace(own, weight=own.weight * weight) for _, e in found if (own := e.lesson) is not None),
    )


def _offered(example: Example) -> npt.NDArray[np.bool_]:
    return np.ones(len(example.features), dtype=bool) if example.offered is None else example.offered


def batches(trajectories: Sequence[Trajectory]) -> Iterator[tuple[Sequence[Trajectory], Index]]:
    for start in range(0, len(trajectories), BATCH):
        runs = trajectories[start : start + BATCH]
        yield runs, Index(runs)

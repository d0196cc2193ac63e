"""Typed questions about a state, and their answers as calibrated probabilities (the System One style).

A question says what may be answered: yes or no (``Noul``), one of several options (``Choice``), or a level of an
ordered scale (``Score``). An answer holds the probability of each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

SUM_TOLERANCE = 1e-6
"""How far from 1 the probabilities of an answer may sum."""


@dataclass(frozen=True, slots=True)
class Noul:
    """A yes/no question."""

    question: str


@dataclass(frozen=True, slots=True)
class Choice:
    """A question with one right answer among ``options``.

    Raises:
        ValueError: fewer than two options, or one that occurs twice.
    """

    question: str
    options: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", _distinct(self.options))


@dataclass(frozen=True, slots=True)
class Score:
    """A question answered on a scale: ``levels`` are finite numbers in ascending order.

    Raises:
        ValueError: fewer than two levels, one that is no finite number, or levels that don't ascend.
    """

    question: str
    levels: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", _ascending(self.levels))


Question = Noul | Choice | Score


@dataclass(frozen=True, slots=True)
class NoulAnswer:
    """``probability`` of yes, in [0, 1].

    Raises:
        ValueError: a probability that is NaN or outside [0, 1].
    """

    probability: float

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError(f"expected a probability in [0, 1], found {self.probability}")

    @property
    def confidence(self) -> float:
        """The probability of the likelier answer, in [0.5, 1]."""
        return max(self.probability, 1 - self.probability)


@dataclass(frozen=True, slots=True)
class ChoiceAnswer:
    """The probability of each of the ``options``, in their order.

    Raises:
        ValueError: fewer than two options, one twice, not one probability for each, or probabilities that are NaN,
            outside [0, 1] or do not sum to 1 within ``SUM_TOLERANCE``.
    """

    options: tuple[str, ...]
    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", _distinct(self.options))
        object.__setattr__(self, "probabilities", _distribution(self.probabilities, len(self.options)))

    @property
    def choice(self) -> str:
        """The likeliest option; the first of equal ones."""
        return self.options[self.probabilities.index(self.confidence)]

    @property
    def confidence(self) -> float:
        """The probability of the choice, in (0, 1]."""
        return max(self.probabilities)


@dataclass(frozen=True, slots=True)
class ScoreAnswer:
    """The probability of each of the ``levels``, in their order.

    Raises:
        ValueError: levels that are no scale (see ``Score``), or probabilities as in ``ChoiceAnswer``.
    """

    levels: tuple[float, ...]
    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", _ascending(self.levels))
        object.__setattr__(self, "probabilities", _distribution(self.probabilities, len(self.levels)))

    @property
    def expected(self) -> float:
        """The mean level under the probabilities, between the least and the greatest level."""
        mean = math.fsum(p * level for p, level in zip(self.probabilities, self.levels, strict=True))
        return min(max(mean, self.levels[0]), self.levels[-1])

    @property
    def confidence(self) -> float:
        """The probability of the likeliest level, in (0, 1]."""
        return max(self.probabilities)


Answer = NoulAnswer | ChoiceAnswer | ScoreAnswer


def answer_of(question: Question, logits: npt.NDArray[np.float32]) -> Answer:
    """The answer to a question from how well each option fits: (n_options,), of a noul no and yes."""
    odds = np.exp(logits.astype(np.float64) - logits.max())
    probabilities = tuple((odds / odds.sum()).tolist())
    if isinstance(question, Noul):
        return NoulAnswer(probabilities[1])
    if isinstance(question, Score):
        return ScoreAnswer(question.levels, probabilities)
    return ChoiceAnswer(question.options, probabilities)


def _distinct(options: tuple[str, ...]) -> tuple[str, ...]:
    if isinstance(options, str) or len(options) < 2 or len(set(options)) < len(options):
        raise ValueError(f"expected at least two different options, found {options!r}")
    return tuple(options)


def _ascending(levels: tuple[float, ...]) -> tuple[float, ...]:
    values = tuple(float(level) for level in levels)
    rising = all(a < b for a, b in pairwise(values))
    if len(values) < 2 or not rising or not all(map(math.isfinite, values)):
        raise ValueError(f"expected at least two finite levels in ascending order, found {levels!r}")
    return values


def _distribution(probabilities: tuple[float, ...], n: int) -> tuple[float, ...]:
    values = tuple(float(p) for p in probabilities)
    if len(values) != n:
        raise ValueError(f"expected {n} probabilities, found {len(values)}")
    if not all(0 <= p <= 1 for p in values) or abs(math.fsum(values) - 1) > SUM_TOLERANCE:
        raise ValueError(f"expected probabilities in [0, 1] that sum to 1, found {values}")
    return values

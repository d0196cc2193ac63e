"""What requests ask of the judge, in one form for every endpoint, so that many can be answered together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepsieve.data import references
from stepsieve.data.errors import DataError
from stepsieve.data.trajectory import Reference, Trajectory
from stepsieve.models.decode import Prediction
from stepsieve.models.judge import CLS, DET, RET, Judge
from stepsieve.models.questions import Answer, ChoiceAnswer, Question
from stepsieve.models.serving.refusals import CannotAnswer, Place, invalid

MAX_MESSAGES = 20_000
MAX_CALLS = 10_000
"""Limits on one trajectory: detection takes a core about 0.4 s per 1,000 calls."""
MAX_INDICES = 64
"""Limit on the message indices of one reference."""

NEEDS = {CLS: {CLS}, RET: {RET, CLS}, DET: {DET, RET, CLS}}
"""Task -> the heads that answer it."""


@dataclass
class Work:
    """What one request asks about its trajectory.

    Attributes:
        pairs: (step, evidence) to be classified. steps: steps whose evidence and type are wanted.
        among: (step, references) of which one is the evidence.
        detect: whether the redundant steps are wanted. every: whether the probability of each step is.
        questions: what is asked in words.
    """

    trajectory: Trajectory
    pairs: list[tuple[Reference, Reference]] = field(default_factory=list)
    steps: list[Reference] = field(default_factory=list)
    among: list[tuple[Reference, Sequence[Reference]]] = field(default_factory=list)
    detect: bool = False
    every: bool = False
    questions: list[Question] = field(default_factory=list)


@dataclass(frozen=True)
class Found:
    """The judge's answers, in the order of the :class:`Work`; empty where nothing was asked."""

    types: Sequence[ChoiceAnswer] = ()
    evidence: Sequence[Prediction] = ()
    among: Sequence[ChoiceAnswer] = ()
    detected: Sequence[Prediction] = ()
    every: Sequence[Prediction] = ()
    answers: Sequence[Answer] = ()


@dataclass(frozen=True)
class Job:
    """A request that was understood: what to ask, and what makes the body of the response of the answers."""

    work: Work
    reply: Callable[[Found], dict[str, Any]]


@dataclass(frozen=True)
class Model:
    """A judge as it is served.

    Attributes:
        name: what responses call it. released: the date of the checkpoint, YYYY-MM-DD.
    """

    judge: Judge
    name: str
    released: str = "1970-01-01"

    def can(self, task: str) -> bool:
        """Whether the checkpoint has the heads of the task."""
        return NEEDS[task] <= self.judge.heads.keys()

    def need(self, task: str, name: str, can_answer: Sequence[str], at: Place = ()) -> None:
        """Raises CannotAnswer unless the checkpoint has the heads of the task."""
        if not self.can(task):
            heads = ", ".join(sorted(self.judge.heads))
            raise CannotAnswer(f"{name} can't be answered with the heads {heads}", at=at, can_answer=can_answer)

    def answer(self, works: Sequence[Work]) -> list[Found]:
        """The answers for several requests, each kind of question asked once for all of them."""
        found = {
            "types": self._of([work for work in works if work.pairs], self._types),
            "evidence": self._of([work for work in works if work.steps], self._evidence),
            "among": self._of([work for work in works if work.among], self._among),
            "detected": self._of([work for work in works if work.detect], lambda own: self._detected(own, False)),
            "every": self._of([work for work in works if work.every], lambda own: self._detected(own, True)),
            "answers": self._of([work for work in works if work.questions], self._answers),
        }
        return [Found(**{name: own.get(id(work), ()) for name, own in found.items()}) for work in works]

    @staticmethod
    def _of(works: list[Work], ask: Callable[[list[Work]], Sequence[Any]]) -> dict[int, Any]:
        return dict(zip(map(id, works), ask(works), strict=True)) if works else {}

    def _types(self, works: list[Work]) -> Sequence[Any]:
        return self.judge.classify_batch([work.trajectory for work in works], [work.pairs for work in works])

    def _evidence(self, works: list[Work]) -> Sequence[Any]:
        return self.judge.retrieve_batch([work.trajectory for work in works], [work.steps for work in works])

    def _among(self, works: list[Work]) -> Sequence[Any]:
        try:
            return self.judge.evidence_batch([work.trajectory for work in works], [work.among for work in works])
        except DataError as error:
            # Which references a step can have as evidence shows only now.
            raise invalid(error.expected, ("questions",)) from None

    def _answers(self, works: list[Work]) -> Sequence[Any]:
        return [self.judge.decide(work.trajectory, work.questions) for work in works]

    def _detected(self, works: list[Work], everything: bool) -> Sequence[Any]:
        return self.judge.detect_batch([work.trajectory for work in works], everything)


def check_size(trajectory: Trajectory, at: Place) -> None:
    """Raises Refused where the trajectory is longer than one request may ask about."""
    messages, calls = len(trajectory.messages), sum(len(message.tool_calls) for message in trajectory.messages)
    if messages > MAX_MESSAGES or calls > MAX_CALLS:
        expected = f"expected at most {MAX_MESSAGES:,} messages and {MAX_CALLS:,} calls in one trajectory"
        raise invalid(f"{expected}, found {messages:,} and {calls:,}", at)


def step_of(value: object, trajectory: Trajectory, at: Place) -> Reference:
    """The step that a request names. Raises Refused unless it is an answered assistant call of the trajectory."""
    return _reference(value, trajectory, at, references.validate_step)


def evidence_of(value: object, trajectory: Trajectory, at: Place) -> Reference:
    """The evidence that a request names. Raises Refused unless it names something in the trajectory."""
    return _reference(value, trajectory, at, references.validate_evidence)


def _reference(
    value: object, trajectory: Trajectory, at: Place, validate: Callable[[Reference, Trajectory], None]
) -> Reference:
    try:
        reference = references.parse(value)
        if len(reference) > MAX_INDICES:
            raise DataError(f"expected at most {MAX_INDICES} message indices, found {len(reference):,}")
        validate(reference, trajectory)
    except DataError as error:
        raise invalid(error.expected, at) from None
    return reference


def tokens(size: int) -> int:
    """About how many tokens a text of so many bytes is: one in four, as tokenizers have it in English."""
    return -(-size // 4)

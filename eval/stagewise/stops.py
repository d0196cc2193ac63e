"""When a run is ended: the stopping criteria, each with its own state (DynSTEER, section 3.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from stepsieve.eval.stagewise.events import Event
from stepsieve.eval.stagewise.scoring import Dimension, Verdicts
from stepsieve.eval.stagewise.settings import Stops
from stepsieve.eval.stagewise.stages import Hit

Criterion = Literal["minefield", "structure", "quality", "stagnation", "prediction"]


@dataclass(frozen=True)
class Saved:
    """What a stop spared: closed actions of the agent, and about how many tokens it wrote in the rest."""

    actions: int
    tokens: int


@dataclass(frozen=True)
class Stop:
    """The report of a stop.

    Attributes:
        criterion: which one fired.
        step: the message index at which it did.
        anchor: the dominator of the stage that was going on.
        dimension: the one to blame.
        reason: in words.
        saved: against the recorded run; None in a live one.
    """

    criterion: Criterion
    step: int
    anchor: str
    dimension: Dimension
    reason: str
    saved: Saved | None = None


class OutcomeHead(Protocol):
    """The trained early-stop classifier: what a run's prefix says of its outcome."""

    def outcome(self, events: Sequence[Event]) -> Literal["success", "failure"] | None:
        """Which of the two has cleared its threshold; None where neither has."""
        ...


class Watch:
    """The state of the criteria. Each method takes what has just been seen and says whether to stop."""

    def __init__(self, limits: Stops, outcome: OutcomeHead | None = None) -> None:
        self.limits = limits
        self.outcome = outcome
        self.broken = self.low = self.idle = 0
        self._predicted: str | None = None

    def fatal(self, hit: Hit) -> bool:
        """Whether a hit ends the run; on the raw clock, before the call has a result."""
        return hit.minefield.severity >= self.limits.fatal_severity

    def stepped_on(self, hit: Hit, anchor: str) -> Stop | None:
        """A call on a minefield."""
        if not self.fatal(hit):
            return None
        reason = f"{hit.minefield.tool} is a minefield of severity {hit.minefield.severity:.2f}"
        return Stop("minefield", hit.step, anchor, "safety", reason)

    def called(self, violation: str | None, step: int, anchor: str) -> Stop | None:
        """A call, well-formed (None) or not."""
        self.broken = self.broken + 1 if violation else 0
        if self.broken < self.limits.broken_calls:
            return None
        return Stop("structure", step, anchor, "compliance", f"{self.broken} ill-formed calls in a row: {violation}")

    def scored(self, score: float, verdicts: Verdicts, step: int, anchor: str) -> Stop | None:
        """A stage was scored."""
        self.low = self.low + 1 if score < self.limits.low_score else 0
        if self.low < self.limits.low_stages:
            return None
        worst = min(verdicts, key=lambda name: verdicts[name].score)
        return Stop("quality", step, anchor, worst, f"{self.low} stages in a row below {self.limits.low_score:.2f}")

    def acted(self, settled: bool, ready: int, step: int, anchor: str) -> Stop | None:
        """An action closed; whether it settled a milestone, and how many are ready."""
        self.idle = 0 if settled or not ready else self.idle + 1
        if self.idle < self.limits.stagnation:
            return None
        reason = f"{self.idle} actions in a row settled none of {ready} ready milestones"
        return Stop("stagnation", step, anchor, "efficiency", reason)

    def predicted(self, events: Sequence[Event], step: int, anchor: str) -> Stop | None:
        """An action closed: ask the classifier. It has to say the same two observations running."""
        if self.outcome is None:
            return None
        before, self._predicted = self._predicted, self.outcome.outcome(events)
        if self._predicted is None or self._predicted != before:
            return None
        return Stop("prediction", step, anchor, "correctness", f"{self._predicted} is predicted twice running")

"""The ready frontier, stages and their evidence windows (DynSTEER, section 3.3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stepsieve.eval.stagewise.events import Closed, Event
from stepsieve.eval.stagewise.graph import END, ENTRY, Milestone, MilestoneGraph, Minefield
from stepsieve.eval.stagewise.task_view import TaskView


@dataclass(frozen=True, slots=True)
class Observed:
    """A closed call, and what its place in the run says of it.

    Attributes:
        t: the action that it belongs to.
        repeated: the same call had succeeded before, and nothing was written since.
        violation: how it is ill-formed, or None.
    """

    closed: Closed
    t: int
    repeated: bool
    violation: str | None

    @property
    def wasted(self) -> bool:
        return self.closed.error or self.repeated


@dataclass(frozen=True, slots=True)
class Hit:
    """A call on a minefield, seen at event k."""

    minefield: Minefield
    k: int
    step: int


@dataclass(frozen=True)
class Stage:
    """What a judge reads: a milestone and its evidence window W(m*) = [t_idom(m*), t].

    Attributes:
        milestone: m*; None for the stage in which the run ends.
        anchor: its immediate dominator, ``s0`` or a milestone's id.
        calls: the calls that closed after the anchor settled, in order, the one that settles m* among them.
        events: the raw events of the same stretch.
        match: how well the call met the success condition; of the last stage, the share of milestones settled.
        bindings: for each binding of m*, whether its parameter took the value that it should.
        hits: minefields that were stepped on.
        view: the task; None where none was given.
    """

    milestone: Milestone | None
    anchor: str
    calls: tuple[Observed, ...]
    events: tuple[Event, ...]
    match: float
    bindings: tuple[bool, ...] = ()
    hits: tuple[Hit, ...] = ()
    view: TaskView | None = None


@dataclass(frozen=True, slots=True)
class Settlement:
    """When a milestone settled: at event k and action t, after so many calls, with which result."""

    k: int
    t: int
    calls: int
    result: str


class Frontier:
    """Which milestones are settled, and which are ready: F_t, those unsettled whose predecessors all are settled.

    Attributes:
        ready: F_t by id.
    """

    def __init__(self, graph: MilestoneGraph) -> None:
        self.graph = graph
        self.settled: dict[str, Settlement] = {ENTRY: Settlement(0, 0, 0, "")}
        self._waiting = dict(graph.precedence.in_degree())
        self.ready: dict[str, Milestone] = {name: own for name, own in graph.by_id.items() if not self._waiting[name]}

    @property
    def coverage(self) -> float:
        """The share of milestones that are settled, in [0, 1]; 1 where there are none."""
        total = len(self.graph.milestones)
        return (len(self.settled) - 1) / total if total else 1.0

    def best(self, closed: Closed) -> tuple[str, float]:
        """The ready milestone that a call matches best, and how well; ("", 0) where it matches none."""
        matches = ((own.match(closed), name) for name, own in self.ready.items())
        score, name = max(matches, default=(0.0, ""), key=lambda pair: pair[0])
        return (name, score) if score else ("", 0.0)

    def settle(self, name: str, settlement: Settlement) -> None:
        """Settle a ready milestone. Raises KeyError where it is not ready."""
        del self.ready[name]
        self.settled[name] = settlement
        for later in self.graph.precedence.successors(name):
            self._waiting[later] -= 1
            if not self._waiting[later]:
                self.ready[later] = self.graph.by_id[later]

    def anchor(self, name: str | None) -> str:
        """The immediate dominator of a milestone, or of the end of the run (None): settled, or the nearest that is."""
        node = self.graph.dominators[END if name is None else name]
        while node not in self.settled:
            node = self.graph.dominators[node]
        return node

    def bindings(self, name: str, closed: Closed) -> tuple[bool, ...]:
        """For each binding of a milestone, whether the call took the value from the result that it should."""
        own = (binding for binding in self.graph.bindings if binding.target == name)
        return tuple(binding.holds(closed, self.settled[binding.source].result) for binding in own)


def hits_after(hits: Iterable[Hit], k: int) -> tuple[Hit, ...]:
    """Those of the hits that were seen after event k."""
    return tuple(hit for hit in hits if hit.k > k)


def steps_of(calls: Iterable[Observed]) -> tuple[int, ...]:
    """The message indices of calls and their results, in order."""
    found: set[int] = set()
    for own in calls:
        found.add(own.closed.step)
        if own.closed.result_step is not None:
            found.add(own.closed.result_step)
    return tuple(sorted(found))

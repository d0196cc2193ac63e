"""The reviewer: events in, decisions out, inside an agent's loop or over a recorded run (DynSTEER, algorithm 1).

reviewer = StageReviewer(graph, Ladder(StructuralJudge()))
decision = reviewer.observe(event)      # before a call is carried out, and after its result
if decision.stop: ...                   # the report of why
report = reviewer.finish()
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson

from stepsieve.data.trajectory import Trajectory
from stepsieve.eval.stagewise.events import Action, Clocks, Closed, Event, events_of
from stepsieve.eval.stagewise.graph import END, Milestone, MilestoneGraph
from stepsieve.eval.stagewise.judges import Ladder
from stepsieve.eval.stagewise.policy import CHEAP, START, Routing, Tier, route
from stepsieve.eval.stagewise.scoring import EQUAL, Dimension, Verdicts, run_score, stage_score, update_weights
from stepsieve.eval.stagewise.settings import Settings
from stepsieve.eval.stagewise.stages import Frontier, Hit, Observed, Settlement, Stage, hits_after
from stepsieve.eval.stagewise.stops import OutcomeHead, Saved, Stop, Watch
from stepsieve.eval.stagewise.task_view import TaskView

CHARACTERS_PER_TOKEN = 4
"""What is counted where a run does not record its tokens."""


@dataclass(frozen=True)
class Scored:
    """A stage that was scored.

    Attributes:
        milestone: its id, or "end".
        anchor: where its window begins: "s0" or a milestone's id.
        t, step: when it was scored.
        score: S_j.
        weights: those it was scored with.
        tiers: which tier gave each verdict.
    """

    milestone: str
    anchor: str
    t: int
    step: int
    score: float
    verdicts: Verdicts
    weights: Mapping[Dimension, float]
    tiers: Mapping[Dimension, Tier]


@dataclass(frozen=True)
class Decision:
    """What an event led to.

    Attributes:
        k, t: the clocks after it.
        stop: why the run should end; None where it may go on.
        stages: those that it settled.
    """

    k: int
    t: int
    stop: Stop | None = None
    stages: tuple[Scored, ...] = ()


@dataclass(frozen=True)
class Report:
    """A run, reviewed.

    Attributes:
        score: in [0, 1].
        coverage: the share of milestones that settled.
        stages: in the order of settling, the end last.
        stop: why it was ended; None where it ended by itself.
        actions, events: t and k at the end of the review.
        hits: calls on minefields, (tool, severity, step) each.
    """

    score: float
    coverage: float
    stages: tuple[Scored, ...]
    stop: Stop | None
    actions: int
    events: int
    hits: tuple[tuple[str, float, int], ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class StageReviewer:
    """Reviews one run. O(its open stage) per event."""

    def __init__(
        self,
        graph: MilestoneGraph,
        judges: Ladder,
        view: TaskView | None = None,
        settings: Settings | None = None,
        outcome: OutcomeHead | None = None,
    ) -> None:
        """
        Args:
            graph: of the run's task; it should have passed its check.
            judges: by tier.
            view: the task's; without it no call is known to be ill-formed.
            settings: thresholds; the paper's by default.
            outcome: the early-stop classifier, if there is one.
        """
        self.graph, self.judges, self.view = graph, judges, view
        self.settings = settings or Settings()
        self._clocks = Clocks()
        self._frontier = Frontier(graph)
        self._watch = Watch(self.settings.stops, outcome)
        self._routing: Routing = START if self.settings.dynamic_tiers else CHEAP
        self._weights: Mapping[Dimension, float] = EQUAL
        self._events: list[Event] = []
        self._calls: list[Observed] = []
        self._hits: list[Hit] = []
        self._known: set[bytes] = set()
        self._stages: list[Scored] = []
        self._stop: Stop | None = None

    def observe(self, event: Event) -> Decision:
        """Take the next event of the run.

        A call on a fatal minefield, or the last of too many ill-formed ones, is answered before it has a result: an
        agent's loop asks before it carries the call out. After a stop nothing is taken any more.
        """
        if self._stop is not None:
            return self._decision()
        self._events.append(event)
        before = len(self._stages)
        actions = self._clocks.observe(event)
        if event.call is not None:
            self._halt(self._screen(event))
        for action in actions:
            if self._stop is None:
                self._act(action)
        return self._decision(before)

    def finish(self) -> Report:
        """The run is over: settle what its end closes, score the last stage, report. To be called once."""
        if self._stop is None:
            for action in self._clocks.finish():
                self._act(action)
        self._score(None, self._frontier.coverage, ())
        fatal = max((hit.minefield.severity for hit in self._hits if self._watch.fatal(hit)), default=0.0)
        return Report(
            run_score([stage.score for stage in self._stages], fatal),
            self._frontier.coverage,
            tuple(self._stages),
            self._stop,
            self._clocks.t,
            self._clocks.k,
            tuple((hit.minefield.tool, hit.minefield.severity, hit.step) for hit in self._hits),
        )

    def _halt(self, stop: Stop | None) -> None:
        """The first stop stands."""
        if self.settings.stopping and self._stop is None:
            self._stop = stop

    def _decision(self, before: int | None = None) -> Decision:
        stages = () if before is None else tuple(self._stages[before:])
        return Decision(self._clocks.k, self._clocks.t, self._stop, stages)

    @property
    def _step(self) -> int:
        return self._events[-1].step if self._events else 0

    @property
    def _anchor(self) -> str:
        """Where the stage that is going on begins: the settled dominator of what is ready, the latest of several."""
        anchors = [self._frontier.anchor(name) for name in self._frontier.ready] or [self._frontier.anchor(None)]
        return max(anchors, key=lambda name: self._frontier.settled[name].k)

    # --- the raw clock -----------------------------------------------------------------------------------------------

    def _screen(self, event: Event) -> Stop | None:
        assert event.call is not None
        for minefield in self.graph.minefields:
            if minefield.hit(event.call):
                self._hits.append(Hit(minefield, self._clocks.k, event.step))
                if stop := self._watch.stepped_on(self._hits[-1], self._anchor):
                    return stop
        if event.actor != "assistant":
            return None
        return self._watch.called(self._violation(event), event.step, self._anchor)

    def _violation(self, event: Event) -> str | None:
        assert event.call is not None
        if self.view is not None:
            return self.view.violation(event.call)
        return f"{event.call.name}: the arguments are no JSON object" if "" in event.call.arguments else None

    # --- the clock of closed actions ---------------------------------------------------------------------------------

    def _act(self, action: Action) -> None:
        settled = False
        for closed in action.calls:
            self._calls.append(self._observed(closed, action.t))
            name, match = self._frontier.best(closed)
            if match >= self.settings.pass_threshold:
                bindings = self._frontier.bindings(name, closed)
                settlement = Settlement(self._clocks.k, action.t, len(self._calls), closed.text)
                settled = True
                self._score(self.graph.by_id[name], match, bindings, settlement)
        if any(closed.call.requestor == "assistant" for closed in action.calls) or settled:
            self._halt(self._watch.acted(settled, len(self._frontier.ready), self._step, self._anchor))
            self._halt(self._watch.predicted(self._events, self._step, self._anchor))

    def _observed(self, closed: Closed, t: int) -> Observed:
        call = closed.call
        tool = self.view.tool(call.name, call.requestor) if self.view is not None else None
        signature = orjson.dumps([call.requestor, call.name, call.arguments], option=orjson.OPT_SORT_KEYS)
        repeated = signature in self._known
        if not closed.error:
            if tool is not None and tool.destructive and not repeated:
                self._known.clear()
            self._known.add(signature)
        return Observed(closed, t, repeated, self.view.violation(call) if self.view is not None else None)

    def _score(
        self,
        milestone: Milestone | None,
        match: float,
        bindings: tuple[bool, ...],
        settlement: Settlement | None = None,
    ) -> None:
        """Score the stage that ends here and, of a milestone, settle it; then move weights and tiers."""
        anchor = self._frontier.anchor(milestone.id if milestone else None)
        since = self._frontier.settled[anchor]
        calls, events = tuple(self._calls[since.calls :]), tuple(self._events[since.k :])
        stage = Stage(milestone, anchor, calls, events, match, bindings, hits_after(self._hits, since.k), self.view)
        verdicts, tiers = self.judges.score(stage, self._routing.tiers)
        score = stage_score(verdicts, self._weights)
        name = milestone.id if milestone else END
        scored = Scored(name, anchor, self._clocks.t, self._step, score, verdicts, self._weights, tiers)
        self._stages.append(scored)
        if milestone is None or settlement is None:
            return
        self._frontier.settle(milestone.id, settlement)
        self._halt(self._watch.scored(score, verdicts, self._step, anchor))
        if self.settings.dynamic_weights:
            self._weights = update_weights(self._weights, verdicts, self.settings.alpha, self.settings.beta)
        if self.settings.dynamic_tiers:
            fatal = any(self._watch.fatal(hit) for hit in stage.hits)
            self._routing = route(score, verdicts, fatal, self.settings)


def replay(
    run: Trajectory,
    graph: MilestoneGraph,
    judges: Ladder,
    view: TaskView | None = None,
    settings: Settings | None = None,
    outcome: OutcomeHead | None = None,
) -> Report:
    """Review a recorded run. A stop is virtual: the report is of the prefix, and says what the stop would have saved.

    The arguments are those of :class:`StageReviewer`.
    """
    reviewer = StageReviewer(graph, judges, view, settings, outcome)
    events = list(events_of(run))
    for place, event in enumerate(events):
        decision = reviewer.observe(event)
        if decision.stop is not None:
            report = reviewer.finish()
            saved = _saved(events, place, decision.t)
            return replace(report, stop=replace(decision.stop, saved=saved))
    return reviewer.finish()


def _saved(events: list[Event], place: int, t: int) -> Saved:
    """What comes after an event: closed actions, and what the agent wrote."""
    clocks = Clocks()
    for event in events:
        clocks.observe(event)
    clocks.finish()
    written = sum(
        len(event.text) + (len(orjson.dumps(event.call.arguments)) + len(event.call.name) if event.call else 0)
        for event in events[place + 1 :]
        if event.actor == "assistant" and event.kind != "result"
    )
    return Saved(clocks.t - t, written // CHARACTERS_PER_TOKEN)

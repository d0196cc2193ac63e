"""The reviewer in a live loop and over recorded runs."""

import pytest

from stepsieve.data.trajectory import ToolCall
from stepsieve.eval.stagewise.events import Event, events_of
from stepsieve.eval.stagewise.graph import Milestone, MilestoneGraph, Minefield
from stepsieve.eval.stagewise.judges import Ladder, StructuralJudge
from stepsieve.eval.stagewise.policy import Tier
from stepsieve.eval.stagewise.reviewer import StageReviewer, replay
from stepsieve.eval.stagewise.scoring import DIMENSIONS, Verdict
from stepsieve.eval.stagewise.settings import Settings

LADDER = Ladder(StructuralJudge())
GRAPH = MilestoneGraph(
    (Milestone("guest", "find_guest", "read"), Milestone("book", "book_room")),
    (("guest", "book"),),
    (),
    (Minefield("drop_room"),),
)
BOOKING = {"room_id": "R1", "guest": "G1", "price": 10}


class Hotel:
    """A world that remembers what was really done to it."""

    def __init__(self):
        self.done = []

    def carry_out(self, call):
        self.done.append(call.name)
        return "{}"


def live(plan, reviewer, limit=50):
    """A toy agent's loop: it asks the reviewer before and after it carries out each call of its plan."""
    hotel, step = Hotel(), 0
    for name, arguments in plan:
        if step >= 2 * limit:
            break
        call = ToolCall(name, arguments)
        decision = reviewer.observe(Event("call", step, call=call, key=str(step)))
        if decision.stop is None:
            result = hotel.carry_out(call)
            decision = reviewer.observe(Event("result", step + 1, result, key=str(step)))
        if decision.stop is not None:
            return hotel, decision.stop
        step += 2
    return hotel, None


def forever(name, **arguments):
    while True:
        yield name, arguments


def test_a_sound_agent_finishes(view):
    reviewer = StageReviewer(GRAPH, LADDER, view)
    hotel, stop = live([("find_guest", {"name": "Ann"}), ("book_room", BOOKING)], reviewer)
    report = reviewer.finish()
    assert stop is None
    assert hotel.done == ["find_guest", "book_room"]
    assert (report.score, report.coverage, report.stop, report.actions, report.events) == (1.0, 1.0, None, 2, 4)
    assert [(stage.milestone, stage.anchor) for stage in report.stages] == [
        ("guest", "s0"),
        ("book", "guest"),
        ("end", "book"),
    ]


def test_a_looping_agent_is_stopped(view):
    reviewer = StageReviewer(GRAPH, LADDER, view)
    plan = [("find_guest", {"name": "Ann"})]
    hotel, stop = live(iter([*plan, *[("get_room", {"room": "R1"})] * 40]), reviewer)
    assert (stop.criterion, stop.anchor, stop.dimension) == ("stagnation", "guest", "efficiency")
    # One call that settles, sixteen that do not.
    assert len(hotel.done) == 17
    report = reviewer.finish()
    assert report.stages[-1].verdicts["efficiency"].score == pytest.approx(1 / 16)
    assert report.score < 0.9


def test_an_endless_loop_comes_to_an_end(view):
    hotel, stop = live(forever("get_room", room="R1"), StageReviewer(GRAPH, LADDER, view))
    assert (stop.criterion, len(hotel.done)) == ("stagnation", 16)


def test_a_forbidden_call_is_intercepted_before_its_result_exists(view):
    reviewer = StageReviewer(GRAPH, LADDER, view)
    hotel, stop = live([("find_guest", {"name": "Ann"}), ("drop_room", {"room_id": "R1"})], reviewer)
    assert hotel.done == ["find_guest"]
    assert (stop.criterion, stop.step, stop.anchor, stop.dimension) == ("minefield", 2, "guest", "safety")
    report = reviewer.finish()
    assert report.hits == (("drop_room", 1.0, 2),)
    assert report.score == 0.0


def test_ill_formed_calls_are_stopped_before_the_third_is_carried_out(view):
    plan = [("book_room", {"room_id": 7}), ("burn_room", {}), ("book_room", {"": "{room"})]
    hotel, stop = live(plan, StageReviewer(GRAPH, LADDER, view))
    assert (stop.criterion, stop.step, stop.dimension) == ("structure", 4, "compliance")
    assert hotel.done == ["book_room", "burn_room"]
    # Without a view, only arguments that are no JSON object are known to be wrong.
    hotel, stop = live(plan, StageReviewer(GRAPH, LADDER))
    assert stop is None


def test_nothing_is_taken_after_a_stop(view):
    reviewer = StageReviewer(GRAPH, LADDER, view)
    _, stop = live([("drop_room", {"room_id": "R1"})], reviewer)
    later = reviewer.observe(Event("call", 9, call=ToolCall("find_guest", {"name": "Ann"}), key="9"))
    assert (later.stop, later.stages, later.k) == (stop, (), 1)


class Grim:
    """A judge to whom nothing is any good."""

    def score(self, stage, dimensions=DIMENSIONS):
        return {name: Verdict(0.1 if name == "correctness" else 0.3, 1.0) for name in dimensions}


def test_stages_that_stay_low_end_a_run(view):
    _, stop = live(
        [("find_guest", {"name": "Ann"}), ("book_room", BOOKING)], StageReviewer(GRAPH, Ladder(Grim()), view)
    )
    assert (stop.criterion, stop.anchor, stop.dimension) == ("quality", "guest", "correctness")


def test_weights_and_tiers_move_from_stage_to_stage(view):
    class Standard(Grim):
        pass

    reviewer = StageReviewer(GRAPH, Ladder(StructuralJudge(), Standard()), view)
    live([("find_guest", {"name": "Ann"})], reviewer)
    first, last = reviewer.finish().stages
    # Nothing is known before the first stage: equal weights, standard judges.
    assert set(first.weights.values()) == {0.25}
    assert set(first.tiers.values()) == {Tier.STANDARD}
    assert first.score == pytest.approx(0.25)
    # exp(0.9) and three times exp(0.7).
    assert last.weights["correctness"] == pytest.approx(2.459603 / (2.459603 + 3 * 2.013753), abs=1e-6)
    fixed = StageReviewer(
        GRAPH, Ladder(StructuralJudge(), Standard()), view, Settings(dynamic_tiers=False, dynamic_weights=False)
    )
    live([("find_guest", {"name": "Ann"})], fixed)
    stages = fixed.finish().stages
    assert {tier for stage in stages for tier in stage.tiers.values()} == {Tier.CHEAP}
    assert {weight for stage in stages for weight in stage.weights.values()} == {0.25}


def test_a_repeat_is_one_only_while_nothing_was_written_since(view, desk):
    look, write = ("get_room", {"room": "R1"}, {}), ("book_room", BOOKING, {})
    loose = MilestoneGraph((Milestone("drop", "drop_room"),))

    def efficiency(calls):
        return replay(desk.run(calls), loose, LADDER, view).stages[-1].verdicts["efficiency"].score

    assert efficiency([look, look]) == 0.5
    assert efficiency([look, write, look]) == 1.0
    assert efficiency([look, write, write]) == pytest.approx(2 / 3)


def test_a_virtual_stop_says_what_it_would_have_saved(view, desk):
    calls = [("find_guest", {"name": "Ann"}, {}), ("drop_room", {"room_id": "R1"}, {}), ("book_room", BOOKING, {})]
    run = desk.run(calls)
    report = replay(run, GRAPH, LADDER, view)
    assert (report.stop.criterion, report.stop.step, report.actions) == ("minefield", 3, 1)
    # The call itself, and the booking after it.
    assert report.stop.saved.actions == 2
    written = len("book_room") + len('{"room_id":"R1","guest":"G1","price":10}') + len("Done.")
    assert report.stop.saved.tokens == written // 4
    through = replay(run, GRAPH, LADDER, view, Settings(stopping=False))
    assert (through.stop, through.actions, through.coverage) == (None, 3, 1.0)
    assert through.events == len(list(events_of(run)))


def test_parallel_calls_settle_a_milestone_and_the_one_after_it(view, desk):
    from stepsieve.data.trajectory import Message, Trajectory

    calls = (ToolCall("find_guest", {"name": "Ann"}, "a"), ToolCall("book_room", BOOKING, "b"))
    messages = (
        Message("assistant", None, calls),
        Message("tool", "{}", call_id="a"),
        Message("tool", "{}", call_id="b"),
    )
    report = replay(Trajectory("r", messages), GRAPH, LADDER, view)
    assert (report.coverage, report.actions) == (1.0, 1)
    assert [len(stage.verdicts) for stage in report.stages] == [4, 4, 2]


def test_an_empty_run(view):
    report = StageReviewer(GRAPH, LADDER, view).finish()
    assert (report.coverage, report.actions, [stage.milestone for stage in report.stages]) == (0.0, 0, ["end"])


def test_replay_and_live_agree(simulated):
    """Event by event or as a whole, on simulated runs with a graph of each one's own."""
    from stepsieve.eval.stagewise import corpus
    from stepsieve.eval.stagewise.candidates import candidate

    views = corpus.views_of(simulated)
    for run in simulated[:20]:
        graph = candidate(run, views[run.id])
        reviewer = StageReviewer(graph, LADDER, views[run.id])
        for event in events_of(run):
            reviewer.observe(event)
        whole = replay(run, graph, LADDER, views[run.id], Settings())
        live_report = reviewer.finish()
        assert live_report.score == whole.score
        assert live_report.stages == whole.stages
        if graph.milestones and whole.stop is None:
            assert whole.coverage == 1.0

"""Ready frontiers, immediate dominators and evidence windows, on graphs worked out by hand."""

import pytest

from stepsieve.eval.stagewise.graph import ENTRY, Milestone, MilestoneGraph
from stepsieve.eval.stagewise.judges import Ladder, StructuralJudge
from stepsieve.eval.stagewise.reviewer import StageReviewer
from stepsieve.eval.stagewise.stages import Frontier, Settlement

PARALLEL = ("a", "b", "c", "d"), [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]
"""a, then b and c in any order, then d: a dominates all of them."""
SHARED = ("a", "b", "c", "d", "e"), [("a", "c"), ("b", "c"), ("c", "d"), ("c", "e")]
"""Two beginnings meet in c, which d and e share as their dominator."""
LOOSE = ("a", "b", "c"), []
"""No path at all."""


def settle(frontier, *names):
    for name in names:
        k = len(frontier.settled)
        frontier.settle(name, Settlement(k, k, k, ""))


@pytest.mark.parametrize(
    ("graph", "dominators"),
    [
        (PARALLEL, {"a": ENTRY, "b": "a", "c": "a", "d": "a", "end": "d"}),
        (SHARED, {"a": ENTRY, "b": ENTRY, "c": ENTRY, "d": "c", "e": "c", "end": "c"}),
        (LOOSE, {"a": ENTRY, "b": ENTRY, "c": ENTRY, "end": ENTRY}),
        (((), []), {"end": ENTRY}),
    ],
)
def test_immediate_dominators(desk, graph, dominators):
    assert desk.chain(*graph[0], edges=graph[1]).dominators == dominators


def test_the_ready_frontier_of_parallel_branches(desk):
    frontier = Frontier(desk.chain(*PARALLEL[0], edges=PARALLEL[1]))
    assert set(frontier.ready) == {"a"}
    settle(frontier, "a")
    assert set(frontier.ready) == {"b", "c"}
    settle(frontier, "c")
    assert set(frontier.ready) == {"b"}
    settle(frontier, "b")
    assert set(frontier.ready) == {"d"}
    assert frontier.coverage == 0.75
    settle(frontier, "d")
    assert (set(frontier.ready), frontier.coverage) == (set(), 1.0)


def test_the_frontier_of_two_beginnings_and_of_no_path(desk):
    shared = Frontier(desk.chain(*SHARED[0], edges=SHARED[1]))
    assert set(shared.ready) == {"a", "b"}
    settle(shared, "b")
    assert set(shared.ready) == {"a"}
    with pytest.raises(KeyError):
        settle(shared, "c")
    settle(shared, "a", "c")
    assert set(shared.ready) == {"d", "e"}
    assert set(Frontier(desk.chain(*LOOSE[0])).ready) == {"a", "b", "c"}


def test_only_what_is_ready_can_be_matched_and_the_best_match_wins(desk):
    from stepsieve.eval.stagewise.graph import Condition

    graph = MilestoneGraph(
        (
            Milestone("one", "x", conditions=(Condition("argument", "n", 1),)),
            Milestone("two", "x", conditions=(Condition("argument", "n", 2),)),
            Milestone("later", "y"),
        ),
        (("one", "later"),),
    )
    frontier = Frontier(graph)
    assert frontier.best(desk.closed("y")) == ("", 0.0)
    assert frontier.best(desk.closed("x", n=2)) == ("two", 1.0)
    assert frontier.best(desk.closed("x", n=3))[1] == 0.5
    settle(frontier, "one")
    assert frontier.best(desk.closed("y")) == ("later", 1.0)


def windows(desk, graph, tools):
    """(milestone, anchor, tools in its window) of each stage of a run of one call after another."""

    class Spy(StructuralJudge):
        def score(self, stage, *rest):
            name = stage.milestone.id if stage.milestone else "end"
            seen.append((name, stage.anchor, "".join(own.closed.call.name for own in stage.calls)))
            return super().score(stage, *rest)

    seen = []
    reviewer = StageReviewer(graph, Ladder(Spy()))
    for number, tool in enumerate(tools, 1):
        for event in desk.call_events(number, tool):
            reviewer.observe(event)
    reviewer.finish()
    return seen


def test_windows_reach_back_to_the_dominator(desk):
    # x is no milestone. The window of c holds b's call too: b is no dominator of c.
    assert windows(desk, desk.chain(*PARALLEL[0], edges=PARALLEL[1]), "xabxcdx") == [
        ("a", "s0", "xa"),
        ("b", "a", "b"),
        ("c", "a", "bxc"),
        ("d", "a", "bxcd"),
        ("end", "d", "x"),
    ]
    assert windows(desk, desk.chain(*SHARED[0], edges=SHARED[1]), "abcxed") == [
        ("a", "s0", "a"),
        ("b", "s0", "ab"),
        ("c", "s0", "abc"),
        ("e", "c", "xe"),
        ("d", "c", "xed"),
        ("end", "c", "xed"),
    ]
    assert windows(desk, desk.chain(*LOOSE[0]), "cax") == [
        ("c", "s0", "c"),
        ("a", "s0", "ca"),
        ("end", "s0", "cax"),
    ]


def test_the_last_stage_of_an_unfinished_run_begins_at_what_did_settle(desk):
    # d, the dominator of the end, never settled; a, its own dominator, did.
    assert windows(desk, desk.chain(*PARALLEL[0], edges=PARALLEL[1]), "ax")[-1] == ("end", "a", "x")

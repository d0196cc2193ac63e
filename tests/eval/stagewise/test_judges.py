"""Tier 1 by hand, the slot for a trained head, and the ladder of judges."""

import pytest

from stepsieve.eval.stagewise.graph import Condition, Milestone, Minefield
from stepsieve.eval.stagewise.judges import Ladder, StructuralJudge
from stepsieve.eval.stagewise.policy import Tier
from stepsieve.eval.stagewise.scoring import DIMENSIONS, Verdict
from stepsieve.eval.stagewise.stages import Hit, Stage


@pytest.fixture
def stage(desk):
    """Four calls: one fails, one repeats another, one is ill-formed, the last settles the milestone."""
    calls = (
        desk.observed("get_room", error=True, step=2, room="R1"),
        desk.observed("get_room", step=4, room="R1"),
        desk.observed("get_room", repeated=True, step=6, room="R1"),
        desk.observed("book_room", violation="price is missing", step=8, room_id="R1"),
    )
    milestone = Milestone("m", "book_room", conditions=(Condition("argument", "a"), Condition("argument", "b")))
    return Stage(milestone, "s0", calls, (), match=2 / 3, bindings=(True, False))


def test_tier_1_by_hand(stage):
    found = StructuralJudge().score(stage)
    # 2 of 3 parts of the condition and 1 of 2 bindings hold; five facts.
    assert (found["correctness"].score, found["correctness"].confidence) == (pytest.approx(3 / 5), pytest.approx(6 / 7))
    assert found["correctness"].steps == (8, 9)
    # A failed and a repeated call of four.
    assert (found["efficiency"].score, found["efficiency"].confidence) == (0.5, pytest.approx(5 / 6))
    assert found["efficiency"].steps == (2, 3, 6, 7)
    # A failed and an ill-formed one.
    assert (found["compliance"].score, found["compliance"].steps) == (0.5, (2, 3, 8, 9))
    assert (found["safety"].score, found["safety"].steps) == (1.0, ())


def test_the_worst_minefield_is_what_safety_lacks(stage, desk):
    hits = (Hit(Minefield("drop_room", severity=0.7), 3, 4), Hit(Minefield("book_room", severity=0.2), 5, 8))
    found = StructuralJudge().score(Stage(stage.milestone, "s0", stage.calls, (), 1.0, hits=hits))
    assert (found["safety"].score, found["safety"].steps) == (pytest.approx(0.3), (4, 8))


def test_a_stage_without_the_agents_calls_says_nothing_of_them(desk):
    calls = (desk.observed("get_room", error=True, requestor="user"),)
    found = StructuralJudge().score(Stage(None, "s0", calls, (), 0.25))
    assert set(found) == {"correctness", "safety"}
    assert found["correctness"].score == 0.25


class Head:
    """A judge with fixed verdicts, in the place of a trained one."""

    def __init__(self, **scores):
        self.scores = scores
        self.asked = []

    def score(self, stage, dimensions=DIMENSIONS):
        self.asked.append(tuple(dimensions))
        return {name: Verdict(score, 0.9) for name, score in self.scores.items() if name in dimensions}


def test_a_trained_head_speaks_for_what_it_knows(stage):
    found = StructuralJudge(Head(efficiency=0.9)).score(stage)
    assert found["efficiency"].score == 0.9
    assert found["compliance"].score == 0.5


def test_a_trained_head_can_not_talk_a_minefield_away(stage):
    mined = Stage(stage.milestone, "s0", stage.calls, (), 1.0, hits=(Hit(Minefield("drop_room", severity=1.0), 3, 4),))
    assert StructuralJudge(Head(safety=0.9)).score(mined)["safety"].score == 0.0
    assert StructuralJudge(Head(safety=0.2)).score(stage)["safety"].score == 0.2


def test_each_dimension_goes_to_the_judge_of_its_tier(stage):
    standard, expensive = Head(correctness=0.1, safety=0.2), Head(efficiency=0.3)
    tiers = {
        "correctness": Tier.STANDARD,
        "efficiency": Tier.EXPENSIVE,
        "safety": Tier.STANDARD,
        "compliance": Tier.CHEAP,
    }
    found, used = Ladder(StructuralJudge(), standard, expensive).score(stage, tiers)
    assert {name: own.score for name, own in found.items()} == {
        "correctness": 0.1,
        "efficiency": 0.3,
        "safety": 0.2,
        "compliance": 0.5,
    }
    assert used == tiers
    assert standard.asked == [("correctness", "safety")]
    assert expensive.asked == [("efficiency",)]


def test_a_tier_without_a_judge_falls_to_the_next_below(stage):
    standard = Head(efficiency=0.3)
    everything = dict.fromkeys(DIMENSIONS, Tier.EXPENSIVE)
    found, used = Ladder(StructuralJudge(), standard).score(stage, everything)
    assert (found["efficiency"].score, used["efficiency"]) == (0.3, Tier.STANDARD)
    # What the standard judge left out, structure says.
    assert (found["compliance"].score, used["compliance"]) == (0.5, Tier.CHEAP)
    _, used = Ladder(StructuralJudge()).score(stage, everything)
    assert set(used.values()) == {Tier.CHEAP}
    expensive = Head(efficiency=0.7)
    _, used = Ladder(StructuralJudge(), None, expensive).score(stage, dict.fromkeys(DIMENSIONS, Tier.STANDARD))
    assert (used["efficiency"], expensive.asked) == (Tier.CHEAP, [])

"""Each stopping criterion, a step before it fires and as it fires."""

import pytest

from stepsieve.eval.stagewise.graph import Minefield
from stepsieve.eval.stagewise.scoring import Verdict
from stepsieve.eval.stagewise.settings import Stops
from stepsieve.eval.stagewise.stages import Hit
from stepsieve.eval.stagewise.stops import Watch


@pytest.mark.parametrize(("severity", "stops"), [(0.949, False), (0.95, True), (1.0, True)])
def test_a_fatal_minefield(severity, stops):
    stop = Watch(Stops()).stepped_on(Hit(Minefield("drop_room", severity=severity), 5, 7), "m1")
    assert (stop is not None) == stops
    if stop:
        assert (stop.criterion, stop.step, stop.anchor, stop.dimension) == ("minefield", 7, "m1", "safety")


def test_ill_formed_calls_in_a_row():
    watch = Watch(Stops())
    assert [watch.called(wrong, 1, "s0") for wrong in ("x", "x", None, "x", "x")] == [None] * 5
    stop = watch.called("no such tool", 9, "s0")
    assert (stop.criterion, stop.step, stop.dimension) == ("structure", 9, "compliance")
    assert "no such tool" in stop.reason


def test_low_stages_in_a_row():
    watch = Watch(Stops())
    own = {"correctness": Verdict(0.5, 1), "efficiency": Verdict(0.1, 1)}
    assert [watch.scored(score, own, 1, "s0") for score in (0.39, 0.40, 0.39)] == [None] * 3
    stop = watch.scored(0.2, own, 6, "m2")
    assert (stop.criterion, stop.step, stop.anchor, stop.dimension) == ("quality", 6, "m2", "efficiency")


def test_a_frontier_that_does_not_move():
    watch = Watch(Stops())
    assert [watch.acted(False, 2, 1, "s0") for _ in range(15)] == [None] * 15
    stop = watch.acted(False, 2, 33, "m1")
    assert (stop.criterion, stop.step, stop.anchor, stop.dimension) == ("stagnation", 33, "m1", "efficiency")
    watch = Watch(Stops())
    # Progress begins the count anew; where nothing is left to settle, nothing stagnates.
    assert [watch.acted(number == 10, 2, 1, "s0") for number in range(26)] == [None] * 26
    assert watch.acted(False, 2, 1, "s0").criterion == "stagnation"
    watch = Watch(Stops())
    assert [watch.acted(False, 0, 1, "s0") for _ in range(40)] == [None] * 40


class Series:
    """A classifier that says one thing after another."""

    def __init__(self, *said):
        self.said = list(said)

    def outcome(self, events):
        return self.said.pop(0)


def test_the_classifier_has_to_say_the_same_twice_running():
    watch = Watch(Stops(), Series("failure", None, "failure", "success", "success"))
    stops = [watch.predicted([], step, "s0") for step in range(5)]
    assert stops[:4] == [None] * 4
    assert (stops[4].criterion, stops[4].step, stops[4].reason) == (
        "prediction",
        4,
        "success is predicted twice running",
    )
    assert Watch(Stops()).predicted([], 1, "s0") is None

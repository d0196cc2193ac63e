"""When a run is stopped, and what a stage is worth: by hand."""

import pytest

from stepsieve.models.outlook import Bounds, Outlook
from stepsieve.models.questions import ScoreAnswer
from stepsieve.models.stages import stage_score


def outlooks(*pairs):
    return [Outlook(*pair) for pair in pairs]


BOTH = Bounds(success=0.8, failure=0.9)


def test_a_head_has_to_be_sure_twice_in_a_row():
    assert BOTH.stop(outlooks((0.5, 0.5), (0.85, 0.1), (0.8, 0.2), (0.9, 0.1))) == (2, "success")
    assert BOTH.stop(outlooks((0.85, 0.1), (0.7, 0.3), (0.85, 0.1))) is None
    assert BOTH.stop(outlooks((0.1, 0.9), (0.05, 0.95))) == (1, "failure")


def test_two_that_disagree_are_no_stop():
    assert BOTH.stop(outlooks((0.85, 0.1), (0.05, 0.95), (0.85, 0.1))) is None


def test_of_two_that_are_sure_the_likelier_speaks():
    assert BOTH.says(Outlook(0.85, 0.95)) == "failure"
    assert BOTH.says(Outlook(0.99, 0.95)) == "success"


def test_without_bounds_nothing_stops():
    sure = outlooks((1.0, 0.0), (1.0, 0.0))
    assert Bounds().stop(sure) is None
    assert Bounds(failure=0.5).stop(sure) is None
    assert Bounds(success=1.0).stop(sure) == (1, "success")
    assert BOTH.stop([]) is None


ANSWERS = {
    2: ScoreAnswer((0.0, 0.5, 1.0), (0.1, 0.2, 0.7)),  # expected 0.8
    4: ScoreAnswer((0.0, 0.5, 1.0), (0.6, 0.4, 0.0)),  # expected 0.2
}


def test_a_stage_is_the_mean_of_its_messages_the_worst_named_first():
    score, uncertainty, steps = stage_score("correctness", ANSWERS)
    assert score == pytest.approx(0.5)
    assert uncertainty == pytest.approx((0.3 + 0.4) / 2)
    assert steps == (4, 2)


def test_of_safety_the_worst_message_alone_counts():
    score, uncertainty, steps = stage_score("safety", ANSWERS)
    assert score == pytest.approx(0.2)
    assert uncertainty == pytest.approx(0.4)
    assert steps == (4, 2)

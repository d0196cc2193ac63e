import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsieve.models.questions import Choice, ChoiceAnswer, Noul, NoulAnswer, Score, ScoreAnswer


def test_choice_answer():
    answer = ChoiceAnswer(("a", "b", "c"), (0.2, 0.5, 0.3))
    assert (answer.choice, answer.confidence) == ("b", 0.5)
    assert ChoiceAnswer(("a", "b"), (0.5, 0.5)).choice == "a"


def test_score_answer():
    answer = ScoreAnswer((0, 1, 2), (0.25, 0.25, 0.5))
    assert (answer.expected, answer.confidence) == (1.25, 0.5)


def test_noul_answer():
    assert NoulAnswer(0.2).confidence == 0.8


def test_lists_become_tuples_and_all_is_frozen():
    assert Choice("q", ["a", "b"]) == Choice("q", ("a", "b"))
    assert ScoreAnswer([0, 1], [0, 1]).levels == (0.0, 1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Noul("q").question = "other"


@pytest.mark.parametrize("options", [(), ("a",), ("a", "a"), "ab"])
def test_options_are_several_and_different(options):
    with pytest.raises(ValueError, match="two different options"):
        Choice("q", options)


@pytest.mark.parametrize("levels", [(), (1,), (1, 1), (2, 1), (0, math.inf), (0, math.nan)])
def test_levels_ascend(levels):
    with pytest.raises(ValueError, match="ascending"):
        Score("q", levels)


@pytest.mark.parametrize("probabilities", [(0.5, 0.4), (1.2, -0.2), (math.nan, 1), (1.0,), (0.5, 0.5 + 2e-6)])
def test_probabilities_are_a_distribution(probabilities):
    with pytest.raises(ValueError, match="probabilities"):
        ChoiceAnswer(("a", "b"), probabilities)
    with pytest.raises(ValueError, match="probabilities"):
        ScoreAnswer((0, 1), probabilities)


@pytest.mark.parametrize("probability", [-0.1, 1.1, math.nan])
def test_noul_probability(probability):
    with pytest.raises(ValueError, match="probability"):
        NoulAnswer(probability)


@given(st.lists(st.floats(0.001, 1), min_size=2, max_size=8))
def test_any_distribution_is_taken(weights):
    p = tuple(w / sum(weights) for w in weights)
    answer = ScoreAnswer(tuple(range(len(p))), p)
    assert 0 <= answer.expected <= len(p) - 1
    assert 1 / len(p) - 1e-9 <= answer.confidence <= 1

"""Type and evidence decided jointly, against brute force; and which triples a cutoff lets through, by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsieve.models.decode import Cutoff, Prediction, best_of_run, best_pairs, leaders

# Few different values: ties are common.
shares = st.integers(0, 4)
questions = st.lists(
    st.lists(st.tuples(st.integers(1, 4), st.tuples(shares, shares, shares)), min_size=1, max_size=5),
    min_size=1,
    max_size=5,
)


@given(questions)
def test_best_pairs_is_the_greatest_product(asked):
    question = np.repeat(np.arange(len(asked)), [len(own) for own in asked])
    evidence = np.array([share / 4 for own in asked for share, _ in own])
    types = np.array([row for own in asked for _, row in own], dtype=np.float64) / 4
    found, kind, joint = best_pairs(question, evidence, types)
    assert len(found) == len(kind) == len(joint) == len(asked)
    for number in range(len(asked)):
        products = {
            (place, k): evidence[place] * types[place, k]
            for place in np.flatnonzero(question == number).tolist()
            for k in range(3)
        }
        best = max(products.values())
        assert joint[number] == best
        # Of equal ones the first candidate, and its first type.
        assert (found[number], kind[number]) == min(pair for pair, value in products.items() if value == best)


def test_a_less_likely_evidence_with_a_sure_type_wins():
    found, kind, joint = best_pairs(np.zeros(2, dtype=np.int64), np.array([0.6, 0.4]), np.array([[0.5, 0.5], [0, 1]]))
    assert (found.tolist(), kind.tolist()) == ([1], [1])
    assert joint[0] == pytest.approx(0.4)


def test_leaders_are_within_a_quarter_of_the_best():
    question = np.array([0, 0, 0, 1, 1])
    evidence = np.array([0.8, 0.2, 0.19, 0.01, 0.001])
    assert leaders(question, evidence).tolist() == [True, True, False, True, False]


def test_the_best_of_each_run_is_the_first_of_equals():
    run, value = np.array([0, 0, 0, 2, 3, 3]), np.array([0.1, 0.5, 0.5, 0.0, 0.2, 0.1])
    assert np.flatnonzero(best_of_run(run, value)).tolist() == [1, 3, 4]
    assert best_of_run(run[:0], value[:0]).tolist() == []


# --- cutoff ----------------------------------------------------------------------------------------------------------


def ranked(*levels):
    """Predictions of these confidences and probabilities of being redundant."""
    return [Prediction((k, k + 1), "x", (-1,), level, redundant) for k, (level, redundant) in enumerate(levels)]


RANKED = ranked((0.7, 0.8), (0.5, 0.99), (0.2, 0.995))


@pytest.mark.parametrize(
    ("cutoff", "returned"),
    [
        (Cutoff(0.5), [0, 1]),
        (Cutoff(0.51), [0]),
        (Cutoff(0.2), [0, 1, 2]),
        (Cutoff(0.9), [0]),  # the best is returned all the same ...
        (Cutoff(0.9, first=0.7), [0]),
        (Cutoff(0.9, first=0.71), []),  # ... from ``first``
        (Cutoff(0.6, first=0.9), [0]),  # what clears the threshold needs no more
        (Cutoff(0.5, safe=0.99), [0, 1]),  # safe alone changes nothing
        (Cutoff(0.5, safe=0.99, prune=True), [1, 2]),
        (Cutoff(0.5, safe=None, prune=True), []),
    ],
)
def test_what_a_cutoff_returns(cutoff, returned):
    assert cutoff.returned(RANKED) == [RANKED[place] for place in returned]
    assert cutoff.returned([]) == []


def test_what_can_be_pruned_does_not_depend_on_prune():
    assert Cutoff(safe=0.99).prunable(RANKED) == RANKED[1:]
    assert Cutoff().prunable(RANKED) == []


def test_the_released_form():
    found = Prediction((4, 5), "Duplicated Step", (1, 2, 3, 4), 0.12345678, 0.5).to_dict()
    assert found == {
        "redundant_step_idx": [4, 5],
        "redundant_step_type": "Duplicated Step",
        "evidence_step_idx": [1, 2, 3, 4],
        "confidence": 0.123457,
    }

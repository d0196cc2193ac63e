"""Detection: precision at K as RedundancyBench has it, and how well steps are told apart."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from stepsieve.data.trajectory import ABNORMAL, DUPLICATED, EXPLORATORY, INCORRECT, REDUNDANCY_TYPES, Label
from stepsieve.eval import detection as d

# --- StepDet ---------------------------------------------------------------------------------------------------------

A, B = Label((2, 3), DUPLICATED, (0, 1)), Label((6, 7), INCORRECT, (-1,))


def detect(label, confidence, **changed):
    fields = {"step": label.step, "type": label.type, "evidence": label.evidence, **changed}
    return d.Detection(confidence=confidence, **fields)


def p_at(predictions, gold, *ks):
    return [d.precision_at_k(predictions, gold, k) for k in ks or d.KS]


def test_denominator_is_the_number_returned():
    assert p_at([detect(A, 0.9)], [A, B]) == [1, 1, 1]
    assert p_at([detect(A, 0.9), detect(B, 0.8), detect(A, 0.7, step=(8, 9))], [A, B]) == [1, 2 / 3, 2 / 3]


def test_more_predictions_than_k():
    misses = [detect(A, 0.9 - i / 100, step=(2 * i + 20, 2 * i + 21)) for i in range(11)]
    assert p_at([*misses, detect(A, 0.1)], [A]) == [0, 0, 0]
    assert p_at([*misses[:5], detect(A, 0.1), *misses[5:]], [A], 6, 12) == [0, 1 / 12]
    assert p_at([*misses, detect(A, 0.95)], [A]) == [1, 1 / 5, 1 / 10]


def test_ties_keep_the_order_given():
    right, wrong = detect(A, 0.5), detect(A, 0.5, step=(8, 9))
    assert p_at([right, wrong], [A]) == [1, 0.5, 0.5]
    assert p_at([wrong, right], [A]) == [0, 0.5, 0.5]


def test_a_second_prediction_of_a_step_fills_a_place_and_never_scores():
    assert p_at([detect(A, 0.8), detect(A, 0.9), detect(B, 0.7)], [A, B]) == [1, 2 / 3, 2 / 3]
    # A wrong first one uses the step up.
    assert p_at([detect(A, 0.9, evidence=(4, 5)), detect(A, 0.8)], [A]) == [0, 0, 0]


@pytest.mark.parametrize("confidence", [None, math.nan, math.inf, -math.inf, "0.9", True, -0.1, 1.1, [0.9]])
def test_unusable_confidences_are_first_and_never_score(confidence):
    assert p_at([detect(B, 0.8), detect(A, confidence)], [A, B]) == [0, 0.5, 0.5]
    # Without a place in the ranking it doesn't use the step up either.
    assert p_at([detect(A, 0.8), detect(A, confidence)], [A]) == [0, 0.5, 0.5]


@pytest.mark.parametrize("confidence", [0, 1, 0.5, np.float32(0.5), np.int64(1)])
def test_usable_confidences(confidence):
    assert p_at([detect(A, confidence)], [A]) == [1, 1, 1]


def test_empty_and_failed_replies_are_0():
    assert p_at([], [A]) == p_at(None, [A]) == [0, 0, 0]


def test_a_triple_matches_as_a_whole():
    joint = Label((10, 11), EXPLORATORY, (4, 5, 8, 9))
    assert p_at([detect(joint, 0.9, evidence=(8, 9, 4, 5))], [joint]) == [1, 1, 1]
    for changed in ({"type": ABNORMAL}, {"type": None}, {"evidence": (4, 5)}, {"evidence": None}, {"step": None}):
        assert p_at([detect(joint, 0.9, **changed)], [joint]) == [0, 0, 0]


def test_detection_report_by_hand():
    predictions = [[detect(A, 0.9), detect(B, 0.8)], [], None, [detect(A, 0.9)], []]
    gold = [[A], [A], [B], [], []]
    report = d.detection_report(predictions, gold, groups=[("d", str(i)) for i in range(5)])
    assert {name: round(x.value, 6) for name, x in report.items()} == {
        "p@1": 1 / 5, "p@5": 0.1, "p@10": 0.1, "avg_p@k": round(0.4 / 3, 6),
        "p@1/positives": round(1 / 3, 6), "p@5/positives": round(1 / 6, 6), "p@10/positives": round(1 / 6, 6),
        "avg_p@k/positives": round(2 / 9, 6),
    }  # fmt: skip
    assert report["p@1/positives"].n == 3


labels = st.lists(st.sampled_from([2, 4, 6]), unique=True).map(
    lambda steps: [Label((s, s + 1), REDUNDANCY_TYPES[s % 4], (0, 1)) for s in steps]
)
detections = st.lists(
    st.builds(
        d.Detection,
        step=st.sampled_from([None, (2, 3), (4, 5), (6, 7)]),
        type=st.sampled_from([None, *REDUNDANCY_TYPES]),
        evidence=st.sampled_from([None, (0, 1), (-1,)]),
        confidence=st.one_of(st.none(), st.booleans(), st.floats(), st.floats(0, 1)),
    ),
    max_size=8,
)


@given(detections, labels, st.integers(1, 12))
def test_precision_at_k_properties(predictions, gold, k):
    hits = d.detection_hits(predictions, gold)
    assert len(hits) == len(predictions)
    assert hits.sum() <= len(gold)
    assert 0 <= d.precision_at_k(predictions, gold, k) <= 1
    assert d.precision_at_k(predictions, gold, len(predictions) + k) == d.precision_at_k(predictions, gold, 8)
    if len({d._rank_key(p.confidence) for p in predictions}) == len(predictions):
        assert d.precision_at_k(predictions[::-1], gold, k) == d.precision_at_k(predictions, gold, k)


# --- localisation ----------------------------------------------------------------------------------------------------

confidences = st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]), st.booleans()), min_size=1, max_size=60)


def test_localisation_by_hand():
    assert d.localisation_auc([1, 0, 1, 0], [0.9, 0.8, 0.7, 0.1]) == 0.75
    assert d.localisation_ap([1, 0, 1, 0], [0.9, 0.8, 0.7, 0.1]) == pytest.approx((1 + 2 / 3) / 2)
    assert d.localisation_auc([1, 0], [0.5, 0.5]) == 0.5
    assert math.isnan(d.localisation_auc([1, 1], [0.5, 0.6]))
    assert math.isnan(d.localisation_ap([0, 0], [0.5, 0.6]))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), min_size=2, max_size=40))
def test_localisation_agrees_with_scikit_learn(steps):
    truth, scores = (np.array(column) for column in zip(*steps, strict=True))
    if truth.any():
        assert d.localisation_ap(truth, scores / 6) == pytest.approx(average_precision_score(truth, scores))
        if not truth.all():
            assert d.localisation_auc(truth, scores / 6) == pytest.approx(roc_auc_score(truth, scores))


def test_recall_at_precision_by_hand():
    truth, score = [1, 1, 0, 1, 0], [0.9, 0.8, 0.7, 0.6, 0.5]
    point = d.recall_at_precision(truth, score, 0.99)
    assert (point.threshold, point.precision, point.recall, point.flagged) == (0.8, 1, 2 / 3, 2)
    assert point.lower == pytest.approx(0.05 ** (1 / 2))
    assert d.recall_at_precision(truth, score, 0.75).recall == 1
    assert d.recall_at_precision(truth, score, 0.99, bound=True).flagged == 0
    # Equal scores can't be told apart: both are flagged or neither.
    for nothing in (d.recall_at_precision([1, 0], [0.5, 0.5], 0.99), d.recall_at_precision([], [], 0.99)):
        assert (nothing.threshold, nothing.recall, nothing.lower, nothing.flagged) == (math.inf, 0, 0, 0)
        assert math.isnan(nothing.precision)


def test_recall_at_precision_bound_takes_299_without_a_mistake():
    # The one-sided bound is 0.05 ** (1 / n) >= 0.99, so n >= 298.1.
    assert d.recall_at_precision([1] * 298, [1] * 298, 0.99, bound=True).flagged == 0
    assert d.recall_at_precision([1] * 299, [1] * 299, 0.99, bound=True).flagged == 299


@given(confidences, st.floats(0.1, 1), st.booleans())
def test_recall_at_precision_keeps_its_promise(rows, precision, bound):
    score, truth = map(np.array, zip(*rows, strict=True))
    point = d.recall_at_precision(truth, score, precision, bound)
    flagged = score >= point.threshold
    assert flagged.sum() == point.flagged
    if point.flagged:
        assert truth[flagged].mean() == point.precision >= precision - 1e-6
        assert point.recall == pytest.approx(truth[flagged].sum() / truth.sum())
        assert point.lower <= point.precision


def test_localisation_report():
    report = d.localisation_report([1, 0, 1, 0], [0.9, 0.8, 0.7, 0.1], groups="aabb", n_boot=20)
    assert report["auc"].value == 0.75
    assert report["recall@p99"].value == 0.5
    assert all(x.low <= x.value <= x.high for x in report.values())

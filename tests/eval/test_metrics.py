"""Metrics of types, calibration, slices and evidence, by hand and beside scikit-learn's."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score, precision_recall_fscore_support

from stepsieve.data.trajectory import DUPLICATED, EXPLORATORY, INCORRECT, REDUNDANCY_TYPES, Label
from stepsieve.eval import metrics as m

types = st.integers(0, 3)
pairs_of_types = st.lists(st.tuples(types, st.integers(-1, 3)), min_size=1, max_size=60)
confidences = st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]), st.booleans()), min_size=1, max_size=60)


# --- StepCls ---------------------------------------------------------------------------------------------------------


def test_type_indices():
    assert m.type_indices([*REDUNDANCY_TYPES, None, "Necessary Step", ["a"]]).tolist() == [0, 1, 2, 3, -1, -1, -1]


def test_classification_by_hand():
    gold, predicted = [0, 0, 2, 3, 3, 3], [0, 2, 2, 3, 3, -1]
    assert m.accuracy(gold, predicted) == pytest.approx(4 / 6)
    assert m.confusion(gold, predicted).tolist() == [[1, 0, 1, 0], [0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 2]]
    scores = m.type_scores(gold, predicted)
    assert np.allclose(scores.precision, [1, np.nan, 1 / 2, 1], equal_nan=True)
    assert np.allclose(scores.recall, [1 / 2, np.nan, 1, 2 / 3], equal_nan=True)
    assert np.allclose(scores.f1, [2 / 3, np.nan, 2 / 3, 4 / 5], equal_nan=True)
    assert m.macro_f1(gold, predicted) == pytest.approx((2 / 3 + 2 / 3 + 4 / 5) / 3)


def test_a_failed_reply_is_never_right_even_without_gold():
    assert m.correct([-1, 0], [-1, 0]).tolist() == [False, True]


def test_nothing_is_undefined_not_an_error():
    assert math.isnan(m.accuracy([], []))
    assert math.isnan(m.macro_f1([], []))
    assert math.isnan(m.expected_calibration_error([], []))
    assert math.isnan(m.aurc([], []))
    assert m.confusion([], []).sum() == 0
    assert m.classification_report([], [], [], [])["accuracy"].n == 0


def test_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match="one prediction per item"):
        m.accuracy([0, 1], [0])


@given(pairs_of_types, st.randoms(use_true_random=False))
def test_classification_properties(rows, random):
    gold, predicted = np.array(rows).T
    assert m.accuracy(gold, predicted) == pytest.approx((gold == predicted).mean())
    counts = m.confusion(gold, predicted)
    assert counts.trace() == (gold == predicted).sum()
    assert counts.sum() == (predicted >= 0).sum()
    random.shuffle(rows)
    shuffled = np.array(rows).T
    assert m.macro_f1(gold, predicted) == pytest.approx(m.macro_f1(*shuffled))
    assert (m.confusion(*shuffled) == counts).all()


@given(pairs_of_types)
def test_f1_agrees_with_scikit_learn(rows):
    gold, predicted = np.array(rows).T
    precision, recall, f1, _ = precision_recall_fscore_support(gold, predicted, labels=range(4), zero_division=np.nan)
    ours = m.type_scores(gold, predicted)
    assert np.allclose(ours.precision, precision, equal_nan=True)
    assert np.allclose(ours.recall, recall, equal_nan=True)
    defined = np.isfinite(ours.f1)
    assert np.allclose(ours.f1[defined], f1[defined])
    present = sorted(set(gold))
    assert m.macro_f1(gold, predicted) == pytest.approx(f1_score(gold, predicted, labels=present, average="macro"))


def test_classification_report():
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 4, 60)
    predicted = np.where(rng.random(60) < 0.8, gold, 0)
    groups, folds = [("d", str(i // 3)) for i in range(60)], [i // 12 for i in range(60)]
    report = m.classification_report(gold, predicted, groups, rng.random(60), folds, n_boot=100)
    assert list(report)[:4] == ["accuracy", "macro_f1", "ece", "aurc"]
    assert {f"{s}/{t}" for s in ("precision", "recall", "f1") for t in REDUNDANCY_TYPES} == set(list(report)[4:])
    assert report["accuracy"].value == pytest.approx((gold == predicted).mean())
    assert all(0 <= x.low <= x.value <= x.high <= 1 and x.n == 60 for x in report.values())
    assert (
        m.classification_report(gold, predicted, groups, rng.random(60), folds, n_boot=100)["f1/Abnormal Step"]
        == (report["f1/Abnormal Step"])
    )


# --- calibration -----------------------------------------------------------------------------------------------------


def test_ece_by_hand():
    # Bin (11/15, 12/15] holds 0.8 twice (one right), bin (4/15, 5/15] holds 0.3 (wrong): (2 * 0.3 + 0.3) / 3.
    assert m.expected_calibration_error([0.8, 0.8, 0.3], [1, 0, 0]) == pytest.approx(0.3)
    # Over and under in one bin cancel: that is what the bins are for.
    assert m.expected_calibration_error([0.0, 1.0, 0.5, 0.5], [0, 1, 1, 0]) == 0


def test_reliability_by_hand():
    confidence, right, n = m.reliability([0.0, 0.4, 0.6, 1.0], [0, 1, 0, 1], n_bins=2)
    assert confidence.tolist() == [0.2, 0.8]
    assert right.tolist() == [0.5, 0.5]
    assert n.tolist() == [2, 2]


@given(st.integers(1, 20), st.integers(0, 20))
def test_ece_is_0_for_perfectly_calibrated(n, k):
    k = min(k, n)
    assert m.expected_calibration_error([k / n] * n, [1] * k + [0] * (n - k)) == pytest.approx(0)


def test_risk_coverage_by_hand():
    coverage, risk = m.risk_coverage([0.9, 0.5, 0.7], [1, 0, 0])
    assert np.allclose(coverage, [1 / 3, 2 / 3, 1])
    assert np.allclose(risk, [0, 1 / 2, 2 / 3])
    assert m.aurc([0.9, 0.5, 0.7], [1, 0, 0]) == pytest.approx((0 + 1 / 2 + 2 / 3) / 3)


@given(confidences, st.randoms(use_true_random=False))
def test_confidence_metrics_are_bounded_and_ignore_order(rows, random):
    first = [m.expected_calibration_error(*zip(*rows, strict=True)), m.aurc(*zip(*rows, strict=True))]
    random.shuffle(rows)
    again = [m.expected_calibration_error(*zip(*rows, strict=True)), m.aurc(*zip(*rows, strict=True))]
    assert np.allclose(first, again)
    assert all(0 <= x <= 1 for x in first)
    _, risk = m.risk_coverage(*zip(*rows, strict=True))
    assert risk[-1] == pytest.approx(1 - np.mean([right for _, right in rows]))


# --- slices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "level"), [
    (0, "<8"), (7, "<8"), (8, "8-30"), (30, "8-30"), (31, "31-53"), (53, "31-53"), (54, "54-76"), (76, "54-76"),
    (77, "77-99"), (99, "77-99"), (100, "100-122"), (122, "100-122"), (123, ">122"),
])  # fmt: skip
def test_length_level(n, level):
    assert m.length_level(n) == level


def test_slices():
    masks = m.slices(
        domain=["retail", "airline", "retail"], subset=["human", "human", "automated"], agent=[None, None, "a1"],
        n_messages=[100, 9, 9], types=[EXPLORATORY, DUPLICATED, EXPLORATORY], synthetic=[True, False, False],
    )  # fmt: skip
    assert {name: mask.astype(int).tolist() for name, mask in masks.items()} == {
        "all": [1, 1, 1], "natural": [0, 1, 1],
        "type/Duplicated Step": [0, 1, 0], "type/Exploratory Step": [1, 0, 1],
        "domain/airline": [0, 1, 0], "domain/retail": [1, 0, 1],
        "subset/automated": [0, 0, 1], "subset/human": [1, 1, 0], "agent/a1": [0, 0, 1],
        "length/8-30": [0, 1, 1], "length/100-122": [1, 0, 0],
    }  # fmt: skip
    assert list(masks)[:2] == ["all", "natural"]
    assert list(m.slices(domain=["d"], subset=[""], agent=[None], n_messages=[3])) == ["all", "domain/d", "length/<8"]


# --- EvidenceRet -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gold", "predicted", "same"), [
    ((4, 5), (4, 5), True), ((4, 5), (5, 4), False), ((3,), (3,), True), ((-1,), (-1,), True), ((-1,), (3,), False),
    ((4, 5, 8, 9), (8, 9, 4, 5), True),  # joint evidence in another order
    ((4, 5, 8, 9), (4, 8, 5, 9), False),  # the pairs broken up
    ((4, 5, 8, 9), (4, 5), False), ((4, 5), (4, 5, 8, 9), False), ((4, 5), (4, 5, 4, 5), False),
    ((4, 5, 8, 9), (4, 5, 4, 5), False), ((4, 5), None, False), ((4, 5), (4, 5, 6), False), ((4, 5), (), False),
])  # fmt: skip
def test_same_evidence(gold, predicted, same):
    assert m.same_evidence(gold, predicted) is same


def test_retrieval_needs_type_and_evidence():
    gold = [Label((6, 7), DUPLICATED, (4, 5, 2, 3)) for _ in range(4)]
    types = [DUPLICATED, INCORRECT, DUPLICATED, None]
    evidence = [(2, 3, 4, 5), (4, 5, 2, 3), (2, 3), None]
    joint, found = m.retrieval_correct(gold, types, evidence)
    assert joint.tolist() == [True, False, False, False]
    assert found.tolist() == [True, True, False, False]
    report = m.retrieval_report(gold, types, evidence, groups="abcd")
    assert {name: x.value for name, x in report.items()} == {
        "joint_accuracy": 0.25, "evidence_accuracy": 0.5, "type_accuracy": 0.5
    }  # fmt: skip

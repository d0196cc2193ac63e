"""Intervals and tests of differences: what they cover, and where they are undefined."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsieve.eval import detection as d
from stepsieve.eval import metrics as m
from stepsieve.eval.intervals import (
    Interval,
    bootstrap_any,
    bootstrap_sums,
    clopper_pearson,
    cluster_bootstrap,
    mcnemar,
    paired_bootstrap,
)


def test_value_is_the_mean_over_folds():
    x = cluster_bootstrap([1, 1, 1, 0], "abcd", folds=[0, 0, 0, 1])
    assert x.value == 0.5
    assert x.n == 4
    assert cluster_bootstrap([1, 1, 1, 0], "abcd").value == 0.75


def test_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for seed in range(100):
        # 60 tasks of 3 alike items each: taken as independent items the interval would be far too narrow.
        values = np.repeat(rng.random(60) < 0.7, 3)
        x = cluster_bootstrap(values, list(np.repeat(np.arange(60), 3)), seed, 300)
        covered += x.low <= 0.7 <= x.high
    assert covered >= 88


def test_interval_is_about_the_normal_one():
    values = np.tile([0, 1], 200)
    x = cluster_bootstrap(values, list(range(400)), n_boot=2000)
    assert (x.high - x.low) / 2 == pytest.approx(1.96 * 0.5 / 20, rel=0.1)


def test_a_cluster_in_several_folds_counts_alike_in_each():
    # One predictor, two folds with the same tasks: as wide as one fold alone, not narrower by sqrt(2).
    values = np.random.default_rng(0).random(50)
    one = cluster_bootstrap(values, list(range(50)))
    two = cluster_bootstrap(np.tile(values, 2), list(range(50)) * 2, folds=[0] * 50 + [1] * 50)
    assert (two.low, two.high) == pytest.approx((one.low, one.high))


def test_blocks_of_draws_change_nothing(monkeypatch):
    values, groups = np.random.default_rng(0).random(30), list(range(30))
    whole = cluster_bootstrap(values, groups)
    monkeypatch.setattr("stepsieve.eval.intervals._CELLS", 100)
    assert cluster_bootstrap(values, groups).to_dict() == pytest.approx(whole.to_dict())


def test_bootstraps_agree_with_each_other():
    rng = np.random.default_rng(0)
    gold, predicted = rng.integers(0, 4, 80), rng.integers(0, 4, 80)
    groups, folds = [f"t{i // 4}" for i in range(80)], [i // 40 for i in range(80)]
    fast = bootstrap_sums(m._type_parts(gold, predicted), m._macro_f1_of_sums, groups, 3, 50, folds)
    slow = bootstrap_any(lambda i: m.macro_f1(gold[i], predicted[i]), groups, 3, 50, folds)
    assert (fast.value, fast.low, fast.high) == pytest.approx((slow.value, slow.low, slow.high))


def test_undefined_folds_are_left_out():
    # Fold 1 holds one class only: its AUC is undefined.
    truth, score = np.array([1, 0, 1, 1]), np.array([0.9, 0.1, 0.5, 0.5])
    x = bootstrap_any(lambda i: d.localisation_auc(truth[i], score[i]), list("aabb"), folds=[0, 0, 1, 1], n_boot=20)
    assert x.value == 1


def test_empty_is_nan_and_none_in_json():
    x = cluster_bootstrap([], [])
    assert math.isnan(x.value)
    assert x.to_dict() == {"value": None, "low": None, "high": None, "n": 0}
    assert Interval(0.5, 0.25, 0.75, 8).to_dict() == {"value": 0.5, "low": 0.25, "high": 0.75, "n": 8}


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 2)), min_size=1, max_size=40),
    st.randoms(use_true_random=False),
)
def test_interval_properties(rows, random):
    def interval():
        values, groups, folds = zip(*rows, strict=True)
        return cluster_bootstrap(values, groups, 1, 50, folds)

    x = interval()
    assert 0 <= x.low <= x.value <= x.high <= 1
    random.shuffle(rows)
    again = interval()
    assert (again.value, again.low, again.high) == pytest.approx((x.value, x.low, x.high))


def test_groups_and_folds_are_one_per_item():
    with pytest.raises(ValueError, match="for each of 2 items"):
        cluster_bootstrap([0, 1], ["a"])


def test_paired_bootstrap():
    a, b = np.array([1, 1, 1, 0] * 20), np.array([1, 0, 1, 0] * 20)
    x = paired_bootstrap(a, b, list(range(80)))
    assert x.value == 0.25
    assert 0.1 < x.low < 0.25 < x.high < 0.4
    assert paired_bootstrap(a, a, list(range(80))) == Interval(0, 0, 0, 80)
    with pytest.raises(ValueError, match="same items"):
        paired_bootstrap([1], [1, 0], ["a"])


def test_mcnemar_by_hand():
    # 1 against 5 of 6 discordant: 2 * (C(6, 0) + C(6, 1)) / 2**6 = 14 / 64.
    a, b = [1, 0, 0, 0, 0, 0, 1, 0], [0, 1, 1, 1, 1, 1, 1, 0]
    assert mcnemar(a, b) == (1, 5, pytest.approx(14 / 64))
    assert mcnemar(b, a).p_value == mcnemar(a, b).p_value
    assert mcnemar(a, a) == (0, 0, 1.0)
    assert mcnemar([1, 0], [0, 1]).p_value == 1


def test_clopper_pearson_by_hand():
    assert clopper_pearson(0, 10) == clopper_pearson(0, 0) == 0
    assert clopper_pearson(10, 10) == pytest.approx(0.05 ** (1 / 10))
    # At the bound, 8 or more of 10 have probability 0.05: the textbook value is 0.4931.
    assert clopper_pearson(8, 10) == pytest.approx(0.4931, abs=1e-4)
    with pytest.raises(ValueError, match="from 0 to 2"):
        clopper_pearson(3, 2)

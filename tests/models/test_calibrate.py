import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stepsieve.models.calibrate import Platt, Temperature, from_dict

probabilities = hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(0, 1))


def softmax(logits):
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def test_temperature_finds_the_one_that_made_the_data():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (4000, 4))
    labels = np.array([rng.choice(4, p=p) for p in softmax(logits)])
    overconfident = softmax(logits * 3)
    fitted = Temperature.fit(overconfident, labels)
    assert fitted.temperature == pytest.approx(3, rel=0.1)
    assert np.allclose(fitted.transform(overconfident), softmax(logits), atol=0.05)


def test_temperature_grouped_equals_ungrouped_where_sizes_are_equal():
    rng = np.random.default_rng(1)
    p = softmax(rng.normal(0, 1, (50, 3)))
    labels = rng.integers(0, 3, 50)
    weights = rng.random(50)
    flat = Temperature.fit_grouped(np.log(p).ravel(), np.arange(51) * 3, np.arange(50) * 3 + labels, weights)
    assert flat.temperature == pytest.approx(Temperature.fit(p, labels, weights).temperature)


def test_temperature_by_hand():
    # Two questions of 2 and 3 candidates: softmax of (log 4, 0) / 2 is (2/3, 1/3).
    logits = [np.log(4), 0.0, 5.0, 5.0, 5.0]
    assert np.allclose(Temperature(2.0).transform_grouped(logits, [0, 2, 5]), [2 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3])
    assert np.allclose(Temperature(2.0).transform([[0.8, 0.2]]), [[2 / 3, 1 / 3]])


def test_temperature_without_anything_to_learn_changes_nothing():
    assert Temperature.fit(np.empty((0, 4)), []).temperature == 1
    assert Temperature.fit([[0.5, 0.5]], [0], weights=[0]).temperature == 1
    assert Temperature.fit_grouped([3.0, 1.0], [0, 1, 2], [0, 1]).temperature == 1
    assert Temperature.fit_grouped([3.0, 1.0], [0, 2], [-1]).temperature == 1
    assert Temperature().transform_grouped([], [0]).shape == (0,)


def test_weights_act_as_repeats():
    p, y = np.array([0.9, 0.8, 0.3, 0.6]), np.array([1, 0, 0, 1])
    w = np.array([3, 1, 2, 1])
    a, b = Platt.fit(p, y, w), Platt.fit(np.repeat(p, w), np.repeat(y, w))
    assert np.allclose(a.transform(p), b.transform(p), atol=1e-4)
    rows = np.stack([1 - p, p], axis=1)
    a, b = Temperature.fit(rows, y, w), Temperature.fit(np.repeat(rows, w, axis=0), np.repeat(y, w))
    assert a.temperature == pytest.approx(b.temperature, rel=1e-3)


def test_platt_calibrates():
    rng = np.random.default_rng(0)
    truth = rng.random(5000)
    labels = (rng.random(5000) < truth).astype(int)
    distorted = truth**3
    assert abs(Platt.fit(distorted, labels).transform(distorted) - truth).mean() < 0.06


def test_platt_stays_finite_on_perfect_separation_and_one_class():
    fitted = Platt.fit([0.0, 0.1, 0.9, 1.0], [0, 0, 1, 1])
    assert 0 < fitted.transform([0.0])[0] < 0.5 < fitted.transform([1.0])[0] < 1
    assert np.isfinite(Platt.fit([0.2, 0.7], [1, 1]).transform([0.5])).all()
    assert Platt.fit([], []) == Platt()


def test_never_upside_down():
    reversed_labels = ([0.1, 0.2, 0.8, 0.9], [1, 1, 0, 0])
    assert (np.diff(Platt.fit(*reversed_labels).transform(np.linspace(0, 1, 20))) >= 0).all()


@given(probabilities, st.randoms(use_true_random=False))
def test_monotone_bounded_finite(p, random):
    labels = np.array([random.randint(0, 1) for _ in p])
    grid = np.array([-1.0, 0.0, 1e-12, 0.3, 0.5, 1 - 1e-12, 1.0, 2.0])
    out = Platt.fit(p, labels).transform(grid)
    assert ((out >= 0) & (out <= 1)).all()
    assert (np.diff(out) >= 0).all()
    rows = np.stack([p, 1 - p], axis=1)
    out = Temperature.fit(rows, labels).transform(rows)
    assert np.allclose(out.sum(axis=1), 1)
    assert ((rows[:, 0] > rows[:, 1] + 1e-6) <= (out[:, 0] > out[:, 1])).all()


@pytest.mark.parametrize("calibrator", [Temperature(1.7), Platt(0.5, -0.1)])
def test_json_round_trip(calibrator):
    assert from_dict(json.loads(json.dumps(calibrator.to_dict()))) == calibrator


@pytest.mark.parametrize("calibrator", [Temperature(2.0), Platt()])
def test_nan_never_comes_out(calibrator):
    p = np.array([np.nan, 0.5, np.inf, -np.inf])
    out = calibrator.transform(np.stack([p, p], axis=1) if isinstance(calibrator, Temperature) else p)
    assert np.isfinite(out).all()


@pytest.mark.parametrize("record", [
    {}, {"kind": "pickle"}, {"kind": "temperature"}, {"kind": "temperature", "temperature": 0},
    {"kind": "platt", "slope": -1, "intercept": 0}, {"kind": "platt", "slope": None, "intercept": 0},
    {"kind": "temperature", "temperature": float("nan")},
])  # fmt: skip
def test_bad_records_are_refused(record):
    with pytest.raises(ValueError, match="expected"):
        from_dict(record)


@pytest.mark.parametrize("offsets", [[], [0, 2], [1, 3], [0, 0, 3], [0, 4]])
def test_bad_offsets_are_refused(offsets):
    with pytest.raises(ValueError, match="offsets"):
        Temperature().transform_grouped([1.0, 2.0, 3.0], offsets)


@pytest.mark.parametrize("labels", [[0], [0, 2], [-1, 0]])
def test_bad_labels_are_refused(labels):
    with pytest.raises(ValueError, match="2 labels from 0 to 1"):
        Temperature.fit([[0.5, 0.5], [0.5, 0.5]], labels)

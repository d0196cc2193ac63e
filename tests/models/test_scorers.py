"""What every backend promises, and the fixed answers of the rules."""

import numpy as np
import pytest

from stepsieve.data.errors import DataError
from stepsieve.data.features import PAIR_FEATURES, STEP_FEATURES
from stepsieve.data.trajectory import ABNORMAL, DUPLICATED, EXPLORATORY, INCORRECT, REDUNDANCY_TYPES
from stepsieve.models.scorer import BACKENDS, BASELINES, create

NAMES = tuple(feature.name for feature in PAIR_FEATURES)
OPTIONS = {"gbdt": {"rounds": 8, "threads": 1}}
FEATURE_BACKENDS = [name for name in BACKENDS if name != "encoder"]  # that one has columns of its own: test_fusion.py
LEARNED = ("linear", "gbdt")


def made(backend, n_classes=4, seed=0):
    return create(backend, NAMES, n_classes, seed, **OPTIONS.get(backend, {}))


def rows(n=240, classes=(0, 1, 2, 3), seed=0):
    """Features of which column k is high for class k, with NaN in places and in one whole column."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, size=n)
    features = rng.normal(size=(n, len(NAMES))).astype(np.float32)
    features[:, 4:][rng.random((n, len(NAMES) - 4)) < 0.1] = np.nan
    features[:, 5] = np.nan
    features[np.arange(n), labels] += 6
    return features, labels.astype(np.int64), np.ones(n)


@pytest.mark.parametrize("backend", FEATURE_BACKENDS)
def test_probabilities_sum_to_one_and_survive_saving(backend, tmp_path):
    features, labels, weights = rows()
    scorer = made(backend)
    scorer.fit(features, labels, weights)
    probabilities = scorer.predict_proba(features)
    assert probabilities.shape == (len(features), 4)
    assert np.isfinite(probabilities).all()
    assert probabilities.min() >= 0
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-9)
    assert scorer.predict_proba(features[:0]).shape == (0, 4)
    # A row's answer does not depend on the rows beside it.
    np.testing.assert_allclose(scorer.predict_proba(features[3:4]), probabilities[3:4], atol=1e-12)

    scorer.save(tmp_path)
    again = made(backend, seed=99)
    again.load(tmp_path)
    np.testing.assert_array_equal(again.predict_proba(features), probabilities)
    assert {path.suffix for path in tmp_path.iterdir()} <= {".txt", ".json", ".safetensors"}


@pytest.mark.parametrize("backend", FEATURE_BACKENDS)
def test_the_same_seed_gives_the_same_model(backend):
    features, labels, weights = rows()
    first, second = made(backend, seed=3), made(backend, seed=3)
    for scorer in (first, second):
        scorer.fit(features, labels, weights)
    np.testing.assert_array_equal(first.predict_proba(features), second.predict_proba(features))


@pytest.mark.parametrize("backend", LEARNED)
def test_what_can_be_learned_is_learned(backend):
    scorer = made(backend)
    scorer.fit(*rows())
    features, labels, _ = rows(seed=1)
    assert (scorer.predict_proba(features).argmax(axis=1) == labels).mean() > 0.75


@pytest.mark.parametrize("backend", ["majority", *LEARNED])
@pytest.mark.parametrize("classes", [(0, 1, 3), (1, 3), (2,)])
def test_a_class_without_examples_stays_improbable(backend, classes):
    features, labels, weights = rows(classes=classes)
    scorer = made(backend)
    scorer.fit(features, labels, weights)
    probabilities = scorer.predict_proba(features)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-9)
    assert set(probabilities.argmax(axis=1)) <= set(classes)
    missing = [k for k in range(4) if k not in classes]
    assert probabilities[:, missing].max() < 0.05


@pytest.mark.parametrize("backend", LEARNED)
def test_two_classes_and_few_rows(backend):
    features, labels, weights = rows(n=6, classes=(0, 1))
    scorer = made(backend, n_classes=2)
    scorer.fit(features, labels, weights)
    np.testing.assert_allclose(scorer.predict_proba(features).sum(axis=1), 1, atol=1e-9)


@pytest.mark.parametrize("backend", ["majority", *LEARNED])
def test_weights_count(backend):
    features, labels, _ = rows(n=400, classes=(0, 1))
    features[:, :4] = 0  # nothing to learn but how much each class weighs
    scorer = made(backend)
    scorer.fit(features, labels, np.where(labels == 1, 1.0, 0.01))
    assert scorer.predict_proba(features)[:, 1].mean() > 0.9


def test_majority_gives_the_frequencies():
    scorer, features = made("majority"), np.zeros((4, len(NAMES)), dtype=np.float32)
    scorer.fit(features, np.array([3, 3, 3, 0]), np.ones(4))
    assert scorer.predict_proba(features)[0] == pytest.approx([0.25, 0, 0, 0.75], abs=1e-5)


@pytest.mark.parametrize(
    ("failed", "same_call", "after", "answer"),
    [
        (1, 1, 1, ABNORMAL),  # failed, and the same call comes again
        (0, 1, 0, DUPLICATED),  # the same call stood before
        (1, 1, 0, DUPLICATED),
        (0, 0, 1, EXPLORATORY),  # something later made it idle
        (0, 1, 1, EXPLORATORY),
        (1, 0, 1, EXPLORATORY),
        (0, 0, 0, INCORRECT),  # something earlier ruled it out
        (1, 0, 0, INCORRECT),
    ],
)
def test_rules(failed, same_call, after, answer):
    row = np.full((1, len(NAMES)), np.nan, dtype=np.float32)
    known = {"error.failed": failed, "evidence.same_call": same_call, "evidence.after": after}
    for name, value in known.items():
        row[0, NAMES.index(name)] = value
    probabilities = made("rules").predict_proba(row)[0]
    assert REDUNDANCY_TYPES[probabilities.argmax()] == answer
    assert probabilities.sum() == pytest.approx(1)


def table(names, *known):
    """Rows with NaN but for the values known, by feature name with a dot for two underscores."""
    rows = np.full((len(known), len(names)), np.nan, dtype=np.float32)
    for row, values in zip(rows, known, strict=True):
        for name, value in values.items():
            row[names.index(name.replace("__", ".", 1))] = value
    return rows


def test_rules_find_repeated_calls_and_failures_that_succeed_later():
    names = [feature.name for feature in STEP_FEATURES]
    rows = table(
        names,
        {"repeat__same_call_before": 1, "error__failed": 0, "repeat__succeeds_after": 0},
        {"repeat__same_call_before": 0, "error__failed": 1, "repeat__succeeds_after": 1},
        {"repeat__same_call_before": 0, "error__failed": 1, "repeat__succeeds_after": 0},
        {"repeat__same_call_before": 0, "error__failed": 0, "repeat__succeeds_after": 1},
    )
    probabilities = create("rules", names, 2).predict_proba(rows)
    assert probabilities.argmax(axis=1).tolist() == [1, 1, 0, 0]
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)


def test_rules_prefer_the_identical_call_then_the_next_of_the_tool_then_the_next():
    def candidate(same_call, same_tool, after, gap):
        return {
            "evidence__same_call": same_call,
            "evidence__same_tool": same_tool,
            "evidence__after": after,
            "evidence__calls_between": gap,
        }

    ranked = [
        candidate(1, 1, 0, 5),  # the earliest identical call
        candidate(1, 1, 0, 1),
        candidate(1, 1, 1, 0),  # an identical call later
        candidate(0, 1, 1, 0),  # the next call of the tool
        candidate(0, 1, 1, 4),
        candidate(0, 0, 1, 0),  # the next call
        candidate(0, 0, 1, 4),
        candidate(0, 1, 0, 0),  # what came before, of whatever tool
    ]
    probabilities = create("rules", NAMES, 2).predict_proba(table(NAMES, *ranked))
    assert (np.diff(probabilities[:, 1]) < 0).all()
    assert probabilities.min() >= 0
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)


def test_rules_have_no_answer_for_other_numbers_of_classes():
    with pytest.raises(ValueError, match="classes"):
        made("rules", n_classes=5)


def test_an_unknown_backend_names_the_known_ones():
    with pytest.raises(DataError, match="gbdt"):
        create("oracle", NAMES, 4)


def test_an_unfitted_model_says_so(tmp_path):
    with pytest.raises(RuntimeError):
        made("gbdt").predict_proba(np.zeros((1, len(NAMES)), dtype=np.float32))
    with pytest.raises(RuntimeError):
        made("gbdt").save(tmp_path)


def test_the_baselines_are_backends():
    assert set(BASELINES) < set(BACKENDS)


def test_the_linear_model_is_that_of_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    features, labels, _ = rows(n=400)
    weights = np.random.default_rng(4).random(400) + 0.1
    own = create("linear", NAMES, 4, c=0.3)
    own.fit(features, labels, weights)
    raw = features.astype(np.float64)
    raw = np.hstack([np.sign(raw) * np.log1p(np.abs(raw)), np.isnan(raw)])
    table = (np.where(np.isnan(raw), own.mean, raw) - own.mean) / own.scale
    theirs = linear_model.LogisticRegression(C=0.3, tol=1e-8, max_iter=5000).fit(table, labels, sample_weight=weights)
    np.testing.assert_allclose(own.predict_proba(features), theirs.predict_proba(table), atol=1e-3)


# --- rules of actions and prefixes -----------------------------------------------------------------------------------


def test_a_failed_or_much_repeated_call_is_one_level_below_the_best():
    rules = create("rules", ("action.text", "action.like_earlier", "error.failed"), 3)
    table = np.array([[0, np.nan, 0], [0, 0.9, 0], [0, 0.1, 1], [1, np.nan, np.nan]], dtype=np.float32)
    assert rules.predict_proba(table).argmax(axis=1).tolist() == [2, 1, 1, 2]
    np.testing.assert_allclose(rules.predict_proba(table).sum(axis=1), 1.0)


@pytest.mark.parametrize("speaks_for", [0, 1])
def test_trouble_speaks_for_the_class_that_it_came_with(speaks_for, tmp_path):
    names = ("progress.last_failed", "progress.last_alike")
    table = np.array([[1, 0], [0, 0.9], [0, 0.1], [0, np.nan]], dtype=np.float32)
    labels = np.array([1, 1, 0, 0]) if speaks_for else np.array([0, 0, 1, 1])
    rules = create("rules", names, 2)
    rules.fit(table, labels, np.ones(4))
    rules.save(tmp_path)
    again = create("rules", names, 2)
    again.load(tmp_path)
    for own in (rules, again):
        assert own.predict_proba(table).argmax(axis=1).tolist() == labels.tolist()

"""LightGBM without its package: the same numbers to the last bit, and errors that are none of C."""

import pickle

import lightgbm
import numpy as np
import pytest

from stepsieve.models import trees
from stepsieve.models.trees import Trees


def model(n_classes, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(300, 6)).astype(np.float32)
    features[rng.random(features.shape) < 0.2] = np.nan
    labels = np.nan_to_num(features[:, 0] * 2).astype(int) % n_classes
    objective = {"objective": "binary"} if n_classes == 2 else {"objective": "multiclass", "num_class": n_classes}
    parameters = {**objective, "num_threads": 1, "verbosity": -1, "min_data_in_leaf": 3}
    return lightgbm.train(parameters, lightgbm.Dataset(features, labels), 12), features


@pytest.mark.parametrize("n_classes", [2, 4])
def test_predictions_are_those_of_the_package(n_classes):
    booster, features = model(n_classes)
    own = Trees(booster.model_to_string())
    expected = booster.predict(features)
    assert own.outputs == (1 if n_classes == 2 else n_classes)
    np.testing.assert_array_equal(own.predict(features), expected)
    np.testing.assert_array_equal(own.predict(features, threads=2), expected)
    np.testing.assert_array_equal(own.predict(features[7:8]), expected[7:8])
    # Slices and other types are copied into place first.
    wide = np.hstack([features, features])
    np.testing.assert_array_equal(own.predict(wide[::2, 6:]), expected[::2])
    np.testing.assert_array_equal(own.predict(np.asfortranarray(features)), expected)


def test_a_model_goes_to_another_process():
    booster, features = model(2)
    own = Trees(booster.model_to_string())
    again = pickle.loads(pickle.dumps(own))
    np.testing.assert_array_equal(again.predict(features), own.predict(features))


@pytest.mark.parametrize("text", ["", "tree\n", "nothing of the kind", "tree\nversion=v4\nnum_class=1\n"])
def test_a_text_that_is_no_model(text):
    with pytest.raises(ValueError, match="LightGBM"):
        Trees(text)


def test_too_few_columns():
    booster, features = model(2)
    with pytest.raises(ValueError, match="LightGBM"):
        Trees(booster.model_to_string()).predict(features[:, :4])


def test_the_library_is_the_packages_own_where_it_lies_elsewhere(monkeypatch):
    monkeypatch.setattr(trees, "LIBRARIES", ())
    trees.library.cache_clear()
    booster, features = model(2)
    np.testing.assert_array_equal(Trees(booster.model_to_string()).predict(features), booster.predict(features))
    trees.library.cache_clear()

"""Explanations: what moved a prediction, in words."""

from dataclasses import replace

import numpy as np
import orjson
import pytest

from stepsieve.data.errors import DataError
from stepsieve.data.features import RETRIEVAL_FEATURES
from stepsieve.data.features.candidates import candidates
from stepsieve.data.features.index import Index
from stepsieve.eval import explain
from stepsieve.eval.explain import Explainer, in_words
from stepsieve.models.judge import RET, Judge


def read(path):
    return [orjson.loads(row) for row in path.read_bytes().splitlines()]


def test_explanations_say_what_moved_a_prediction(command, corpus, predicted, tmp_path):
    assert command("--input", corpus, "--output", tmp_path / "o.jsonl", "--explain")[0] == 0
    rows = read(tmp_path / "o.jsonl")
    known = {feature.name for feature in RETRIEVAL_FEATURES}
    for prediction in (prediction for row in rows for prediction in row["predictions"]):
        because = prediction.pop("because")
        assert 1 <= len(because) <= 5
        assert {reason["feature"] for reason in because} <= known
        sizes = [abs(reason["effect"]) for reason in because]
        assert sizes == sorted(sizes, reverse=True)
        assert all(": " in reason["says"] for reason in because)
    assert rows == predicted(corpus)


def test_effects_add_up_to_what_the_heads_say(judge, runs, monkeypatch):
    """With every feature shown and every candidate a rival, they are log P(step) P(evidence) less where that starts."""
    monkeypatch.setattr(explain, "SHOWN", 10**6)
    monkeypatch.setattr(explain, "RIVALS", 10**6)
    monkeypatch.setattr(Explainer, "_types", lambda self, features, names: np.zeros(features.shape))
    raw = Judge(judge.heads)
    raw.triple = replace(raw.triple, slope=1.0, intercept=0.0)
    found = raw.detect_batch(runs[:6], everything=True)
    rest = []
    for run, own, reasons in zip(runs, found, Explainer(judge).explain(runs[:6], found), strict=False):
        for prediction, because in zip(own, reasons, strict=True):
            type_given = judge.classify(run, prediction.step, prediction.evidence).confidence
            alike = 1 / len(candidate_references(run, prediction.step))
            said = prediction.confidence / type_given / alike
            rest.append(np.log(said) - sum(reason["effect"] for reason in because))
    # What is left is the same for all: log P(redundant) of the mean of training.
    assert np.ptp(rest) < 0.01


def candidate_references(run, step):
    index = Index([run])
    return candidates(index, np.array([index.row(0, step)])).question


def test_only_gbdt_heads_can_be_explained(judge):
    class Other:
        pass

    heads = {**judge.heads, RET: replace(judge.heads[RET], backend="encoder", scorer=Other())}
    with pytest.raises(DataError, match="'encoder' for 'ret'"):
        Explainer(Judge(heads))


def test_every_feature_has_words():
    for feature in RETRIEVAL_FEATURES:
        for value in (0.0, 1.0, float("nan")):
            words = in_words(feature, value)
            assert "\n" not in words
            assert feature.name not in words

"""Fitting: calibration and cutoffs by hand, and what trains each scorer."""

from dataclasses import replace

import numpy as np
import pytest

from stepsieve.data.errors import DataError
from stepsieve.data.simulate import simulate
from stepsieve.data.trajectory import DUPLICATED, Label, Message, Trajectory
from stepsieve.models.calibrate import Temperature, log_probabilities
from stepsieve.models.decode import Cutoff, Prediction
from stepsieve.models.judge import CLS, DET, RET
from stepsieve.train import fit
from stepsieve.train.config import TrainConfig
from stepsieve.train.examples import Table
from stepsieve.train.fit import Training, safe_cutoff
from stepsieve.train.heads import HEADS

# --- cutoffs ---------------------------------------------------------------------------------------------------------

SCORES = np.array([0.9, 0.8, 0.7, 0.6, 0.5])
TRUTH = np.array([True, True, False, True, False])


@pytest.mark.parametrize(
    ("wanted", "cutoff"),
    [
        (1.0, 0.8),  # 2 of 2
        (0.76, 0.8),
        (0.75, 0.6),  # 3 of 4, although 2 of 3 above it fell short
        (0.6, 0.5),  # 3 of 5
    ],
)
def test_the_safe_cutoff_is_the_least_that_keeps_the_precision(wanted, cutoff):
    found, bound = safe_cutoff(SCORES, TRUTH, wanted)
    assert found == cutoff
    assert 0 < bound < 1


def test_the_bound_of_the_safe_cutoff_is_clopper_pearson():
    # All of n right: the bound b has b ** n = 0.025 (two-sided) or 0.05 (one-sided).
    found, bound = safe_cutoff(np.linspace(0.5, 1, 100), np.ones(100, dtype=bool), 0.99)
    assert found == 0.5
    assert bound == pytest.approx(0.025 ** (1 / 100)) or bound == pytest.approx(0.05 ** (1 / 100))


@pytest.mark.parametrize("truth", [[False, True, True], [False, False, False]])
def test_no_safe_cutoff(truth):
    assert safe_cutoff(np.array([0.9, 0.5, 0.1]), np.array(truth), 0.99) == (None, 0.0)


def test_equal_scores_stand_or_fall_together():
    assert safe_cutoff(np.array([0.9, 0.9, 0.5]), np.array([True, False, True]), 0.9) == (None, 0.0)


def triples(*levels):
    """A run of which the even steps are redundant, and a prediction for each step: right for them, with this level."""
    labels = tuple(Label((4 * k, 4 * k + 1), DUPLICATED, (-1,)) for k in range((len(levels) + 1) // 2))
    own = [Prediction((2 * k, 2 * k + 1), DUPLICATED, (-1,), level, level) for k, level in enumerate(levels)]
    run = Trajectory(str(levels), (Message("user", "please"),), labels=labels)
    return run, sorted(own, key=lambda prediction: -prediction.confidence)


CLEAN = (replace(triples(0.9)[0], labels=()), triples(0.9, 0.2)[1])
"""A run in which nothing was redundant, and what was predicted for it."""


@pytest.mark.parametrize(
    ("ranked", "threshold", "first"),
    [
        # Right, wrong, right: only the wrong one costs, and the least threshold without it finds most.
        ([triples(0.9, 0.4, 0.8)], 0.45, max(fit.FIRSTS)),
        ([triples(0.9, 0.12, 0.8)], 0.15, max(fit.FIRSTS)),
        # The best stands alone whatever the threshold: nothing to choose, so that all are as good.
        ([triples(0.9)], 0.05, max(fit.FIRSTS)),
        # Above the last wrong one of any run: a reply is not the worse for the right ones that it leaves out.
        ([triples(0.9, 0.1, 0.3), triples(0.9, 0.6, 0.95), triples(0.9, 0.62, 0.95)], 0.65, max(fit.FIRSTS)),
        # A run of which the best is right must not be left empty: what is demanded of the best is what it has.
        ([triples(0.9, 0.4, 0.8), triples(0.12)], 0.45, 0.1),
        ([triples(0.9, 0.4, 0.8), triples(0.01)], 0.45, 0.0),
        # Runs without labels have no say, and without any the default holds.
        ([CLEAN, triples(0.9, 0.4)], 0.45, max(fit.FIRSTS)),
        ([CLEAN], 0.5, 0.0),
        ([], 0.5, 0.0),
    ],
)
def test_the_best_cutoff_by_hand(ranked, threshold, first):
    assert fit._best_cutoff(ranked) == Cutoff(threshold, first)


@pytest.mark.parametrize("wanted", [None, 0.7])
def test_settings_of_detection(wanted):
    settings = fit._detection_settings([triples(0.9, 0.4, 0.8), triples(0.95, 0.3)], wanted)
    assert set(settings) == {"cutoff", "safe_bound", "triple"}
    assert settings["cutoff"]["prune"] is (wanted is not None)
    # Redundant: 0.95, 0.9, 0.8; necessary: 0.4, 0.3. At 0.7 one error more is allowed: 3 of 4.
    assert settings["cutoff"]["safe"] == (0.8 if wanted is None else 0.4)
    assert settings["triple"]["slope"] > 0


# --- temperature -----------------------------------------------------------------------------------------------------


class Fixed:
    """A scorer that has learned nothing: the second column is the first feature."""

    def predict_proba(self, features):
        return np.stack([1 - features[:, 0], features[:, 0]], axis=1).astype(np.float64)


def table(scores, labels, example):
    n = len(scores)
    features = np.array(scores, dtype=np.float32)[:, None]
    own, of_one = np.array(example), np.zeros(n, dtype=np.int64)
    return Table(features, np.array(labels), np.ones(n), own, of_one, np.ones(n, dtype=bool))


def test_the_temperature_of_candidates_is_that_of_their_odds():
    # Examples keep the numbers of the whole corpus: they need not begin at 0 or be without gaps.
    one = table([0.9, 0.2, 0.6, 0.5, 0.1], [1, 0, 0, 1, 0], [3, 3, 7, 7, 7])
    two = table([0.7, 0.8], [0, 1], [1, 1])
    found = fit._calibration(HEADS[RET], [(one, Fixed()), (two, Fixed()), (table([], [], []), Fixed())])
    logs = [log_probabilities(Fixed().predict_proba(part.features)) for part in (one, two)]
    odds = np.concatenate([log[:, 1] - log[:, 0] for log in logs])
    assert found == Temperature.fit_grouped(odds, [0, 2, 5, 7], [0, 3, 6])
    assert found.temperature != 1


def test_the_temperature_of_classes():
    one = table([0.9, 0.8, 0.7, 0.9], [1, 1, 1, 0], range(4))
    found = fit._calibration(HEADS[DET], [(one, Fixed())])
    assert found == Temperature.fit(Fixed().predict_proba(one.features), one.labels)


def test_nothing_held_out_is_not_calibrated():
    assert fit._calibration(HEADS[RET], []) == Temperature()
    assert fit._calibration(HEADS[CLS], [(table([], [], []), Fixed())]) == Temperature()


# --- what trains what ------------------------------------------------------------------------------------------------


class Traced:
    """A scorer that records the rows it is fitted on and the rows it is asked about."""

    def __init__(self, n_classes):
        self.n_classes, self.fitted, self.asked = n_classes, None, []

    def fit(self, features, labels, weights):
        self.fitted = features

    def predict_proba(self, features):
        self.asked.append(features)
        return np.full((len(features), self.n_classes), 1 / self.n_classes)


@pytest.fixture
def traced(monkeypatch):
    """All scorers that are made, in order."""
    made = []

    def create(backend, names, n_classes, seed, **options):
        made.append(Traced(n_classes))
        return made[-1]

    monkeypatch.setattr(fit, "create", create)
    return made


def marked(training):
    """The tables with the number of the trajectory in the first column; -1 in that of simulated examples."""
    for name, own in training.tables.items():
        own.features[:, 0] = own.trajectory
        training.extra[name].features[:, 0] = -1
    return training


def test_no_task_of_the_test_and_no_held_out_one_is_trained_on(traced, monkeypatch):
    # Asked through a judge, a scorer gets features that say nothing of which run they are from.
    monkeypatch.setattr(fit.Judge, "retrieve_batch", lambda _, runs, steps: [list(map(a_guess, own)) for own in steps])
    runs = simulate(30, seed=1)
    config = TrainConfig(inner_folds=3)
    training = marked(Training(runs, (CLS, RET), simulate(8, seed=2), config))
    groups = sorted({run.group for run in runs})
    test = set(groups[::3])
    train = np.array([number for number, run in enumerate(runs) if run.group not in test])
    training.fit("any", train)
    # Three inner folds and the whole, for each of the two heads.
    assert len(traced) == 8
    inner = fit._inner_folds(runs, train, config)
    seen = []
    for scorer in traced:
        used = {int(number) for number in scorer.fitted[:, 0]} - {-1}
        assert used <= set(train.tolist())
        assert (scorer.fitted[:, 0] == -1).any()
        for asked in scorer.asked:
            tested = {int(number) for number in asked[:, 0]}
            assert -1 not in tested
            assert not {runs[k].group for k in tested} & {runs[k].group for k in used}
            seen.append(tested)
    labelled = [{int(k) for k in train[inner == fold] if runs[k].labels} for fold in range(3)]
    assert sorted(map(sorted, seen)) == sorted(map(sorted, labelled * 2))


def a_guess(step):
    return Prediction(step, DUPLICATED, (-1,), 0.5, 1.0)


def test_detection_is_calibrated_on_every_step_of_the_training_runs_alone(traced, monkeypatch):
    runs = simulate(20, seed=1)
    answered = []
    monkeypatch.setattr(fit, "_detection_settings", lambda own, precision: answered.extend(own) or {})
    training = Training(runs, (CLS, RET, DET), [], TrainConfig(inner_folds=2))
    train = np.array([number for number, run in enumerate(runs) if run.group not in {runs[0].group, runs[1].group}])
    training.fit("any", train)
    assert sorted(run.id for run, _ in answered) == sorted(runs[number].id for number in train)
    for run, own in answered:
        assert sorted(prediction.step for prediction in own) == sorted(step.reference for step in run.steps)


def test_inner_folds_are_grouped():
    runs = [run for seed in range(3) for run in simulate(20, seed=seed)]
    runs = [replace(run, task_id=str(number % 9)) for number, run in enumerate(runs)]
    train = np.arange(5, len(runs))
    inner = fit._inner_folds(runs, train, TrainConfig(inner_folds=4))
    assert set(inner.tolist()) == set(range(4))
    of_group = {}
    for number, fold in zip(train.tolist(), inner.tolist(), strict=True):
        assert of_group.setdefault(runs[number].group, fold) == fold


@pytest.mark.parametrize(("folds", "tasks"), [(1, 9), (3, 2)])
def test_too_few_tasks_for_inner_folds(folds, tasks):
    runs = [replace(run, domain="desk", task_id=str(k % tasks)) for k, run in enumerate(simulate(10))]
    assert fit._inner_folds(runs, np.arange(10), TrainConfig(inner_folds=folds)).tolist() == [-1] * 10


def test_nothing_to_train_on():
    runs = [run for run in simulate(60, seed=4) if run.labels == ()][:3]
    assert runs
    with pytest.raises(DataError, match="expected labelled steps to train cls on, found none"):
        Training(runs, (CLS,), [], TrainConfig()).fit("gbdt", np.arange(len(runs)))

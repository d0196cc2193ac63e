"""EvidenceRet and StepDet through the whole loop: what is written, and that the figures follow from the predictions."""

from dataclasses import replace

import numpy as np
import orjson
import pytest

from stepsieve.data.simulate import simulate
from stepsieve.data.splits import make_folds
from stepsieve.data.trajectory import DUPLICATED
from stepsieve.eval import detection, metrics
from stepsieve.eval.results import read
from stepsieve.eval.scores import match, score
from stepsieve.models.decode import Cutoff, Prediction
from stepsieve.models.judge import CLS, DET, RET, Judge
from stepsieve.train import loop
from stepsieve.train.config import GbdtOptions, TrainConfig
from stepsieve.train.tasks import TASKS, Answered, as_triple, report_steps

SIZE, FOLDS = 40, 2


def config(out, **changes):
    gbdt = GbdtOptions(rounds=6, learning_rate=0.3, threads=1)
    base = TrainConfig(simulated=SIZE, folds=FOLDS, inner_folds=2, baselines=False, gbdt=gbdt, out=str(out))
    return replace(base, **changes)


@pytest.fixture(scope="module")
def corpus():
    return [run for run in simulate(SIZE, 0) if run.labels is not None]


@pytest.fixture(scope="module")
def folds(corpus):
    """Trajectory id -> the fold that tests it."""
    made = make_folds(corpus, "cv", 0, FOLDS)
    return {corpus[number].id: fold.name for fold in made for number in fold.test}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """EvidenceRet and StepDet, one run each into its own folder."""
    out = tmp_path_factory.mktemp("tasks")
    for name in (RET, DET):
        loop.train([TASKS[name]], config(out / name))
    return out


def figures(trained, task):
    found = orjson.loads((trained / task / "metrics.json").read_bytes())
    assert list(found) == [task]
    assert list(found[task]) == ["cv"]
    return found[task]["cv"]["gbdt"]


def items_of(trained, task, corpus):
    return match(read(trained / task / "predictions" / f"{task}-cv-gbdt.json"), corpus)


def over_folds(values, ids, folds):
    """The mean over folds of the mean in each."""
    names = np.array([folds[name] for name in ids])
    return np.mean([values[names == name].mean() for name in sorted(set(names))])


# --- EvidenceRet -----------------------------------------------------------------------------------------------------


def test_the_figures_of_evidence_ret(trained, corpus):
    found = figures(trained, RET)
    assert {"joint_accuracy", "evidence_accuracy", "type_accuracy", "ece"} <= set(found)
    assert {"joint_accuracy[natural]", "evidence_accuracy[natural]"} <= set(found)
    assert {name for name in found if name.startswith("joint_accuracy[type/")}
    for record in found.values():
        assert set(record) == {"value", "low", "high", "n"}
    assert found["joint_accuracy"]["n"] == sum(len(run.labels) for run in corpus)
    assert found["joint_accuracy"]["value"] <= found["evidence_accuracy"]["value"]
    assert found["joint_accuracy"]["value"] > 0.3


def test_the_predictions_of_evidence_ret_give_the_same_figures(trained, corpus, folds):
    items = items_of(trained, RET, corpus)
    assert (items.task, len(items), items.foreign) == (RET, items.asked, 0)
    ids = [run.id for run in items.runs]
    joint, evidence = metrics.retrieval_correct(items.labels, items.types, items.evidence)
    found = figures(trained, RET)
    assert found["joint_accuracy"]["value"] == pytest.approx(over_folds(joint, ids, folds))
    assert found["evidence_accuracy"]["value"] == pytest.approx(over_folds(evidence, ids, folds))
    assert score(items)["all"]["joint_accuracy"] == pytest.approx(joint.mean())


# --- StepDet ---------------------------------------------------------------------------------------------------------


def test_the_figures_of_step_det(trained, corpus):
    found = figures(trained, DET)
    assert {"p@1", "p@5", "p@10", "avg_p@k", "auc", "ap", "ece"} <= set(found)
    assert {"prune_precision", "prune_recall", "prune_saved"} <= set(found)
    assert any(name.endswith("/positives") for name in found)
    assert found["avg_p@k"]["n"] == len(corpus)
    mean = np.mean([found[name]["value"] for name in ("p@1", "p@5", "p@10")])
    assert found["avg_p@k"]["value"] == pytest.approx(mean)


def test_the_predictions_of_step_det_give_the_same_figures(trained, corpus, folds):
    items = items_of(trained, DET, corpus)
    assert (items.task, len(items)) == (DET, len(corpus))
    ids = [run.id for run in items.runs]
    found, scores = figures(trained, DET), detection.detection_scores(items.triples, items.gold)
    for name in ("p@1", "p@5", "p@10", "avg_p@k"):
        assert found[name]["value"] == pytest.approx(over_folds(scores[name], ids, folds))
        assert score(items)["all"][name] == pytest.approx(scores[name].mean())
    assert any(len(own) > 1 for own in items.triples)


@pytest.mark.parametrize(("task", "heads"), [(RET, {CLS, RET}), (DET, {CLS, RET, DET})])
def test_the_checkpoint_can_do_its_task(trained, corpus, task, heads):
    judge = Judge.from_pretrained(trained / task)
    assert set(judge.heads) == heads
    run = next(run for run in corpus if run.labels)
    assert judge.retrieve(run, run.labels[0].step).evidence
    if task == DET:
        settings = judge.heads[DET].settings
        assert set(settings) == {"cutoff", "safe_bound", "triple"}
        assert not judge.cutoff.prune
        assert judge.detect(run)


# --- safe pruning ----------------------------------------------------------------------------------------------------


def test_min_precision_returns_what_can_be_deleted(corpus, folds, tmp_path):
    loop.train([TASKS[DET]], config(tmp_path / DET, min_precision=0.6))
    judge = Judge.from_pretrained(tmp_path / DET)
    assert judge.cutoff.prune
    assert judge.cutoff.safe is not None
    assert 0 < judge.heads[DET].settings["safe_bound"] <= 1
    found = judge.detect_batch(corpus)
    assert sum(map(len, found)) > 0
    assert all(p.redundant >= judge.cutoff.safe for own in found for p in own)
    items = items_of(tmp_path, DET, corpus)
    gold = [{label.step for label in run.labels} for run in items.runs]
    names = np.array([folds[run.id] for run in items.runs])
    hits, pruned, labels = (
        np.array([own(*pair) for pair in zip(items.triples, gold, strict=True)])
        for own in (
            lambda own, steps: len({p.step for p in own} & steps),
            lambda own, steps: len(own),
            lambda own, steps: len(steps),
        )
    )
    assert min(pruned[names == name].sum() for name in set(names)) > 0
    report = figures(tmp_path, DET)
    for metric, whole in (("prune_precision", pruned), ("prune_recall", labels)):
        by_fold = [hits[names == name].sum() / whole[names == name].sum() for name in sorted(set(names))]
        assert report[metric]["value"] == pytest.approx(np.mean(by_fold))
    assert 0 < report["prune_saved"]["value"] < 1


def prediction(step, redundant):
    return Prediction(step, DUPLICATED, (-1,), 0.5, redundant)


def test_pruning_by_hand(corpus):
    """Where the redundant steps are pruned and no other, their share of the text is saved."""
    run = next(run for run in corpus if len(run.labels) > 1)
    gold = {label.step for label in run.labels}
    answers = [prediction(step.reference, float(step.reference in gold)) for step in run.steps]
    report = report_steps([Answered(run, "0", answers, Cutoff(safe=0.5))], seed=0)
    assert report["prune_precision"].value == report["prune_recall"].value == report["auc"].value == 1
    # Each call of a simulated run has a message of its own: what was said beside it goes too.
    saved = sum(len(run.messages[index].content or "") for step in gold for index in step)
    whole = sum(len(m.content or "") for m in run.messages if m.role in ("assistant", "tool"))
    assert report["prune_saved"].value == pytest.approx(saved / whole)


def test_a_prediction_as_the_metric_takes_it():
    found = as_triple(prediction((4, 5), 1.0))
    assert (found.step, found.type, found.evidence, found.confidence) == ((4, 5), DUPLICATED, (-1,), 0.5)

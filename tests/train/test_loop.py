"""The training loop on a tiny simulated corpus: what it writes, that a seed decides it, what never stands where."""

import os
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import orjson
import pytest

from stepsieve.data import redundancybench
from stepsieve.data.errors import DataError
from stepsieve.data.features import PAIR_FEATURES
from stepsieve.data.simulate import simulate
from stepsieve.data.trajectory import REDUNDANCY_TYPES
from stepsieve.models.judge import Judge
from stepsieve.train import loop
from stepsieve.train.config import GbdtOptions, TrainConfig
from stepsieve.train.fit import Training
from stepsieve.train.tasks import TASKS

CLS = TASKS["cls"]
BACKENDS = {"majority", "rules", "linear", "gbdt"}


def config(out, **changes):
    gbdt = GbdtOptions(rounds=6, learning_rate=0.3, threads=1)
    return replace(TrainConfig(simulated=40, folds=2, inner_folds=2, gbdt=gbdt, out=str(out)), **changes)


def metrics_of(folder):
    return orjson.loads((folder / "metrics.json").read_bytes())


def files_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "deep" / "cls"
    loop.train([CLS], config(out))
    return out


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A corpus in a folder: simulated runs of one domain, written as the automated subset."""
    folder = tmp_path_factory.mktemp("corpus")
    redundancybench.write([disguised(run) for run in simulate(40, seed=7)], folder)
    return folder


def disguised(run):
    """A simulated run as one of the automated subset."""
    return replace(run, id=f"real:{run.id}", subset="automated", domain="airline", task_id=f"real-{run.task_id}")


# --- what a run writes -----------------------------------------------------------------------------------------------


def test_a_run_writes_a_checkpoint_metrics_a_report_and_its_predictions(trained):
    reports = {"metrics.json", "report.md", "costs.json", "costs.md"}
    assert files_in(trained) == reports | {"cls/model.txt", "manifest.json", "predictions/cls-cv-gbdt.json"}


def test_metrics_json_is_task_split_backend_metric(trained):
    metrics = metrics_of(trained)
    assert list(metrics) == ["cls"]
    assert list(metrics["cls"]) == ["cv"]
    assert set(metrics["cls"]["cv"]) == BACKENDS
    n = sum(len(run.labels or ()) for run in simulate(40))
    for report in metrics["cls"]["cv"].values():
        assert {"accuracy", "macro_f1", "ece", "accuracy[natural]"} <= set(report)
        assert report["accuracy"]["n"] == n
        for record in report.values():
            assert set(record) == {"value", "low", "high", "n"}
            if None not in record.values():
                assert record["low"] <= record["value"] <= record["high"]
    accuracy = {backend: report["accuracy"]["value"] for backend, report in metrics["cls"]["cv"].items()}
    assert accuracy["gbdt"] > accuracy["majority"]


def test_the_report_has_the_table_and_the_settings(trained):
    report = (trained / "report.md").read_text(encoding="utf-8")
    assert "## cls, cv" in report
    for backend in BACKENDS:
        assert f"| {backend} | 0." in report
    assert "Claude-Opus-5" not in report
    assert "simulated: 40" in report
    assert str(trained) not in report


def test_the_checkpoint_is_the_model_of_the_run(trained):
    judge = Judge.from_pretrained(trained)
    (head,) = judge.heads.values()
    assert (head.task, head.backend, head.classes) == ("cls", "gbdt", REDUNDANCY_TYPES)
    assert head.features == tuple(feature.name for feature in PAIR_FEATURES)
    assert (head.provenance["data"], head.provenance["seed"]) == ("simulated", 0)
    asked = [(run, label) for run in simulate(40) for label in run.labels or ()]
    answers = [judge.classify(run, label.step, label.evidence).choice for run, label in asked]
    assert np.mean([answer == label.type for answer, (_, label) in zip(answers, asked, strict=True)]) > 0.8
    manifest = orjson.loads((trained / "manifest.json").read_bytes())
    measured = metrics_of(trained)["cls"]["cv"]["gbdt"]
    whole = {name: value for name, value in measured.items() if "[" not in name}
    assert manifest["heads"]["cls"]["metrics"]["cv"] == whole
    assert str(trained.parent) not in (trained / "manifest.json").read_text()


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(trained, tmp_path):
    loop.train([CLS], config(tmp_path / "again"))
    loop.train([CLS], config(tmp_path / "other", seed=1))
    for name in ("metrics.json", "manifest.json", "cls/model.txt", "report.md"):
        assert (tmp_path / "again" / name).read_bytes() == (trained / name).read_bytes()
    assert (tmp_path / "other" / "metrics.json").read_bytes() != (trained / "metrics.json").read_bytes()


def test_a_further_run_keeps_what_metrics_json_had(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    record = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 3}
    earlier = {"cls": {"human-cv": {"gbdt": {"accuracy": record}}}}
    (out / "metrics.json").write_bytes(orjson.dumps(earlier))
    loop.train([CLS], config(out, backend="rules"))
    metrics = metrics_of(out)
    assert set(metrics["cls"]) == {"human-cv", "cv"}
    assert metrics["cls"]["human-cv"] == earlier["cls"]["human-cv"]
    assert set(metrics["cls"]["cv"]) == {"majority", "rules", "linear"}
    assert "## cls, human-cv" in (out / "report.md").read_text()


# --- what trains and what is tested ----------------------------------------------------------------------------------


class Watch:
    """Records which trajectories each judge was trained on, and which it was then asked about.

    Attributes:
        trained: of each judge in turn its training trajectories, and the number of rows that joined them.
        asked: (number of the judge, its test trajectories).
        task: the task to train, so that it is watched.
    """

    def __init__(self, monkeypatch, task=CLS):
        self.trained, self.asked, judges = [], [], []
        fit = Training.fit

        def fitted(training, backend, train, by_run=False):
            self.trained.append(([training.runs[i] for i in train], sum(map(len, training.extra.values()))))
            judges.append(fit(training, backend, train, by_run))
            return judges[-1]

        def ask(judge, runs, known):
            self.asked.append((next(k for k, known in enumerate(judges) if known is judge), list(runs)))
            return task.ask(judge, runs, known)

        monkeypatch.setattr(Training, "fit", fitted)
        self.task = replace(task, ask=ask)

    def sides(self):
        """(groups trained on, groups tested) of each judge that was asked."""
        for number, tested in self.asked:
            yield {run.group for run in self.trained[number][0]}, {run.group for run in tested}


def test_no_task_stands_on_both_sides(tmp_path, monkeypatch):
    seen = Watch(monkeypatch)
    loop.train([seen.task], config(tmp_path / "out", backend="rules"))
    assert all(not trained & tested for trained, tested in seen.sides())
    runs = [run for run in simulate(40) if run.labels is not None]
    # Each run once by each of the three backends; and the last model is trained on everything.
    asked = {(judge, run.id) for judge, tested in seen.asked for run in tested}
    assert sorted(name for _, name in asked) == sorted(3 * [run.id for run in runs])
    assert len(seen.trained[-1][0]) == len(runs)


def test_augmentation_joins_the_training_of_a_real_corpus_and_no_test(corpus, tmp_path, monkeypatch):
    seen = Watch(monkeypatch)
    loop.train([seen.task], config(tmp_path / "out", data=str(corpus), backend="rules", augment=20))
    for runs, extra in seen.trained:
        assert {run.subset for run in runs} == {"automated"}
        assert extra > 0
    assert {run.subset for _, tested in seen.asked for run in tested} == {"automated"}


def test_a_simulated_corpus_is_not_augmented():
    assert loop._augmentation(TrainConfig(augment=9), [], CLS) == []
    assert loop._augmentation(TrainConfig(augment=0, data="somewhere"), [], CLS) == []
    assert loop._augmentation(TrainConfig(augment=9, data="somewhere", train="simulated"), [], CLS) == []
    # A corpus in a folder may hold the very runs that would be added.
    added = loop._augmentation(TrainConfig(augment=9, data="somewhere"), [], CLS)
    tested = added[:1]
    rest = loop._augmentation(TrainConfig(augment=9, data="somewhere"), tested, CLS)
    assert 0 < len(rest) < len(added)
    assert tested[0].group not in {run.group for run in rest}


def test_training_on_one_corpus_and_testing_on_another(corpus, tmp_path, monkeypatch):
    seen = Watch(monkeypatch)
    settings = config(tmp_path / "out", data=str(corpus), train="simulated", split="auto-cv", seed=3)
    loop.train([seen.task], settings)
    metrics = metrics_of(tmp_path / "out")["cls"]
    assert list(metrics) == ["simulated-to-auto-cv"]
    assert set(metrics["simulated-to-auto-cv"]) == BACKENDS
    assert {(run.subset, extra) for runs, extra in seen.trained for run in runs} == {("simulated", 0)}
    assert {run.subset for _, tested in seen.asked for run in tested} == {"automated"}


def test_tasks_of_the_test_leave_another_training_corpus(corpus, tmp_path, monkeypatch):
    seen = Watch(monkeypatch)
    loop.train([seen.task], config(tmp_path / "out", data=str(corpus), train=str(corpus), backend="rules"))
    assert all(trained and not trained & tested for trained, tested in seen.sides())


def test_a_corpus_with_a_type_missing_is_trained_on(tmp_path):
    runs = [
        disguised(run)
        for run in simulate(60, seed=2)
        if run.labels and not any(label.type.startswith("Abnormal") for label in run.labels)
    ]
    redundancybench.write(runs, tmp_path / "data")
    loop.train([CLS], config(tmp_path / "out", data=str(tmp_path / "data"), augment=0))
    report = metrics_of(tmp_path / "out")["cls"]["auto-cv"]["gbdt"]
    assert report["accuracy"]["value"] > 0.5


# --- bad input -------------------------------------------------------------------------------------------------------


def test_bad_input_leaves_nothing_behind(corpus, tmp_path):
    out = tmp_path / "out"
    for changes in (
        {"data": str(tmp_path / "missing")},
        {"split": "nosuch"},
        {"split": ["cv", "nosuch"]},
        {"split": "human-cv"},
        {"simulated": 0},
        {"folds": 500},
        {"data": str(corpus), "train": str(tmp_path / "missing")},
    ):
        with pytest.raises(DataError):
            loop.train([CLS], config(out, **changes))
        assert not out.exists()


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"cls": 3}', b"\xff"])
def test_a_folder_with_another_metrics_json_is_left_as_it_is(content, tmp_path, monkeypatch):
    monkeypatch.setattr(Training, "fit", None)  # found out before the training
    (tmp_path / "metrics.json").write_bytes(content)
    with pytest.raises(DataError, match=r"earlier run"):
        loop.train([CLS], config(tmp_path))
    assert files_in(tmp_path) == {"metrics.json"}
    assert (tmp_path / "metrics.json").read_bytes() == content


def test_an_out_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "under"):
        with pytest.raises(DataError, match="folder"):
            loop.train([CLS], config(out))
    assert (tmp_path / "file").read_text() == "mine"


def test_a_trajectory_that_cannot_be_used_is_skipped_and_counted_if_asked(tmp_path, capsys):
    folder = tmp_path / "data"
    redundancybench.write([disguised(run) for run in simulate(40, seed=7)], folder)
    (file,) = folder.rglob("annotation.json")
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("Exploratory Step", "Exploratory Stop", 1), encoding="utf-8")
    with pytest.raises(DataError, match="Exploratory Stop"):
        loop.train([CLS], config(tmp_path / "out", data=str(folder)))
    assert not (tmp_path / "out").exists()
    loop.train([CLS], config(tmp_path / "out", data=str(folder), on_error="skip", backend="rules", augment=0))
    problem, counted = capsys.readouterr().err.splitlines()
    assert problem.startswith("skipped: ")
    assert "Exploratory Stop" in problem
    assert counted.startswith("left out: 1 ")


# --- Weights & Biases ------------------------------------------------------------------------------------------------


def test_wandb_offline_needs_no_key(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    loop.train([CLS], config(out, simulated=24, backend="rules", wandb="offline"))
    assert list((out / "wandb").glob("offline-run-*/*.wandb"))
    assert {"manifest.json", "metrics.json", "report.md"} <= files_in(out)
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == ["out"]


def test_wandb_missing_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(DataError, match=r"stepsieve\[wandb\]"):
        loop.train([CLS], config(tmp_path / "out", wandb="offline"))
    assert not (tmp_path / "out").exists()


def test_the_settings_in_a_report_say_nothing_of_the_machine(trained):
    settings = asdict(config(trained))
    report = (trained / "report.md").read_text()
    assert f"out: {settings['out']}" not in report
    assert str(Path.home()) not in report

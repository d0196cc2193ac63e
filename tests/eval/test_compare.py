"""Judges side by side: the figures of eval/bench.py, identical items, costs; cascades by hand and by simulation."""

import sys
from pathlib import Path

import numpy as np
import orjson
import pytest

from stepsieve.data.errors import run_cli
from stepsieve.data.redundancybench import write
from stepsieve.data.simulate import simulate
from stepsieve.data.trajectory import REDUNDANCY_TYPES
from stepsieve.eval import bench, compare
from stepsieve.eval.cascade import answered_by_own, curve, threshold
from stepsieve.eval.costs import PUBLISHED_COSTS, Cost

ROOT = Path(__file__).parents[2]
JUDGE = ROOT.parent / "shared" / "data" / "llm_judges" / "frontier-chat-llm"


@pytest.fixture(scope="module")
def corpus():
    return [run for run in simulate(120, seed=9) if run.labels][:40]


def classified(runs, seed, accuracy, **metadata):
    """A result file of StepCls that is right so often, and surer where it is right."""
    rng = np.random.default_rng(seed)
    results = []
    for run in runs:
        for label in run.labels:
            right = rng.random() < accuracy
            kind = label.type if right else REDUNDANCY_TYPES[(REDUNDANCY_TYPES.index(label.type) + 1) % 4]
            record = {"trajectory_id": run.id, "redundant_step_idx": list(label.step), "predicted_type": kind}
            results.append({**record, "confidence": round(0.5 + 0.3 * right + 0.2 * rng.random(), 3)})
    return {"metadata": {"task": "classify", **metadata}, "results": results}


@pytest.fixture
def files(corpus, tmp_path):
    """Our predictions on all runs and a judge's on most of them, with what both took."""
    write(corpus, tmp_path / "data")
    folder = tmp_path / "run" / "predictions"
    folder.mkdir(parents=True)
    ours, judge = folder / "cls-cv-gbdt.json", tmp_path / "judge.json"
    ours.write_bytes(orjson.dumps(classified(corpus, 1, 0.8, model="stepsieve")))
    usage = {"prompt": 9000, "completion": 1000, "seconds": 60, "dollars": 0.3}
    judge.write_bytes(orjson.dumps(classified(corpus[10:], 2, 0.9, model="judge-1", usage=usage)))
    costs = {"cv": {"gbdt": {"answers_per_s": {"cls": 100.0}}}}
    (tmp_path / "run" / "costs.json").write_bytes(orjson.dumps(costs))
    return tmp_path / "data", ours, judge


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs a script's ``main`` in this process; returns exit status, stdout and stderr."""

    def run(module, *arguments):
        monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run_cli(module.main)
        return (ended.value.code, *capsys.readouterr())

    return run


def test_no_figure_differs_from_the_benchmarks(command, files, tmp_path):
    data, ours, judge = files
    given = ("--data", data, "--predictions", ours, judge)
    assert command(compare, *given, "--json", tmp_path / "compare.json")[0] == 0
    assert command(bench, *given, "--json", tmp_path / "bench.json")[0] == 0
    mine, theirs = (orjson.loads((tmp_path / name).read_bytes()) for name in ("compare.json", "bench.json"))
    judges = mine["cls"]["judges"]
    assert judges["gbdt (cv)"]["own"] == theirs["cls"]
    assert judges["judge-1"]["own"] == theirs["cls (judge-1)"]
    # On identical items: the benchmark pairs them too, ours less the judge's.
    paired = theirs["cls: stepsieve - judge-1"]["all"]
    beside = judges["judge-1"]["beside_first"]["all"]
    assert beside["difference"] == -paired["difference"]
    assert (beside["only_first"], beside["only_second"]) == (paired["only_second"], paired["only_first"])
    assert beside["p_value"] == paired["p_value"]
    for name, side in (("gbdt (cv)", "first"), ("judge-1", "second")):
        assert judges[name]["common"]["all"]["accuracy"] == paired[side]
        assert judges[name]["common"]["all"]["n"] == paired["n"] < theirs["cls"]["all"]["n"]


def test_costs_are_for_a_thousand_trajectories(command, files, corpus, tmp_path):
    data, ours, judge = files
    labels = sum(len(run.labels) for run in corpus)
    code, out, _ = command(
        compare, "--data", data, "--predictions", ours, judge, "--hour", "3.6", "--json", tmp_path / "c.json"
    )
    assert code == 0
    judges = orjson.loads((tmp_path / "c.json").read_bytes())["cls"]["judges"]
    seconds = labels / 100 / 0.040
    assert judges["gbdt (cv)"]["cost"] == pytest.approx({"tokens": 0, "seconds": seconds, "dollars": seconds * 0.001})
    assert judges["judge-1"]["cost"] == pytest.approx({"tokens": 10_000 / 0.03, "seconds": 2000, "dollars": 10})
    assert f"{10 / (seconds * 0.001):,.4g}" in out, "relative to the first"
    assert PUBLISHED_COSTS["Claude-Opus-5"].dollars == pytest.approx(212.82 / 1.92)
    assert Cost(1, 2, None).plus(Cost(10, 10, 3), 0.5) == Cost(6, 7, None)


def test_a_cascade_is_between_and_its_plot_is_drawn(command, files, tmp_path):
    data, ours, judge = files
    given = ("--data", data, "--predictions", ours, judge, "--risk", "0.1")
    assert command(compare, *given, "--json", tmp_path / "c.json", "--out", tmp_path / "out")[0] == 0
    (found,) = orjson.loads((tmp_path / "c.json").read_bytes())["cls"]["cascades"]
    judges = orjson.loads((tmp_path / "c.json").read_bytes())["cls"]["judges"]
    alone = {name: own["common"]["all"]["accuracy"] for name, own in judges.items()}
    values = found["curve"]["value"]
    assert values[0] == pytest.approx(alone["judge-1"])
    assert values[-1] == pytest.approx(alone["gbdt (cv)"])
    assert max(values) > max(alone.values()), "its surest answers are right"
    assert 0 < found["passed"] < 1
    assert found["beside_judge"]["value"] >= -0.1
    costs = found["curve"]["dollars"]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == judges["gbdt (cv)"]["cost"]["dollars"]
    assert (tmp_path / "out" / "cascades-stepcls.png").stat().st_size > 1000
    assert "cascades-stepcls.png" in (tmp_path / "out" / "compare.md").read_text()


def test_the_recorded_judge_is_compared_with_one_command(command, released, tmp_path):
    if not JUDGE.is_dir():
        pytest.skip("the recorded answers of a judge are not beside the checkout")
    data = JUDGE.parents[1] / "redundancybench"
    code, out, err = command(compare, "--data", data, "--predictions", JUDGE, "--json", tmp_path / "c.json")
    assert (code, err) == (0, "")
    assert "Claude-Opus-5" in out
    files = sorted(JUDGE.glob("*.json"))
    assert command(bench, "--data", data, "--predictions", *files, "--json", tmp_path / "b.json")[0] == 0
    mine, theirs = (orjson.loads((tmp_path / name).read_bytes()) for name in ("c.json", "b.json"))
    for task in ("cls", "ret", "det"):
        (own,) = mine[task]["judges"].values()
        assert own["own"] == own["common"] == theirs[task]


def test_what_has_nothing_in_common_is_one_line(command, files, corpus, tmp_path):
    data, ours, _ = files
    parts = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, runs in zip(parts, (corpus[:5], corpus[5:10]), strict=True):
        path.write_bytes(orjson.dumps(classified(runs, 0, 0.5, model=path.stem)))
    code, _, err = command(compare, "--data", data, "--predictions", *parts)
    assert code == 2
    assert "found none with b" in err
    assert err.count("\n") == 1
    code, _, err = command(compare, "--data", data, "--predictions", tmp_path / "run")
    assert (code, err.count("\n")) == (2, 1)
    code, _, err = command(compare, "--data", data, "--predictions", ours, "--risk", "2")
    assert code == 2
    assert "--risk" in err


# --- cascades --------------------------------------------------------------------------------------------------------


def test_a_curve_and_a_threshold_by_hand():
    sure = np.array([0.9, 0.6, 0.8, 0.8, 0.5])
    own = np.array([1.0, 0.0, 1.0, 0.0, 0.0])
    judge = np.array([0.0, 1.0, 1.0, 1.0, 0.0])
    found = curve(sure, own, judge)
    # Passed on: all; all but the first; two more, of which one is lost; another, which is lost; the last, no matter.
    assert found.threshold.tolist() == [np.inf, 0.9, 0.8, 0.6, 0.5]
    assert found.passed == pytest.approx([1, 0.8, 0.4, 0.2, 0])
    assert found.value == pytest.approx([0.6, 0.8, 0.6, 0.4, 0.4])
    # (loss + 1) / (5 + 1), the surest first: 1/6, then 2/6 for both at 0.8, then 3/6 and 3/6.
    bounds = {0.1: np.inf, 1 / 6: 0.9, 0.3: 0.9, 2 / 6: 0.8, 0.49: 0.8, 0.5: 0.5}
    assert {alpha: threshold(sure, own, judge, alpha) for alpha in bounds} == bounds


def test_the_risk_is_kept_on_new_items():
    """Over many draws the mean loss on new items stays below alpha, and not far below: the threshold is not idle."""
    rng = np.random.default_rng(3)

    def draw(n):
        sure = rng.random(n)
        return sure, (rng.random(n) < sure).astype(float), (rng.random(n) < 0.8).astype(float)

    alpha, losses, kept = 0.05, [], []
    for _ in range(400):
        level = threshold(*draw(100), alpha)
        sure, own, judge = draw(200)
        losses.append(np.where(sure >= level, np.maximum(judge - own, 0), 0).mean())
        kept.append((sure >= level).mean())
    assert 0.6 * alpha < np.mean(losses) <= alpha
    assert np.mean(kept) > 0.2


def test_an_items_own_task_never_decides_whether_it_is_passed_on(corpus):
    runs = [run for run in corpus for _ in range(3)]
    rng = np.random.default_rng(5)
    sure = rng.random(len(runs))
    own, judge = (rng.random(len(runs)) < sure).astype(float), np.ones(len(runs))
    before = answered_by_own(sure, own, judge, runs, 0.1)
    assert 0 < before.mean() < 1
    changed = 0
    for run in corpus[:6]:
        mask = np.array([other.group == run.group for other in runs])
        after = answered_by_own(sure, np.where(mask, 1 - own, own), judge, runs, 0.1)
        assert np.array_equal(before[mask], after[mask])
        changed += not np.array_equal(before, after)
    assert changed, "but it does decide about others"

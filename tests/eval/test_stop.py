"""Early stopping: what a stop saves and costs, how bounds are chosen, what agents look like after it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import orjson
import pytest

from stepsieve.data.errors import DataError
from stepsieve.eval.stop import (
    Stopped,
    Watched,
    best_within,
    by_agent,
    choose_bounds,
    curve,
    ranking,
    read,
    stop_report,
    stopped,
    to_record,
)
from stepsieve.models.outlook import Bounds, Outlook

ROOT = Path(__file__).parents[2]


def run(name, outcome, successes, bounds=None, agent="a", task=None, fold="0"):
    """A run whose heads mirror each other."""
    outlooks = tuple(Outlook(p, 1 - p) for p in successes)
    return Watched(name, agent, ("d", task or name), fold, outcome, outlooks, bounds or Bounds())


HALF = Bounds(0.7, 0.7)


def test_what_a_stop_saves_and_whether_it_is_wrong():
    rising = (0.5, 0.8, 0.9, 0.9, 0.9)
    assert stopped(run("x", 1.0, rising, HALF)) == Stopped(True, False, 2, 1.0)
    assert stopped(run("x", 0.0, rising, HALF)) == Stopped(True, True, 2, 1.0)
    assert stopped(run("x", 0.5, rising, HALF)) == Stopped(True, True, 2, 1.0)
    assert stopped(run("x", 0.0, (0.5, 0.2, 0.1), HALF)) == Stopped(True, False, 0, 0.0)
    assert stopped(run("x", 0.0, (0.5, 0.5, 0.1), HALF)) == Stopped(False, False, 0, 0.0)


def test_an_outlook_at_a_share_of_a_run_is_that_of_the_observation_made_by_then():
    own = run("x", 1.0, (0.1, 0.2, 0.3, 0.4, 0.5))
    assert [own.at(share).success for share in (0.1, 0.25, 0.5, 0.75, 1.0)] == [0.1, 0.1, 0.2, 0.3, 0.5]


def test_the_report_by_hand():
    runs = [
        run("a", 1.0, (0.5, 0.8, 0.8, 0.8), HALF),  # right, 1 of 4 saved
        run("b", 0.0, (0.9, 0.9, 0.2, 0.1), HALF),  # wrong, 2 of 4 saved
        run("c", 0.0, (0.5, 0.5), HALF),  # goes on
    ]
    report = stop_report(runs)
    value = {name: interval.value for name, interval in report.items()}
    assert value["saved"] == pytest.approx(3 / 10)
    assert value["wrong_stops"] == pytest.approx(1 / 3)
    assert value["stopped"] == pytest.approx(2 / 3)
    assert value["wrong_of_stopped"] == pytest.approx(1 / 2)
    assert value["mean_shift"] == pytest.approx(1 / 3)
    assert value["auc@50"] == pytest.approx(0.5)  # 0.8 against 0.9 and 0.5
    assert value["auc@100"] == pytest.approx(1.0)


def test_bounds_save_most_within_the_rate():
    # 19 sound runs that could be stopped at 0.9, and one that fails although P(success) reaches 0.7 at first.
    sound = [run(f"s{k}", 1.0, (0.72, 0.9, 0.9, 0.9, 0.9)) for k in range(19)]
    trap = run("t", 0.0, (0.72, 0.72, 0.3, 0.3, 0.3))
    loose = choose_bounds([*sound, trap], 0.1)
    assert stopped(trap, loose).stopped
    strict = choose_bounds([*sound, trap], 0.05)
    assert not stopped(trap, strict).wrong
    assert [stopped(own, strict).saved for own in sound] == [2] * 19
    assert strict.success == 0.9


def test_few_runs_allow_no_bound():
    assert choose_bounds([run("s", 1.0, (0.9, 0.9, 0.9))] * 18, 0.05) == Bounds()


def test_the_rate_holds_for_new_runs_like_these():
    """Conformal risk control: over many draws the mean rate of wrong stops is at most what was asked for."""
    rng = np.random.default_rng(0)

    def draw(n):
        runs = []
        for number in range(n):
            drift = rng.normal()
            values = 1 / (1 + np.exp(-np.cumsum(rng.normal(drift * 0.4, 0.5, size=8))))
            runs.append(run(str(number), float(rng.random() < 1 / (1 + np.exp(-2 * drift))), values.tolist()))
        return runs

    rates = []
    for _ in range(30):
        bounds = choose_bounds(draw(80), 0.1)
        rates.append(np.mean([stopped(own, bounds).wrong for own in draw(80)]))
    assert 0.02 < np.mean(rates) < 0.13


def test_the_curve_stops_less_as_the_threshold_rises():
    rng = np.random.default_rng(1)
    runs = [run(str(k), float(k % 2), rng.random(10).tolist()) for k in range(40)]
    shares = [row["stopped"]["value"] for row in curve(runs)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1]


def test_of_a_curve_what_saves_most_within_a_rate():
    runs = [run("a", 1.0, (0.9, 0.9, 0.9, 0.9)), run("b", 0.0, (0.7, 0.7, 0.7, 0.7))]
    rows = curve(runs)
    assert best_within(rows, 0.0)["saved"]["value"] == pytest.approx(2 / 8)
    assert 0.7 < best_within(rows, 0.0)["threshold"] <= 0.9
    assert best_within(rows, 0.5)["saved"]["value"] == pytest.approx(4 / 8)
    assert best_within(curve(runs[1:]), 0.0) is None


def test_agents_with_and_without_stops():
    good = [run(f"g{k}", 1.0, (0.9, 0.9, 0.9), HALF, "good") for k in range(3)]
    bad = [run(f"b{k}", 0.0, (0.1, 0.1, 0.1), HALF, "bad") for k in range(3)]
    flattered = [run(f"f{k}", float(k == 0), (0.9, 0.9, 0.9), HALF, "flattered") for k in range(3)]
    rows = by_agent([*bad, *good])
    assert [(row["agent"], row["recorded"], row["with_stops"]) for row in rows] == [("good", 1, 1), ("bad", 0, 0)]
    assert ranking(rows) == pytest.approx(1.0)
    third = by_agent([*good, *bad, *flattered])
    assert third[1] == {"agent": "flattered", "runs": 3, "recorded": pytest.approx(1 / 3), "with_stops": 1.0}
    assert 0 < ranking(third) < 1
    assert ranking(rows[:1]) is None


def test_runs_are_written_and_read_back(tmp_path):
    runs = [run("a", 1.0, (0.5, 0.75), HALF, task="t1"), run("b", 0.0, (0.25,))]
    path = tmp_path / "stop.json"
    path.write_bytes(orjson.dumps({"results": [to_record(own) for own in runs]}))
    assert read(path) == runs


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"results": [{"id": "a"}]}', b'{"results": []}', b'{"results": {"a": 1}}']
)
def test_a_file_of_something_else(content, tmp_path):
    path = tmp_path / "stop.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"stop\.json"):
        read(path)


def command(*arguments, cwd):
    return subprocess.run(
        [sys.executable, ROOT / "eval" / "stop.py", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "100"},
    )


def test_the_command_prints_and_writes_what_it_found(tmp_path):
    runs = [run(f"r{k}", float(k % 2), (0.5, 0.9, 0.9) if k % 2 else (0.5, 0.1, 0.1), HALF) for k in range(8)]
    (tmp_path / "stop-cv.json").write_bytes(orjson.dumps({"results": [to_record(own) for own in runs]}))
    found = command("--predictions", "stop-cv.json", "--json", "out.json", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    for words in ("8 runs, 4 successes", "auc@50", "wrong_of_stopped", "Kendall tau: one agent"):
        assert words in found.stdout
    (written,) = orjson.loads((tmp_path / "out.json").read_bytes()).values()
    assert written["report"]["auc@100"]["value"] == 1.0
    assert written["kendall_tau"] is None


def test_a_command_without_its_file(tmp_path):
    found = command("--predictions", "none.json", cwd=tmp_path)
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1
    assert "none.json" in found.stderr

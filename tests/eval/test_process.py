"""Judges of steps beside each other: accuracies by hand, and the command."""

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from stepsieve.data.agentprocessbench import Judged
from stepsieve.data.errors import DataError
from stepsieve.data.trajectory import Message, Quality, Trajectory
from stepsieve.eval.process import (
    answers_of_judge,
    compare,
    final_right,
    first_error_right,
    read_predictions,
    score,
)

ROOT = Path(__file__).parents[2]


def run(name, levels, outcome):
    qualities = tuple(Quality(message, "correctness", level) for message, level in levels.items())
    return Trajectory(name, (Message("user", "x"),), domain="d", task_id=name, qualities=qualities, outcome=outcome)


RUNS = [run("a", {2: 1.0, 4: 1.0}, 1.0), run("b", {2: 0.5, 4: 0.0, 6: 0.0}, 0.0)]


def test_the_first_error_is_found_or_there_is_none():
    gold = {2: 1.0, 4: 0.0, 6: 0.0}
    assert first_error_right({2: 1.0, 4: 0.0, 6: 1.0}, gold)
    assert not first_error_right({2: 0.0, 4: 0.0}, gold)
    assert not first_error_right({2: 1.0, 6: 0.0}, gold)
    assert first_error_right({2: 0.5}, {2: 1.0})
    assert first_error_right({2: 1.0, 9: 0.0}, {2: 1.0})  # what nobody labelled is no error


def test_the_last_level_tells_the_outcome():
    assert final_right({2: 0.0, 4: 1.0}, {2: 1.0, 4: 0.0}, True)
    assert not final_right({4: 0.5}, {4: 1.0}, True)
    assert final_right({}, {4: 1.0}, False)


def test_a_judge_is_scored_on_all_messages_and_runs():
    judged = {"a": Judged({2: 1, 4: 0}, 1), "b": Judged({2: 0, 4: -1}, None)}
    found = score(RUNS, answers_of_judge(judged))
    assert found.values == {"steps": [1, 0, 1, 1, 0], "first_error": [1, 1], "final": [1, 0]}
    assert found.groups["steps"] == [("d", "a")] * 2 + [("d", "b")] * 3


def test_what_was_not_answered_is_wrong():
    assert score(RUNS, answers_of_judge({})).values == {"steps": [0] * 5, "first_error": [0, 0], "final": [0, 0]}


def test_ours_stands_first_then_the_best_with_the_difference_on_the_same_messages():
    ours = score(RUNS, {"a": ({2: 1.0, 4: 1.0}, None), "b": ({2: 0.5, 4: 0.0, 6: 0.0}, None)})
    weak = score(RUNS, answers_of_judge({"a": Judged({2: 1, 4: 1}, 1)}))
    weaker = score(RUNS, answers_of_judge({}))
    table = compare(ours, {"weaker": weaker, "weak": weak})
    assert list(table) == ["ours", "weak", "weaker"]
    assert table["ours"]["steps"]["value"] == 1.0
    assert table["ours"]["final"]["value"] == 1.0
    assert table["weak"]["steps"]["value"] == pytest.approx(2 / 5)
    assert table["weak"]["steps_gain"]["value"] == pytest.approx(3 / 5)
    assert table["weaker"]["first_error_gain"]["value"] == 1.0


def test_a_file_of_something_else(tmp_path):
    path = tmp_path / "judge.json"
    for content in (b"{", b"[]", b'{"results": [{"trajectory_id": "a"}]}'):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"judge\.json"):
            read_predictions(path)


def test_the_command(tmp_path):
    record = {
        "data_source": "s",
        "query_index": 0,
        "sample_index": 0,
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
        "step_labels": {"1": 1},
        "final_label": 1,
    }
    (tmp_path / "runs.jsonl").write_bytes(orjson.dumps(record))
    levels = {"correctness": {"1": [1.0, 0.9, 0.8]}}
    (tmp_path / "ours.json").write_bytes(orjson.dumps({"results": [{"trajectory_id": "s:0:0", "levels": levels}]}))
    (tmp_path / "judges").mkdir()
    line = {"record_id": "s:0:0", "step_labels": {"1": -1}, "final_label": -1}
    (tmp_path / "judges" / "some.jsonl").write_bytes(orjson.dumps(line))
    words = ["--data", "runs.jsonl", "--predictions", "ours.json", "--judges", "judges", "--json", "out.json"]
    found = subprocess.run(
        [sys.executable, ROOT / "eval" / "process.py", *words],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env=dict(os.environ),
    )
    assert found.returncode == 0, found.stderr
    assert "some" in found.stdout
    assert orjson.loads((tmp_path / "out.json").read_bytes())["some"]["steps_gain"]["value"] == 1.0

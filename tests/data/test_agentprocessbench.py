"""Runs whose messages were judged, and the files of judges: what is read, what is refused."""

import orjson
import pytest

from stepsieve.data.agentprocessbench import read_judge
from stepsieve.data.errors import DataError
from stepsieve.data.ingest import load
from stepsieve.data.trajectory import Quality

CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": "tower"}'}}
RECORD = {
    "data_source": "source",
    "query_index": 7,
    "sample_index": 2,
    "messages": [
        {"role": "system", "content": "Help."},
        {"role": "user", "content": "How high is the tower?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "{}", "tool_call_id": "c1"},
        {"role": "assistant", "content": "12 metres"},
    ],
    "step_labels": {"2": 0, "4": -1},
    "final_label": -1,
}


def written(folder, *records):
    path = folder / "runs.jsonl"
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    return path


def test_a_record_becomes_a_run_with_qualities_and_an_outcome(tmp_path):
    (run,) = load(written(tmp_path, RECORD))
    assert run.id == "source:7:2"
    assert run.group == ("source", "7")
    assert run.qualities == (Quality(2, "correctness", 0.5), Quality(4, "correctness", 0.0))
    assert run.outcome == 0.0
    assert run.labels is None
    assert run.steps[0].reference == (2, 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step_labels": {"3": 1}}, ("step_labels.3", "message of the assistant")),
        ({"step_labels": {"9": 1}}, ("step_labels.9", "message of the assistant")),
        ({"step_labels": {"two": 1}}, ("step_labels.two", "message index")),
        ({"step_labels": {"2": 2}}, ("step_labels.2", "-1, 0 or 1")),
        ({"step_labels": {"2": []}}, ("step_labels.2", "a list")),
        ({"step_labels": [1]}, ("step_labels", "a list")),
        ({"final_label": "good"}, ("final_label", "-1, 0 or 1")),
        ({"query_index": None}, ("query_index", "null")),
    ],
)
def test_what_is_wrong_is_one_line_that_says_where(change, words, tmp_path):
    path = written(tmp_path, {**RECORD, "sample_index": 1}, {**RECORD, **change})
    with pytest.raises(DataError) as caught:
        list(load(path))
    line = str(caught.value)
    assert line.startswith(f"{path}:2: ")
    assert all(word in line for word in words)
    assert "\n" not in line


def test_a_judges_file_is_read_and_an_answer_can_be_missing(tmp_path):
    path = written(
        tmp_path,
        {"record_id": "a", "step_labels": {"2": 1, "4": None}, "final_label": 1},
        {"record_id": "b", "step_labels": {}, "final_label": None},
    )
    judged = read_judge(path)
    assert judged["a"].steps == {2: 1}
    assert judged["a"].final == 1
    assert judged["b"].steps == {}
    assert judged["b"].final is None


@pytest.mark.parametrize("line", [b"no JSON", b"[]", b'{"record_id": 3}', b'{"record_id": "a"}'])
def test_a_judges_line_that_is_none(line, tmp_path):
    path = tmp_path / "judge.jsonl"
    path.write_bytes(line)
    with pytest.raises(DataError, match=r"judge\.jsonl:1: "):
        read_judge(path)

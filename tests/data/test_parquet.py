"""Parquet: each row is the record that a line of JSON Lines would be."""

import json
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from stepsieve.data import ingest
from stepsieve.data.errors import DataError

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

FORMATS = Path(__file__).parents[1] / "cases" / "formats"
CHAT = json.loads((FORMATS / "openai.json").read_text())
OWN = json.loads((FORMATS / "stepsieve.json").read_text())


def saved(folder, rows, **options):
    path = folder / "runs.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, **options)
    return path


def as_lines(folder, rows):
    path = folder / "runs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def with_text_arguments(messages):
    return [
        {**message, "tool_calls": [{**call, "arguments": json.dumps(call["arguments"])} for call in calls]}
        if (calls := message.get("tool_calls"))
        else message
        for message in messages
    ]


def test_columns_of_structs_are_read_as_the_records_they_hold(tmp_path):
    chat = [message for message in CHAT if isinstance(message["content"], (str, type(None)))]
    own = {"messages": with_text_arguments(OWN), "policy": "No lamps.", "outcome": 1.0, "metadata": {"domain": "home"}}
    rows = [{"trajectory_id": "lamp", **own}, {"trajectory_id": "weather", "messages": chat}]
    found = list(ingest.load(saved(tmp_path, rows)))
    assert found == list(ingest.load(as_lines(tmp_path, rows)))
    assert [run.id for run in found] == ["lamp", "weather"]
    assert [len(run.interactions) for run in found] == [1, 2]
    assert dict(found[0].interactions[0].call.arguments) == {"on": True}


def test_messages_may_be_json_text(tmp_path):
    rows = [{"id": str(number), "messages": json.dumps(CHAT)} for number in range(3)]
    expected = [{"id": str(number), "messages": CHAT} for number in range(3)]
    assert list(ingest.load(saved(tmp_path, rows))) == list(ingest.load(as_lines(tmp_path, expected)))


def test_rows_without_an_id_are_named_by_their_number(tmp_path):
    path = saved(tmp_path, [{"messages": json.dumps(OWN)}] * 150, row_group_size=40)
    assert [run.id for run in ingest.load(path)] == [f"runs:{number}" for number in range(1, 151)]
    ends = [part.end for part in ingest.scan(path)]
    assert ends == sorted(ends)
    assert ends[-1] == path.stat().st_size


def test_a_bad_row_is_left_out_alone(tmp_path):
    rows = [{"id": name, "messages": json.dumps(OWN)} for name in "abcd"]
    rows[1]["messages"] = "step 1: look"
    rows[2]["messages"] = json.dumps([{"role": "user", "content": "x" * 5000}])
    problems = []
    path = saved(tmp_path, rows)
    kept = list(ingest.load(path, report=problems.append, max_text=2000))
    assert [run.id for run in kept] == ["a", "d"]
    assert str(problems[0]).startswith(f"{path}:2: trajectory 'b': messages: expected a list of messages")
    assert str(problems[1]).startswith(f"{path}:3: expected at most 4,000 bytes in one row")


@pytest.mark.parametrize("column", [b"\xff\xfe", Decimal("1.5")])
def test_what_json_cannot_hold(tmp_path, column):
    with pytest.raises(DataError, match=r"runs.parquet:1: expected a value that JSON can hold"):
        list(ingest.load(saved(tmp_path, [{"messages": json.dumps(OWN), "extra": column}])))


@pytest.mark.parametrize("where", [8, -8, -4])
def test_a_damaged_file_is_one_error(tmp_path, where):
    path = saved(tmp_path, [{"messages": json.dumps(CHAT), "id": str(number)} for number in range(20)])
    data = bytearray(path.read_bytes())
    data[where : where + 4] = b"\xff" * 4
    path.write_bytes(data)
    problems = []
    kept = list(ingest.load(path, report=problems.append))
    assert len(kept) < 20
    assert [str(problem).count("\n") for problem in problems] == [0]
    assert "expected a Parquet file that can be read" in str(problems[0])


def test_no_rows(tmp_path):
    path = tmp_path / "none.parquet"
    parquet.write_table(pyarrow.table({"messages": pyarrow.array([], pyarrow.string())}), path)
    with pytest.raises(DataError, match="expected at least one row of Parquet, found none"):
        list(ingest.load(path))


def test_a_stream_cannot_be_read_from_its_end(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    path = saved(tmp_path, [{"messages": json.dumps(OWN)}])
    packed = tmp_path / "runs.parquet.zst"
    packed.write_bytes(zstandard.compress(path.read_bytes()))
    with pytest.raises(DataError, match="can't be read from its end"):
        list(ingest.load(packed))


def test_without_its_package(tmp_path, monkeypatch):
    path = saved(tmp_path, [{"messages": json.dumps(OWN)}])
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=r"pip install 'stepsieve\[parquet\]'"):
        list(ingest.load(path))

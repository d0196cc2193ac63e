"""Files: compressed or not, one document or many lines, read one at a time, and damaged ones beside good ones."""

import gzip
import io
import json
from pathlib import Path

import pytest

from stepsieve.data import ingest
from stepsieve.data.errors import DataError

CASES = Path(__file__).parents[1] / "cases"
CHAT = json.loads((CASES / "formats" / "openai.json").read_text())
OWN = json.loads((CASES / "formats" / "stepsieve.json").read_text())
TAU = json.loads((CASES / "formats" / "tau-bench.json").read_text())


def saved(folder, value, name="runs.json"):
    path = folder / name
    lines = value if isinstance(value, (str, bytes)) else json.dumps(value)
    path.write_bytes(lines if isinstance(lines, bytes) else lines.encode())
    return path


def lines(*values):
    return "".join((value if isinstance(value, str) else json.dumps(value)) + "\n" for value in values)


def test_standard_input(monkeypatch):
    data = lines({"messages": OWN}, CHAT).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert [trajectory.id for trajectory in ingest.load("-")] == ["stdin:1", "stdin:2"]


def test_compressed_files(tmp_path):
    path = saved(tmp_path, gzip.compress(lines({"messages": OWN}, {"messages": CHAT}).encode()), "chats.jsonl.gz")
    assert [trajectory.id for trajectory in ingest.load(path)] == ["chats:1", "chats:2"]


def test_zstd(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    path = saved(tmp_path, zstandard.compress(lines({"messages": OWN}, {"messages": CHAT}).encode()), "chats.jsonl.zst")
    assert [trajectory.id for trajectory in ingest.load(path)] == ["chats:1", "chats:2"]
    with pytest.raises(DataError, match="expected a file that can be read"):
        list(ingest.load(saved(tmp_path, path.read_bytes()[:9] + b"broken", "broken.zst")))


def test_zstd_without_its_package(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(DataError, match=r"pip install 'stepsieve\[zstd\]'"):
        list(ingest.load(saved(tmp_path, b"\x28\xb5\x2f\xfd rest")))


@pytest.mark.parametrize("indent", [None, 1])
def test_one_document_may_take_one_line_or_many(tmp_path, indent):
    path = saved(tmp_path, "\ufeff" + json.dumps([{"messages": OWN}, {"messages": CHAT}], indent=indent) + "\n\n")
    assert [trajectory.id for trajectory in ingest.load(path)] == ["runs:0", "runs:1"]


def test_json_lines_are_read_one_at_a_time(tmp_path):
    path = saved(tmp_path, lines({"messages": OWN}, {"messages": OWN}, "{broken"))
    stream = ingest.load(path)
    assert [next(stream).id, next(stream).id] == ["runs:1", "runs:2"]
    with pytest.raises(DataError, match=r"runs.json:3: expected JSON"):
        next(stream)


@pytest.mark.parametrize("name", ["nowhere.json", ".", "-/x"])
def test_nothing_to_read(tmp_path, name):
    with pytest.raises(DataError, match="expected"):
        list(ingest.load(tmp_path / name))


def test_cut_compressed_data(tmp_path):
    whole = gzip.compress(lines(*[{"messages": OWN, "id": f"{i}"} for i in range(2000)]).encode())
    problems = []
    kept = list(ingest.load(saved(tmp_path, whole[: len(whole) // 2]), report=problems.append))
    assert 0 < len(kept) < 2000
    assert "expected a file that can be read" in str(problems[0])


def test_in_a_batch_the_others_are_done(tmp_path):
    rows = lines(
        "{broken", {"messages": OWN}, {"messages": []}, 3, {"messages": OWN, "id": "runs:2"}, {"messages": CHAT}
    )
    problems = []
    kept = list(ingest.load(saved(tmp_path, rows, "runs.jsonl"), report=problems.append))
    assert [trajectory.id for trajectory in kept] == ["runs:2", "runs:6"]
    assert [error.file.rsplit(":")[-1] for error in problems] == ["1", "3", "4", "5"]
    assert "expected one trajectory of this id" in str(problems[-1])


def test_in_a_list_the_others_are_done(tmp_path):
    problems = []
    kept = list(ingest.load(saved(tmp_path, [TAU, {**TAU, "traj": []}, {**TAU, "trial": 5}]), report=problems.append))
    assert [trajectory.id for trajectory in kept] == ["runs:3:1", "runs:3:5"]
    assert len(problems) == 1


def test_too_much_text(tmp_path):
    long = {"messages": [{"role": "user", "content": "x" * 3000}]}
    longer = {"messages": [{"role": "user", "content": "x" * 30_000}]}
    problems = []
    path = saved(tmp_path, lines({"messages": OWN}, {"messages": OWN}, long, longer, {"messages": OWN}))
    kept = list(ingest.load(path, report=problems.append, max_text=2000))
    assert [trajectory.id for trajectory in kept] == ["runs:1", "runs:2", "runs:5"]
    assert "expected at most 2,000 characters of text in one trajectory, found 3,000" in str(problems[0])
    assert "expected at most 4,000 bytes in one line" in str(problems[1])

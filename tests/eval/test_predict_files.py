"""Corpus prediction: every format in, every form out."""

import gzip
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from stepsieve.data.ingest import load, scan
from stepsieve.eval.corpus_speed import line

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "cases"
SHARED = ROOT.parent / "shared" / "data"
SCRIPT = ROOT / "eval" / "predict.py"


def chat(run):
    """A run as OpenAI chat messages."""
    messages = [{"role": "system", "content": run.policy}]
    for message in run.messages:
        if message.role == "tool":
            messages.append({"role": "tool", "tool_call_id": message.call_id, "content": message.content})
            continue
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": orjson.dumps(call.arguments).decode()},
            }
            for call in message.tool_calls
        ]
        messages.append({"role": message.role, "content": message.content, **({"tool_calls": calls} if calls else {})})
    return orjson.dumps({"id": run.id, "messages": messages})


def read(path):
    return [orjson.loads(row) for row in path.read_bytes().splitlines()]


def ids(rows):
    return [row["trajectory_id"] for row in rows]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# --- formats in -------------------------------------------------------------------------------------------------------


def test_released_folders_keep_their_ids(predicted, tmp_path):
    rows = predicted(CASES / "redundancybench")
    assert ids(rows) == [run.id for run in load(CASES / "redundancybench")]
    assert any(name.startswith("human_annotation:library:") for name in ids(rows))
    globbed = predicted(f"{CASES}/redundancybench/*/*/*.json")
    assert sorted(ids(globbed)) == sorted(ids(rows))


def test_chat_atif_and_sessions(predicted, runs, tmp_path):
    (tmp_path / "chats.jsonl").write_bytes(b"\n".join(map(chat, runs[:5])))
    rows = predicted(tmp_path / "chats.jsonl", CASES / "atif.json", CASES / "session.jsonl")
    expected = [run.id for path in (CASES / "atif.json", CASES / "session.jsonl") for run in load(path)]
    assert ids(rows) == [*(run.id for run in runs[:5]), *expected]


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_compressed_lines_are_those_of_the_plain_file(ending, predicted, corpus, tmp_path):
    zstandard = pytest.importorskip("zstandard") if ending == ".zst" else None
    data = corpus.read_bytes()
    packed = tmp_path / f"runs.jsonl{ending}"
    packed.write_bytes(zstandard.compress(data) if zstandard else gzip.compress(data))
    assert predicted(packed) == predicted(corpus)


def test_a_folder_of_files_is_read_in_the_order_of_names(predicted, runs, tmp_path):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    for number, run in enumerate(runs[:4]):
        (tmp_path / "in" / ("deep" if number % 2 else ".") / f"{number}.json").write_bytes(line(run))
    (tmp_path / "in" / "notes.txt").write_text("not a trajectory")
    assert ids(predicted(tmp_path / "in")) == [runs[number].id for number in (0, 2, 1, 3)]


def test_standard_input(folder, corpus, runs, tmp_path):
    arguments = ["--checkpoint", folder, "--input", "-", "--output", tmp_path / "o.jsonl"]
    found = subprocess.run([sys.executable, SCRIPT, *arguments], input=corpus.read_bytes(), capture_output=True)
    assert (found.returncode, found.stderr) == (0, b"")
    assert ids(read(tmp_path / "o.jsonl")) == [run.id for run in runs]


def test_tau_bench(predicted):
    file = SHARED / "tau_bench" / "gpt-4o-airline.json"
    if not file.is_file():
        pytest.skip("the tau-bench results are not beside the checkout: shared/data/tau_bench")
    assert ids(predicted(file)) == [run.id for run in load(file)]


def test_the_parts_of_a_file_are_what_load_reads_of_it(corpus, tmp_path):
    (tmp_path / "pretty.json").write_bytes(orjson.dumps(orjson.loads(corpus.read_bytes().splitlines()[0]), option=2))
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(corpus.read_bytes()))
    for path in (corpus, tmp_path / "pretty.json", tmp_path / "packed.jsonl.gz", *CASES.glob("*.json*")):
        parts = list(scan(path))
        assert [run for part in parts for run in part.read(pytest.fail)] == list(load(path))
        ends = [part.end for part in parts]
        assert ends == sorted(ends)
        assert ends[-1] == path.stat().st_size


# --- forms out --------------------------------------------------------------------------------------------------------


def test_compressed_output_holds_the_plain_one(command, corpus, tmp_path):
    zstandard = pytest.importorskip("zstandard")
    for ending in ("", ".gz", ".zst"):
        assert command("--input", corpus, "--output", tmp_path / f"o.jsonl{ending}")[0] == 0
    plain = (tmp_path / "o.jsonl").read_bytes()
    assert gzip.decompress((tmp_path / "o.jsonl.gz").read_bytes()) == plain
    with zstandard.open(tmp_path / "o.jsonl.zst") as file:
        assert file.read() == plain
    assert names(tmp_path) == ["o.jsonl", "o.jsonl.gz", "o.jsonl.zst"]


@pytest.mark.parametrize("flags", [(), ("--explain",)])
def test_parquet_holds_the_same_rows(flags, command, corpus, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    for name in ("o.jsonl", "o.parquet"):
        assert command("--input", corpus, "--output", tmp_path / name, *flags)[0] == 0
    rows = parquet.read_table(tmp_path / "o.parquet").to_pylist()
    for prediction in (prediction for row in rows for prediction in row["predictions"]):
        assert (prediction["because"] is not None) == bool(flags)
        if not flags:
            del prediction["because"]
    assert rows == read(tmp_path / "o.jsonl")

"""Files that are nearly right: trajectories, or lines on what is wrong; never a failure, a hang, or memory kept."""

import gzip
import json
import random
import time
from io import BytesIO
from pathlib import Path

import agentpile
import orjson
import pytest

from stepsieve.data import ingest
from stepsieve.data.simulate import simulate
from stepsieve.eval.corpus_speed import line

CASES = Path(__file__).parents[1] / "cases"
VALUES = [
    *(None, True, -1, 2**63, 1e308, "", "x" * 99, "\0", "[1, 2]", "{", "tool", "assistant", "ATIF-v1.7"),
    *([], {}, [[]], [None], {"role": "user"}, {"": 0}, {"name": "x", "arguments": "["}),
]
NAMES = ("runs.json", "runs.jsonl", "final_traces.json", "runs.jsonl.gz", "runs.json.zst", "runs.parquet")
FILES = 40
"""So many are tried in a round."""


def documents():
    """JSON values in every format, and the lines of a session."""
    atif = json.loads((CASES / "atif.json").read_text())
    found = [json.loads(path.read_text()) for path in sorted((CASES / "formats").glob("*.json"))]
    found += [atif, agentpile.Run(atif).to_otlp()]
    found.append([json.loads(own) for own in (CASES / "session.jsonl").read_text().splitlines()[:-1]])
    found.append([orjson.loads(line(run)) for run in simulate(3, seed=1)])
    return found


def changed(chance, value):
    """The value with something in it left out, doubled or replaced."""
    if not isinstance(value, (dict, list)) or not value or chance.random() < 0.1:
        return chance.choice(VALUES)
    copy = value.copy()
    key = chance.choice(list(copy) if isinstance(copy, dict) else range(len(copy)))
    how = chance.random()
    if how < 0.1:
        del copy[key]
    elif how < 0.2 and isinstance(copy, list):
        copy.insert(key, copy[key])
    else:
        copy[key] = changed(chance, copy[key])
    return copy


def as_parquet(value):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    records = value if isinstance(value, list) else [value]
    rows = [record if isinstance(record, dict) else {"messages": record} for record in records]
    texts = [{name: orjson.dumps(own).decode() for name, own in row.items()} for row in rows]
    made = BytesIO()
    try:
        parquet.write_table(pyarrow.Table.from_pylist(rows), made)
    except (pyarrow.ArrowException, TypeError, OverflowError):
        # Columns have one type: as text they hold what is of many.
        made = BytesIO()
        parquet.write_table(pyarrow.Table.from_pylist(texts or [{}]), made)
    return made.getvalue()


FORMS = {
    "document": orjson.dumps,
    "lines": lambda value: b"\n".join(map(orjson.dumps, value if isinstance(value, list) else [value])),
    "parquet": as_parquet,
}


@pytest.fixture(scope="module")
def made(mangled):
    """Bytes that are nearly a file: ``made(chance)``."""
    zstandard = pytest.importorskip("zstandard")
    values = documents()
    packers = [bytes, bytes, gzip.compress, zstandard.compress]

    def make(chance):
        value = chance.choice(values)
        for _ in range(chance.randint(0, 3)):
            value = changed(chance, value)
        data = FORMS[chance.choice(list(FORMS))](value)
        if chance.random() < 0.4:
            data = mangled(chance, data)
        packed = chance.choice(packers)(data)
        return mangled(chance, packed) if chance.random() < 0.2 else packed

    return make


def memory():
    """Resident bytes of this process; None where the system doesn't tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except OSError:
        return None


def kept(some, rounds):
    """Bytes that more rounds leave in memory, beside those of the first."""
    some()
    before = memory()
    for _ in rounds:
        some()
    return memory() - before if before else 0


def test_fuzzed_files_are_trajectories_or_data_errors(made, rounds, tmp_path):
    chance = random.Random(0)
    read = [0, 0]

    def some():
        for _ in range(FILES):
            path = tmp_path / chance.choice(NAMES)
            path.write_bytes(made(chance))
            problems = []
            started = time.process_time()
            runs = list(ingest.load(path, report=problems.append))
            assert time.process_time() - started < 5
            assert not any("\n" in str(problem) for problem in problems)
            assert runs or problems
            read[not runs] += 1
            path.unlink()

    assert kept(some, rounds) < 60_000_000
    assert min(read) > FILES // 10, "both good and bad files are tried"


def test_fuzzed_files_end_the_command_in_lines_alone(made, command, rounds, tmp_path):
    chance = random.Random(1)
    folder, output = tmp_path / "in", tmp_path / "found.jsonl"
    folder.mkdir()
    codes = []

    def some():
        for number in range(8):
            (folder / f"{number}-{chance.choice(NAMES)}").write_bytes(made(chance))
        code, _, problems = command("--input", folder, "--output", output)
        assert all(problem.startswith(("skipped: ", "error: ")) for problem in problems.splitlines()), problems
        assert code == 0 or problems.splitlines()[-1].startswith("error: ")
        rows = output.read_bytes().splitlines() if output.exists() else []
        assert (code == 0) == bool(rows)
        assert all(orjson.loads(row)["trajectory_id"] for row in rows)
        codes.append(code)
        for path in (*folder.iterdir(), output):
            path.unlink(missing_ok=True)

    assert kept(some, rounds) < 60_000_000
    assert set(codes) <= {0, 2}

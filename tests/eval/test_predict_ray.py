"""Corpus prediction on Ray: the same bytes as without it, also when its workers are killed."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from stepsieve.data.errors import DataError
from stepsieve.eval import cluster, sources
from stepsieve.eval.corpus_speed import line
from stepsieve.eval.output import Output

# Ray guards what it starts: who connects by its address has to know the secret, as on any cluster of one's own.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
# A Ray that listens to one machine alone is found there by who takes that machine for all there is.
os.environ.update(cluster.ALONE)
pytest.importorskip("ray", reason="the extra ray is not installed")

CASES = Path(__file__).parents[1] / "cases"
START = """
import sys
from stepsieve.eval import cluster

with cluster.connected(None, 2) as ray:
    print(ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(sources, "SMALL_FILE", 0)
    monkeypatch.setattr(sources, "PIECE_ITEMS", 7)


def test_no_cluster_at_the_address(command, corpus, tmp_path):
    arguments = ("--input", corpus, "--output", tmp_path / "o.jsonl")
    for address in ("127.0.0.1:1", "nowhere", "127.0.0.1:99999999"):
        code, said, problems = command(*arguments, "--engine", "ray", "--ray-address", address)
        assert (code, said) == (2, "")
        assert problems.startswith("error: --ray-address: expected the HOST:PORT of a Ray cluster")
        assert problems.count("\n") == 1
    code, _, problems = command(*arguments, "--ray-address", "127.0.0.1:1")
    assert (code, problems) == (2, "error: --ray-address: expected nothing with --engine local\n")


def test_there_is_an_actor_for_each_free_core_or_gpu():
    free = {"CPU": 15.0, "GPU": 2.0, "memory": 1e9}
    assert cluster.share(free, "cpu") == ({"num_cpus": 1, "num_gpus": 0}, 15)
    assert cluster.share(free, "auto") == cluster.share(free, "cuda") == ({"num_cpus": 1, "num_gpus": 1}, 2)
    assert cluster.share({}, "auto") == ({"num_cpus": 1, "num_gpus": 0}, 1)
    with pytest.raises(DataError, match="a free GPU in the cluster, found none"):
        cluster.share({"CPU": 15.0}, "cuda")


@pytest.fixture(scope="module")
def running():
    """A process that has started Ray on this machine as the command does, and said where it listens."""
    command = [sys.executable, "-c", START]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, **pipes, text=True) as process:
        address = process.stdout.readline().strip()
        assert address.startswith("127.0.0.1:"), "it listens to this machine alone"
        yield process.pid, address
        _, said = process.communicate(timeout=60)
    assert said == "", "Ray starts and ends in silence"


@pytest.fixture
def on_ray(command, running):
    """The command on this Ray."""
    return lambda *arguments: command(*arguments, "--engine", "ray", "--ray-address", running[1])


def test_a_job_begun_without_ray_ends_on_it_with_the_same_file(
    command, on_ray, corpus, cut, runs, small_pieces, tmp_path
):
    (tmp_path / "more.jsonl").write_bytes(b'{"messages": 3}\nnot JSON\n' + line(runs[3]))
    arguments = ("--input", corpus, tmp_path / "more.jsonl", CASES / "redundancybench", "--explain")
    _, _, expected = command(*arguments, "--output", tmp_path / "whole.jsonl")
    with cut(2):
        assert command(*arguments, "--output", tmp_path / "cut.jsonl")[0] == 130
    code, said, problems = on_ray(*arguments, "--output", tmp_path / "cut.jsonl")
    assert code == 0
    assert said.startswith("going on after 14 trajectories")
    assert problems == expected
    assert problems.count("skipped: ") == 3
    assert (tmp_path / "cut.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def scorers(starter):
    """The processes that score, of the Ray that a process has started."""
    processes = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            processes[folder.name] = (folder / "cmdline").read_bytes(), parent
    return [
        int(pid)
        for pid, (title, parent) in processes.items()
        if title.startswith(b"ray::_Scorer") and processes.get(parent, ("", ""))[1] == str(starter)
    ]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")
def test_workers_that_are_killed_lose_nothing(command, on_ray, corpus, running, small_pieces, tmp_path, monkeypatch):
    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    rows = [orjson.loads(row) for row in corpus.read_bytes().splitlines()]
    table = pyarrow.Table.from_pylist([{**row, "messages": orjson.dumps(row["messages"]).decode()} for row in rows])
    parquet.write_table(table, tmp_path / "runs.parquet")
    arguments = ("--input", tmp_path / "runs.parquet")
    assert command(*arguments, "--output", tmp_path / "whole.parquet")[0] == 0
    killed, add = [], Output.add

    def kill(self, *own):
        add(self, *own)
        if not killed:
            killed.extend(scorers(running[0]))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(Output, "add", kill)
    code, said, problems = on_ray(*arguments, "--output", tmp_path / "found.parquet")
    assert killed
    assert (code, problems) == (0, "")
    assert "40 trajectories" in said
    assert (tmp_path / "found.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()


def test_heads_that_read_text(command, on_ray, fused, few, tmp_path):
    pytest.importorskip("transformers", reason="the extra encoder is not installed")
    arguments = ("--checkpoint", fused, "--input", few)
    assert command(*arguments, "--output", tmp_path / "here.jsonl", "--device", "cpu")[0] == 0
    code, _, problems = on_ray(*arguments, "--output", tmp_path / "there.jsonl", "--device", "cpu")
    assert (code, problems) == (0, "")
    assert (tmp_path / "there.jsonl").read_bytes() == (tmp_path / "here.jsonl").read_bytes()

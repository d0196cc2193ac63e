"""Corpus prediction: the same bytes however it is run, cut or continued."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from stepsieve.eval import sources, work
from stepsieve.eval.corpus_speed import line

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "cases"
SCRIPT = ROOT / "eval" / "predict.py"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def cli(*arguments, **options):
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, timeout=60, **options)


def test_two_workers_write_what_one_does(folder, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "SMALL_FILE", 0)
    monkeypatch.setattr(sources, "PIECE_ITEMS", 7)
    monkeypatch.setattr(work, "IN_PROCESS", 0)
    (tmp_path / "more.jsonl").write_bytes(b'{"messages": 3}\nnot JSON\n')
    paths = [corpus, tmp_path / "more.jsonl", CASES / "redundancybench"]
    predictor = work.Predictor(work.Options(str(folder)))
    alone, together = (list(work.score_here(sources.pieces(paths), predictor, workers)) for workers in (1, 2))
    assert len(alone) == 7
    assert [scored.rows for scored in alone] == [scored.rows for scored in together]
    said = [[str(problem) for scored in way for problem in scored.problems] for way in (alone, together)]
    assert said[0] == said[1]
    assert len(said[0]) == 2


@pytest.mark.parametrize(("weight", "most"), [(1, 6), (work.IN_FLIGHT, 2), (10 * work.IN_FLIGHT, 1)])
def test_as_many_pieces_wait_as_keep_two_workers_busy(weight, most):
    pieces = [sources.Piece((), weight, number) for number in range(20)]
    handed, done = [], []

    def submit(piece):
        handed.append(piece)
        assert len(handed) - len(done) <= most
        return piece

    for piece in work.in_order(pieces, submit, lambda piece: piece, 2):
        done.append(piece)
    assert done == pieces


def test_a_killed_run_goes_on_and_ends_with_the_same_file(command, folder, runs, tmp_path):
    many = tmp_path / "many.jsonl"
    many.write_bytes(b"".join(line(replace(run, id=f"{run.id}#{k}")) for k in range(20) for run in runs))
    arguments = ("--checkpoint", folder, "--input", many, "--workers", 1)
    assert command(*arguments, "--output", tmp_path / "whole.jsonl")[0] == 0
    killed = [sys.executable, SCRIPT, *map(str, arguments), "--output", tmp_path / "cut.jsonl"]
    journal = tmp_path / "cut.jsonl.part.job"
    with subprocess.Popen(killed, stdout=subprocess.DEVNULL) as running:
        while running.poll() is None and not (journal.exists() and journal.read_bytes().count(b"\n") > 2):
            time.sleep(0.01)
        running.send_signal(signal.SIGKILL)
    assert running.returncode == -signal.SIGKILL
    assert not (tmp_path / "cut.jsonl").exists()
    part = (tmp_path / "cut.jsonl.part").read_bytes()
    assert 0 < len(part) < len((tmp_path / "whole.jsonl").read_bytes())
    with (tmp_path / "cut.jsonl.part").open("ab") as file:
        file.write(b'{"trajectory_id": "half a li')
    again = cli(*arguments, "--output", tmp_path / "cut.jsonl")
    assert (again.returncode, again.stderr) == (0, b"")
    assert again.stdout.startswith(b"going on after ")
    assert (tmp_path / "cut.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert names(tmp_path) == ["cut.jsonl", "many.jsonl", "whole.jsonl"]


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_cut_after_any_piece(stop, command, corpus, cut, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "SMALL_FILE", 0)
    monkeypatch.setattr(sources, "PIECE_ITEMS", 9)
    assert command("--input", corpus, "--output", tmp_path / "whole.jsonl")[0] == 0
    with cut(stop):
        code, _, said = command("--input", corpus, "--output", tmp_path / "cut.jsonl")
    assert code == 130
    assert said == "interrupted; the same command goes on from here\n"
    code, said, _ = command("--input", corpus, "--output", tmp_path / "cut.jsonl")
    assert code == 0
    assert said.startswith("going on after ")
    assert (tmp_path / "cut.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()

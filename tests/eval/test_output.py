"""The output file: continued where it was cut, and nothing left behind."""

import os
from contextlib import closing

import pytest

from stepsieve.data.errors import DataError
from stepsieve.eval.output import Output


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_another_job_starts_anew(tmp_path):
    with closing(Output(tmp_path / "o.jsonl", {"inputs": 1})) as output:
        output.add(b"{}\n", 1, 0, 0)
    with closing(Output(tmp_path / "o.jsonl", {"inputs": 1})) as output:
        assert (output.progress.trajectories, output.restarted) == (1, False)
    with closing(Output(tmp_path / "o.jsonl", {"inputs": 2})) as output:
        assert (output.progress.trajectories, output.restarted) == (0, True)
        assert list(output.written()) == []
    assert names(tmp_path) == []


def test_what_can_not_be_read_again_leaves_nothing(tmp_path):
    with closing(Output(tmp_path / "o.jsonl", {}, resumable=False)) as output:
        output.add(b"{}\n", 1, 0, 0)
    assert names(tmp_path) == []


def test_a_journal_ahead_of_its_rows_counts_to_where_they_end(tmp_path):
    with closing(Output(tmp_path / "o.jsonl", {})) as output:
        for _ in range(3):
            output.add(b"{}\n", 1, 0, 0)
    os.truncate(tmp_path / "o.jsonl.part", 7)
    with closing(Output(tmp_path / "o.jsonl", {})) as output:
        assert (output.progress.pieces, output.progress.bytes) == (2, 6)
        output.add(b"[]\n", 1, 0, 0)
        output.finish()
    assert (tmp_path / "o.jsonl").read_bytes() == b"{}\n{}\n[]\n"


def test_two_runs_do_not_write_one_file(tmp_path):
    with (
        closing(Output(tmp_path / "o.jsonl", {})),
        pytest.raises(DataError, match="no other run"),
    ):
        Output(tmp_path / "o.jsonl", {})

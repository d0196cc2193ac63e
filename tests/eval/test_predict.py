"""Corpus prediction: what a line is, what is returned, and what becomes of input that can't be used."""

from dataclasses import replace

import orjson
import pytest

from stepsieve.data.ingest import load
from stepsieve.data.trajectory import REDUNDANCY_TYPES
from stepsieve.eval import results, work
from stepsieve.eval.corpus_speed import line
from stepsieve.models import checkpoint
from stepsieve.models.judge import CLS, Judge


def read(path):
    return [orjson.loads(row) for row in path.read_bytes().splitlines()]


def ids(rows):
    return [row["trajectory_id"] for row in rows]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# --- what a line is ---------------------------------------------------------------------------------------------------


def test_a_line_is_what_the_judge_finds(predicted, corpus, runs, folder):
    rows = predicted(corpus)
    found = Judge.from_pretrained(folder).detect_batch(list(load(corpus)))
    assert ids(rows) == [run.id for run in runs]
    assert [row["predictions"] for row in rows] == [[prediction.to_dict() for prediction in own] for own in found]
    assert any(row["predictions"] for row in rows)
    for row in rows:
        assert list(row) == ["trajectory_id", "predictions"]
        for prediction in row["predictions"]:
            assert prediction["redundant_step_type"] in REDUNDANCY_TYPES
            assert list(prediction) == [
                "redundant_step_idx",
                "redundant_step_type",
                "evidence_step_idx",
                "confidence",
            ]


def test_the_benchmark_reads_what_is_written(command, corpus, runs, tmp_path):
    assert command("--input", corpus, "--output", tmp_path / "found.jsonl")[0] == 0
    assert list(results.read(tmp_path / "found.jsonl").trajectories) == [run.id for run in runs]


def test_the_summary_counts(command, corpus, tmp_path):
    code, said, problems = command("--input", corpus, "--output", tmp_path / "found.jsonl")
    predictions = sum(len(row["predictions"]) for row in read(tmp_path / "found.jsonl"))
    assert (code, problems) == (0, "")
    assert said.startswith(f"40 trajectories, {predictions} predictions, 0 skipped in ")
    assert "peak memory" in said
    assert said.endswith(f"written to {tmp_path / 'found.jsonl'}\n")
    assert names(tmp_path) == ["found.jsonl"]


# --- what is returned -------------------------------------------------------------------------------------------------


def test_safe_and_everything(command, corpus, runs, folder, tmp_path):
    for name in ("safe", "everything"):
        assert command("--input", corpus, "--output", tmp_path / f"{name}.jsonl", f"--{name}")[0] == 0
    every = read(tmp_path / "everything.jsonl")
    assert [len(row["predictions"]) for row in every] == [len(run.steps) for run in runs]
    found = Judge.from_pretrained(folder).detect_batch(list(load(corpus)), everything=True)
    safe = [[prediction.to_dict() for prediction in own if prediction.redundant >= 0.6] for own in found]
    assert [row["predictions"] for row in read(tmp_path / "safe.jsonl")] == safe
    assert any(safe)


def test_safe_needs_a_cutoff(judge, command, corpus, tmp_path):
    for head in judge.heads.values():
        checkpoint.save(tmp_path / "judge", replace(head, settings={}), {})
    code, _, problems = command(
        "--input", corpus, "--output", tmp_path / "o.jsonl", "--safe", "--checkpoint", tmp_path / "judge"
    )
    assert code == 2
    assert "safe pruning" in problems


def test_a_head_that_is_missing(judge, command, corpus, tmp_path):
    checkpoint.save(tmp_path / "judge", judge.heads[CLS], {})
    code, _, problems = command("--input", corpus, "--output", tmp_path / "o.jsonl", "--checkpoint", tmp_path / "judge")
    assert code == 2
    assert "with the head 'det'" in problems


# --- what can't be used -----------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(runs, tmp_path):
    """Five lines: the second is no trajectory, the fourth has the id of the first."""
    lines = [line(runs[0]), b'{"messages": [{"role": "nobody"}]}\n', line(runs[1]), line(runs[0]), line(runs[2])]
    (tmp_path / "damaged.jsonl").write_bytes(b"".join(lines))
    return tmp_path / "damaged.jsonl"


def test_one_bad_trajectory_is_left_out(damaged, command, runs, tmp_path):
    code, said, problems = command("--input", damaged, "--output", tmp_path / "o.jsonl")
    assert code == 0
    assert ids(read(tmp_path / "o.jsonl")) == [run.id for run in runs[:3]]
    assert "3 trajectories" in said
    assert "2 skipped" in said
    assert len(problems.splitlines()) == 2
    assert f"{damaged}:2" in problems
    assert "expected one of system, user, assistant, tool" in problems
    assert "expected one trajectory of this id" in problems


def test_one_bad_trajectory_ends_the_run_where_that_is_asked(damaged, command, tmp_path):
    code, said, problems = command("--input", damaged, "--output", tmp_path / "o.jsonl", "--on-error", "raise")
    assert (code, said) == (2, "")
    assert problems.startswith(f"error: {damaged}:2")
    assert problems.count("\n") == 1
    assert names(tmp_path) == ["damaged.jsonl"]


def test_an_id_in_two_files_is_reported(command, corpus, runs, tmp_path):
    (tmp_path / "again.json").write_bytes(line(runs[3]))
    output = tmp_path / "o.jsonl"
    code, _, problems = command("--input", corpus, tmp_path / "again.json", corpus, "--output", output)
    assert code == 0
    assert problems.count("\n") == 1
    assert repr(runs[3].id) in problems
    assert ids(read(output)) == [run.id for run in runs]


def test_what_breaks_the_features_is_left_out_alone(folder, runs, monkeypatch):
    predictor = work.Predictor(work.Options(str(folder)))
    whole = predictor.rows(runs, [])
    detect = predictor.judge.detect_batch

    def fragile(trajectories, everything):
        if any(run.id == runs[5].id for run in trajectories):
            raise IndexError("out of bounds")
        return detect(trajectories, everything)

    monkeypatch.setattr(predictor.judge, "detect_batch", fragile)
    problems = []
    assert predictor.rows(runs, problems) == whole[:5] + whole[6:]
    assert [problem.trajectory for problem in problems] == [runs[5].id]


def test_bad_arguments_are_one_line(command, corpus, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.json").write_text("not JSON")
    cases = [
        (("--input", tmp_path / "missing.json", "--output", out / "o.jsonl"), "missing.json"),
        (("--input", f"{tmp_path}/*.nothing", "--output", out / "o.jsonl"), "a match"),
        (("--input", tmp_path / "empty", "--output", out / "o.jsonl"), "files that end in"),
        (("--input", corpus, "--output", out / "o.csv"), ".parquet"),
        (("--input", corpus, "--output", tmp_path / "none" / "o.jsonl"), "a folder to write into"),
        (("--input", corpus, "--output", out / "o.jsonl", "--checkpoint", tmp_path), "manifest.json"),
        (("--input", corpus, "--output", out / "o.jsonl", "--workers", "0"), "--workers"),
        (("--input", corpus, "--output", out / "o.jsonl", "--device", "tpu"), "tpu"),
        (("--input", corpus, "--output", out / "o.jsonl", "--safe", "--everything"), "--everything"),
        (("--input", tmp_path / "text.json", "--output", out / "o.jsonl", "--on-error", "raise"), "text.json"),
    ]
    for arguments, word in cases:
        code, said, problems = command(*arguments)
        assert (code, said) == (2, ""), arguments
        assert problems.count("\n") == 1, problems
        assert word in problems
    code, _, problems = command("--input", tmp_path / "text.json", "--output", out / "o.jsonl")
    assert code == 2
    assert problems.splitlines()[-1] == "error: expected at least one trajectory that can be used, found none"
    assert names(out) == []


def test_an_output_among_the_inputs_is_refused(command, corpus, tmp_path):
    own = tmp_path / "runs.jsonl"
    own.write_bytes(corpus.read_bytes())
    code, _, problem = command("--input", own, "--output", own)
    assert code == 2
    assert "not among the inputs" in problem
    assert own.read_bytes() == corpus.read_bytes()
    assert names(tmp_path) == ["runs.jsonl"]

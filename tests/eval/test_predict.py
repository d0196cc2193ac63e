"""Corpus prediction: every format in, every form out, the same bytes however it is run, cut or continued."""

import gzip
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest

from stepsieve.data.errors import DataError
from stepsieve.data.features import RETRIEVAL_FEATURES
from stepsieve.data.ingest import load, scan
from stepsieve.data.messages import write_message
from stepsieve.data.simulate import simulate
from stepsieve.data.trajectory import REDUNDANCY_TYPES
from stepsieve.eval import explain, predict, results, sources, work
from stepsieve.eval.explain import Explainer, in_words
from stepsieve.eval.output import Output
from stepsieve.models import checkpoint
from stepsieve.models.judge import CLS, DET, RET, Judge
from stepsieve.train.config import GbdtOptions, TrainConfig
from stepsieve.train.fit import Training

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "cases"
SHARED = ROOT.parent / "shared" / "data"
SCRIPT = ROOT / "eval" / "predict.py"


@pytest.fixture(scope="module")
def judge():
    config = TrainConfig(inner_folds=2, gbdt=GbdtOptions(rounds=6, learning_rate=0.4, threads=1))
    runs = simulate(50, seed=5)
    return Training(runs, (CLS, RET, DET), [], config).fit("gbdt", np.arange(len(runs)))


@pytest.fixture(scope="module")
def folder(judge, tmp_path_factory):
    """The judge as a checkpoint, with cutoffs that return something."""
    made = tmp_path_factory.mktemp("judge")
    cutoff = {"threshold": 0.3, "first": 0.0, "safe": 0.6, "prune": False}
    for task, head in judge.heads.items():
        own = replace(head, settings={**head.settings, "cutoff": cutoff}) if task == DET else head
        checkpoint.save(made, own, {})
    return made


@pytest.fixture(scope="module")
def runs():
    return simulate(40, seed=9)


def line(run):
    return orjson.dumps(
        {
            "trajectory_id": run.id,
            "policy": run.policy,
            "messages": [write_message(message) for message in run.messages],
        }
    )


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


@pytest.fixture(scope="module")
def corpus(runs, tmp_path_factory):
    file = tmp_path_factory.mktemp("corpus") / "runs.jsonl"
    file.write_bytes(b"\n".join(map(line, runs)) + b"\n")
    return file


@pytest.fixture
def command(folder, monkeypatch, capsys):
    """The command in this process: exit code, stdout, stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["predict.py", "--checkpoint", str(folder), *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            predict.run_cli(predict.main)
        return (end.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def predicted(command, tmp_path):
    """What the command writes for an input, as lines."""

    def run(*inputs):
        code, _, problems = command("--input", *inputs, "--output", tmp_path / "found.jsonl")
        assert (code, problems) == (0, "")
        return read(tmp_path / "found.jsonl")

    return run


def read(path):
    return [orjson.loads(row) for row in path.read_bytes().splitlines()]


def ids(rows):
    return [row["trajectory_id"] for row in rows]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def cli(*arguments, **options):
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, timeout=60, **options)


# --- what a line is --------------------------------------------------------------------------------------------------


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


# --- formats in ------------------------------------------------------------------------------------------------------


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
    found = cli("--checkpoint", folder, "--input", "-", "--output", tmp_path / "o.jsonl", input=corpus.read_bytes())
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


# --- forms out -------------------------------------------------------------------------------------------------------


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


# --- order, workers, continuing --------------------------------------------------------------------------------------


def test_two_workers_write_what_one_does(folder, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "SMALL_FILE", 0)
    monkeypatch.setattr(sources, "PIECE_ITEMS", 7)
    monkeypatch.setattr(work, "IN_PROCESS", 0)
    (tmp_path / "more.jsonl").write_bytes(b'{"messages": 3}\nnot JSON\n')
    paths = [corpus, tmp_path / "more.jsonl", CASES / "redundancybench"]
    predictor = work.Predictor(work.Options(str(folder)))
    alone, together = (list(work.score(sources.pieces(paths), predictor, workers)) for workers in (1, 2))
    assert len(alone) == 7
    assert [scored.rows for scored in alone] == [scored.rows for scored in together]
    said = [[str(problem) for scored in way for problem in scored.problems] for way in (alone, together)]
    assert said[0] == said[1]
    assert len(said[0]) == 2


def test_a_killed_run_goes_on_and_ends_with_the_same_file(command, folder, runs, tmp_path):
    many = tmp_path / "many.jsonl"
    many.write_bytes(b"".join(line(replace(run, id=f"{run.id}#{k}")) + b"\n" for k in range(20) for run in runs))
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
def test_cut_after_any_piece(stop, command, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "SMALL_FILE", 0)
    monkeypatch.setattr(sources, "PIECE_ITEMS", 9)
    assert command("--input", corpus, "--output", tmp_path / "whole.jsonl")[0] == 0
    add, left = Output.add, iter(range(stop - 1))

    def cut(self, *arguments):
        add(self, *arguments)
        if next(left, None) is None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Output, "add", cut)
        code, _, said = command("--input", corpus, "--output", tmp_path / "cut.jsonl")
    assert code == 130
    assert said == "interrupted; the same command goes on from here\n"
    code, said, _ = command("--input", corpus, "--output", tmp_path / "cut.jsonl")
    assert code == 0
    assert said.startswith("going on after ")
    assert (tmp_path / "cut.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


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


# --- what can't be used ----------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(runs, tmp_path):
    """Five lines: the second is no trajectory, the fourth has the id of the first."""
    lines = [line(runs[0]), b'{"messages": [{"role": "nobody"}]}', line(runs[1]), line(runs[0]), line(runs[2])]
    (tmp_path / "damaged.jsonl").write_bytes(b"\n".join(lines))
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


# --- what is returned ------------------------------------------------------------------------------------------------


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


def test_explanations_say_what_moved_a_prediction(command, corpus, predicted, tmp_path):
    assert command("--input", corpus, "--output", tmp_path / "o.jsonl", "--explain")[0] == 0
    rows = read(tmp_path / "o.jsonl")
    known = {feature.name for feature in RETRIEVAL_FEATURES}
    for prediction in (prediction for row in rows for prediction in row["predictions"]):
        because = prediction.pop("because")
        assert 1 <= len(because) <= 5
        assert {reason["feature"] for reason in because} <= known
        sizes = [abs(reason["effect"]) for reason in because]
        assert sizes == sorted(sizes, reverse=True)
        assert all(": " in reason["says"] for reason in because)
    assert rows == predicted(corpus)


def test_effects_add_up_to_what_the_heads_say(judge, runs, monkeypatch):
    """With every feature shown and every candidate a rival, they are log P(step) P(evidence) less where that starts."""
    monkeypatch.setattr(explain, "SHOWN", 10**6)
    monkeypatch.setattr(explain, "RIVALS", 10**6)
    monkeypatch.setattr(Explainer, "_types", lambda self, features, names: np.zeros(features.shape))
    raw = Judge(judge.heads)
    raw.triple = replace(raw.triple, slope=1.0, intercept=0.0)
    found = raw.detect_batch(runs[:6], everything=True)
    rest = []
    for run, own, reasons in zip(runs, found, Explainer(judge).explain(runs[:6], found), strict=False):
        for prediction, because in zip(own, reasons, strict=True):
            type_given = judge.classify(run, prediction.step, prediction.evidence).confidence
            alike = 1 / len(candidate_references(run, prediction.step))
            said = prediction.confidence / type_given / alike
            rest.append(np.log(said) - sum(reason["effect"] for reason in because))
    # What is left is the same for all: log P(redundant) of the mean of training.
    assert np.ptp(rest) < 0.01


def candidate_references(run, step):
    from stepsieve.data.features.candidates import candidates
    from stepsieve.data.features.index import Index

    index = Index([run])
    return candidates(index, np.array([index.row(0, step)])).question


def test_only_gbdt_heads_can_be_explained(judge):
    class Other:
        pass

    heads = {**judge.heads, RET: replace(judge.heads[RET], backend="encoder", scorer=Other())}
    with pytest.raises(DataError, match="'encoder' for 'ret'"):
        Explainer(Judge(heads))


def test_every_feature_has_words():
    for feature in RETRIEVAL_FEATURES:
        for value in (0.0, 1.0, float("nan")):
            words = in_words(feature, value)
            assert "\n" not in words
            assert feature.name not in words


def test_an_output_among_the_inputs_is_refused(command, corpus, tmp_path):
    own = tmp_path / "runs.jsonl"
    own.write_bytes(corpus.read_bytes())
    code, _, problem = command("--input", own, "--output", own)
    assert code == 2
    assert "not among the inputs" in problem
    assert own.read_bytes() == corpus.read_bytes()
    assert names(tmp_path) == ["runs.jsonl"]

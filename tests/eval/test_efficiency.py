"""Tokens, shares and correlations by hand; pruned runs and experience files as the commands write them."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
from scipy import stats

from stepsieve.data import redundancybench
from stepsieve.data.ingest import from_object, load
from stepsieve.data.openai_chat import check_chat
from stepsieve.data.pruning import prune
from stepsieve.data.trajectory import DUPLICATED, EXPLORATORY, Label, Message, ToolCall, Trajectory
from stepsieve.eval.efficiency import Cost, correlations, cost, share, slices
from stepsieve.eval.experience import GOLD, MODEL, ORIGINAL, experiences, template
from stepsieve.eval.tokens import Estimate, best_estimate, by_characters, recorded_tokens, step_tokens

ROOT = Path(__file__).parents[2]
WORDS = Estimate("words", lambda texts: np.array([len(text.split()) for text in texts], dtype=np.float64))

RUN = Trajectory(
    "run",
    (
        Message("user", "please help me"),
        Message("assistant", "I look", (ToolCall("look", {"a": 1}, "c1"), ToolCall("find", {"b": 2, "c": 3}, "c2"))),
        Message("tool", "one two three", call_id="c1"),
        Message("tool", "four", call_id="c2"),
        Message("user", None, (ToolCall("press", {}, "u", "user"),)),
        Message("tool", "pressed the button", call_id="u", requestor="user"),
        Message("assistant", "all done now"),
    ),
    domain="desk",
    task_id="t",
    labels=(Label((1, 2), EXPLORATORY, (-1,)),),
)


# --- tokens ----------------------------------------------------------------------------------------------------------


def test_the_calls_of_a_message_share_its_tokens_by_their_size():
    tokens = step_tokens(RUN, WORDS)
    # look {"a": 1} is 3 words, find {"b": 2, "c": 3} is 5, the text beside them 2.
    assert tokens.message.tolist() == [3, 10, 3, 1, 2, 3, 3]
    assert tokens.recorded == 0
    assert tokens.written == {(1, 2): 10 * 3 / 8, (1, 3): 10 * 5 / 8}
    assert tokens.read == {(1, 2): 3, (1, 3): 1}


def test_recorded_usage_comes_before_any_estimate():
    usage = {"completion_tokens": 80, "prompt_tokens": 900}
    messages = [replace(own, extra={"usage": usage}) if own.role != "user" else own for own in RUN.messages]
    tokens = step_tokens(replace(RUN, messages=tuple(messages)), WORDS)
    assert tokens.message.tolist() == [3, 80, 3, 1, 2, 3, 80]  # of results nobody records it
    assert tokens.recorded == 2
    assert sum(tokens.written.values()) == 80
    for unusable in ({"completion_tokens": None}, {"completion_tokens": -1}, {"completion_tokens": True}, {}, 7):
        assert recorded_tokens(Message("assistant", "x", extra={"usage": unusable})) is None


def test_a_chats_usage_is_read_and_nothing_else_beside_it():
    chat = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes", "usage": {"completion_tokens": 7}},
    ]
    messages = from_object([*chat, {"role": "user", "content": "bye", "note": 1}]).messages
    assert [recorded_tokens(message) for message in messages] == [None, 7, None]
    assert messages[2].extra == {}


def test_the_tokenizer_reads_a_text_to_its_end_and_characters_need_none():
    assert by_characters().count(["", "four" * 5]).tolist() == [0, 5]
    estimate = best_estimate()
    if "tokenizer" not in estimate.name:
        pytest.skip("the extra minilm is not installed")
    assert estimate.count(["hello world", "hello " * 3000, ""]).tolist() == [2, 3000, 0]
    assert estimate.count([]).tolist() == []


# --- shares and correlations -----------------------------------------------------------------------------------------


def test_the_cost_of_a_run_by_hand():
    found = cost([RUN], [step_tokens(RUN, WORDS)], [((1, 2),)])
    # Agent tokens: 10 + 3 written, 3 + 1 returned; the user's side is not counted.
    assert found.total.tolist() == [[17, 13]]
    assert found.redundant.tolist() == [[10 * 3 / 8 + 3, 10 * 3 / 8]]
    assert share(found, 0).value == pytest.approx(6.75 / 17)
    assert share(found, 1).value == pytest.approx(3.75 / 13)
    nobody = cost([RUN], [step_tokens(RUN, WORDS)], [None])
    assert nobody.answered().runs == []
    assert np.isnan(share(nobody.answered(), 0).value)


def costs(*rows):
    """(task, redundant, total) of each run, as a Cost."""
    runs = [replace(RUN, id=str(number), task_id=task) for number, (task, _, _) in enumerate(rows)]
    redundant, total = (np.array([[row[k]] * 2 for row in rows], dtype=np.float64).reshape(-1, 2) for k in (1, 2))
    return Cost(runs, total, redundant)


ROWS = (("s", 1, 10), ("s", 3, 14), ("t", 10, 20), ("t", 20, 90), ("t", 0, 40), ("u", 500, 7))


def test_within_tasks_each_run_is_set_against_its_task_and_one_run_says_nothing():
    found = correlations(costs(*ROWS), within=True)
    x, y = [-1, 1, 0, 10, -10], [-2, 2, -30, 40, -10]
    assert found["pearson"].value == pytest.approx(stats.pearsonr(x, y)[0])
    assert found["spearman"].value == pytest.approx(stats.spearmanr(x, y)[0])
    assert found["pearson"].n == 5
    assert found["pearson"].low < found["pearson"].value <= found["pearson"].high <= 1


def test_across_runs_is_the_plain_correlation_whatever_the_scale():
    for scale in (1, 1e7):
        found = correlations(costs(*((task, x * scale, y * scale) for task, x, y in ROWS)), within=False)
        x, y = [row[1] for row in ROWS], [row[2] for row in ROWS]
        assert found["pearson"].value == pytest.approx(stats.pearsonr(x, y)[0])
        assert found["spearman"].value == pytest.approx(stats.spearmanr(x, y)[0])


def test_tasks_alone_make_no_correlation_within_tasks():
    rows = [(str(task), task * 10 + own, task * 100 - own) for task in range(20) for own in (0, 1)]
    assert correlations(costs(*rows), within=False)["pearson"].value > 0.99
    assert correlations(costs(*rows), within=True)["pearson"].value == pytest.approx(-1)


@pytest.mark.parametrize("rows", [[], [("s", 1, 2)], [("s", 1, 2), ("s", 1, 3)]], ids=["none", "one", "constant"])
def test_where_nothing_varies_no_correlation_is_defined(rows):
    for within in (True, False):
        assert all(np.isnan(own.value) for own in correlations(costs(*rows), within).values())


def test_slices_split_a_domain_by_subset_only_where_it_has_several():
    runs = [replace(RUN, domain=domain, subset=subset) for domain, subset in (("a", "x"), ("a", "y"), ("b", "x"))]
    found = {name: mask.tolist() for name, mask in slices(runs).items()}
    assert found == {
        "all": [True] * 3,
        "a": [True, True, False],
        "b": [False, False, True],
        "a, x": [True, False, False],
        "a, y": [False, True, False],
    }


# --- experience ------------------------------------------------------------------------------------------------------


def test_a_workflow_tells_the_request_and_every_step_in_order():
    assert template(replace(RUN, outcome=1.0)).splitlines() == [
        "# Workflow from an earlier run",
        "",
        "Request: please help me",
        "",
        "1. Say: I look",
        '2. Call look with {"a":1} -> one two three',
        '3. Call find with {"b":2,"c":3} -> four',
        "4. The user called press with {} -> pressed the button",
        "5. Say: all done now",
        "",
        "Outcome: the task was solved.",
    ]


def test_variants_differ_in_the_redundant_steps_alone_and_a_writer_can_be_another():
    records = list(experiences([RUN], {ORIGINAL: [()], MODEL: [None], GOLD: [((1, 2),)]}, WORDS))
    assert records[0][MODEL] is None
    original, gold = records[0][ORIGINAL], records[0][GOLD]
    assert original["text"] == template(RUN)
    assert gold["text"] == template(prune(RUN, [(1, 2)]).trajectory)
    assert (original["steps"], gold["steps"], gold["removed"]) == (2, 1, [[1, 2]])
    assert set(original["text"].splitlines()) - set(gold["text"].splitlines()) >= {
        '2. Call look with {"a":1} -> one two three'
    }
    assert original["tokens"] == len(original["text"].split())
    written = list(experiences([RUN], {ORIGINAL: [()]}, WORDS, write=lambda run: f"{len(run.messages)} messages"))
    assert written[0][ORIGINAL]["text"] == "7 messages"


# --- the commands ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, simulated):
    """30 labelled simulated runs in the released layout, the last of them without predictions; and a file that predicts
    of each of the others the first step, and one that is none."""
    folder = tmp_path_factory.mktemp("corpus")
    runs = [run for run in simulated if run.labels is not None and run.steps][:30]
    redundancybench.write(runs, folder / "data")
    rows = [
        {
            "trajectory_id": run.id,
            "predictions": [
                {
                    "redundant_step_idx": step,
                    "redundant_step_type": DUPLICATED,
                    "evidence_step_idx": [-1],
                    "confidence": 1,
                }
                for step in (list(run.steps[0].reference), [998, 999])
            ],
        }
        for run in runs[:29]
    ]
    (folder / "predictions.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    return folder


def command(name, *arguments, cwd):
    own = [sys.executable, ROOT / "eval" / f"{name}.py", "--data", cwd / "data", *arguments]
    return subprocess.run(list(map(str, own)), capture_output=True, text=True, timeout=120, cwd=cwd)


def lines(path):
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def test_pruned_runs_are_valid_chats_that_load_again_and_the_report_names_every_message(corpus):
    found = command("prune", "--gold", "--output", "gold.jsonl", cwd=corpus)
    assert found.returncode == 0, found.stderr
    runs = {run.id: run for run in load(corpus / "data")}
    written, report = lines(corpus / "gold.jsonl"), lines(corpus / "gold.jsonl.report.jsonl")
    assert [own["trajectory_id"] for own in written] == [own["trajectory_id"] for own in report] == list(runs)
    for line, about in zip(written, report, strict=True):
        run = runs[line["trajectory_id"]]
        check_chat(line["messages"])
        for message, index in zip(line["messages"], about["messages"], strict=True):
            original = run.policy if index is None else run.messages[index].content
            assert (message["content"] or "") == (original or "")
        asked = {label.step for label in run.labels}
        assert asked == {*map(tuple, about["removed"]), *(tuple(own["step"]) for own in about["retained"])}
        shown = {index for index in about["messages"] if index is not None}
        assert not shown & {index for step in about["removed"] for index in step[1:]}
        assert {tuple(own) for own in about["user_side"]} == {
            it.reference for it in run.interactions if it.call.requestor == "user"
        }
    assert sum(len(own["removed"]) for own in report) > 0
    again = list(load(corpus / "gold.jsonl"))
    assert [run.id for run in again] == list(runs)
    assert all(it.result_index is not None for run in again for it in run.interactions)


def test_experience_from_predictions_and_labels(corpus):
    found = command("experience", "--predictions", "predictions.jsonl", "--output", "experience.jsonl", cwd=corpus)
    assert found.returncode == 0, found.stderr
    records = lines(corpus / "experience.jsonl")
    assert len(records) == 30
    assert sum(own[MODEL] is None for own in records) == 1
    assert all(own[GOLD]["steps"] + len(own[GOLD]["removed"]) == own[ORIGINAL]["steps"] for own in records)
    assert 0 < sum(len(own[MODEL]["removed"]) for own in records if own[MODEL]) <= 29
    assert sum(own[GOLD]["tokens"] for own in records) < sum(own[ORIGINAL]["tokens"] for own in records)
    assert "original: 30 runs" in found.stdout


def test_efficiency_of_predictions_and_labels(corpus):
    found = command("efficiency", "--predictions", "predictions.jsonl", "--json", "out.json", cwd=corpus)
    assert found.returncode == 0, found.stderr
    assert "0 of" in found.stdout
    assert "estimated" in found.stdout
    written = orjson.loads((corpus / "out.json").read_bytes())
    gold, predicted = written["redundant"].values()
    assert (gold["all"]["runs"], predicted["all"]["runs"]) == (30, 29)
    assert gold["all"]["agent_tokens"] > gold["all"]["written_tokens"] > 0
    for own in (gold["all"], predicted["all"]):
        assert 0 < own["redundant_share"]["low"] < own["redundant_share"]["value"] < 1
    assert written["paper_within_tasks"]["airline"] == "r = 0.816"


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("prune", ["--gold", "--predictions", "predictions.jsonl", "--output", "x.jsonl"], "found two"),
        ("prune", ["--output", "x.jsonl", "--checkpoint", "missing"], "missing"),
        ("experience", ["--predictions", "missing.json", "--output", "x.jsonl"], "missing.json"),
        ("efficiency", ["--predictions", "data/automated_annotation"], "automated_annotation"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(name, arguments, words, corpus):
    found = command(name, *arguments, cwd=corpus)
    assert (found.returncode, found.stdout, found.stderr.count("\n")) == (2, "", 1)
    assert words in found.stderr
    assert not (corpus / "x.jsonl").exists()

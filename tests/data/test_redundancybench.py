import copy
import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from stepsieve.data import redundancybench
from stepsieve.data.errors import DataError
from stepsieve.data.trajectory import Label, Message, ToolCall, Trajectory

CASES = Path(__file__).parents[1] / "cases" / "redundancybench"
RELEASED = Path(__file__).parents[2].parent / "shared" / "data" / "redundancybench"
HUMAN = "human_annotation/library"
AUTOMATED = "automated_annotation/library"
needs_release = pytest.mark.skipif(not RELEASED.is_dir(), reason=f"no RedundancyBench files at {RELEASED}")


def files(root):
    return {path.relative_to(root).as_posix(): json.loads(path.read_text("utf-8")) for path in root.rglob("*.json")}


@pytest.fixture
def corpus(tmp_path):
    """A copy of the hand-written corpus, to break."""
    return Path(shutil.copytree(CASES, tmp_path / "corpus"))


def edit(path, change):
    value = json.loads(path.read_text("utf-8"))
    change(value)
    path.write_text(json.dumps(value), "utf-8")


def test_reads_both_subsets():
    human, renewal, heron, unlabelled, simulated = redundancybench.read(CASES)
    assert human.id == "human_annotation:library:7"
    assert (human.subset, human.domain, human.task_id, human.agent, human.outcome) == (
        "human",
        "library",
        "7",
        None,
        1.0,
    )
    assert human.labels == (Label((4, 5), "Duplicated Step", (2, 3), synthetic=True, confidence="certain"),)
    assert human.policy is renewal.policy
    assert [label.reason for label in renewal.labels] == ["", "the hold list was enough"]
    assert renewal.task["evaluation_criteria"] == {"actions": []}
    assert renewal.interactions[-1].call.requestor == "user"
    assert (heron.id, heron.subset, heron.agent) == ("heron:library:0", "automated", "heron")
    assert heron.labels[0].confidence == "1"
    assert [step.error for step in heron.steps] == [True, False]
    assert unlabelled.labels is None
    assert (simulated.labels, simulated.subset, simulated.outcome) == ((), "simulated", 0.25)


@pytest.mark.parametrize(
    ("part", "found"), [("human_annotation", 2), (HUMAN, 2), ("automated_annotation", 3), (AUTOMATED, 3)]
)
def test_any_level_of_the_layout_can_be_the_root(part, found):
    everything = redundancybench.read(CASES)
    assert redundancybench.read(CASES / part) == (everything[:2] if found == 2 else everything[2:])


def test_a_domain_folder_elsewhere_shows_its_subset(tmp_path):
    shutil.copytree(CASES / AUTOMATED, tmp_path / "library")
    shutil.copytree(CASES / HUMAN, tmp_path / "desk")
    assert redundancybench.read(tmp_path / "library")[0].subset == "automated"
    assert redundancybench.read(tmp_path / "desk")[0].id == "human_annotation:desk:7"


def test_writes_files_back_as_they_were(tmp_path):
    trajectories = redundancybench.read(CASES)
    redundancybench.write(trajectories, tmp_path)
    assert files(tmp_path) == files(CASES)
    assert redundancybench.read(tmp_path) == trajectories


@needs_release
def test_writes_released_files_back_as_they_were(tmp_path):
    trajectories = redundancybench.read(RELEASED)
    redundancybench.write(trajectories, tmp_path)
    assert files(tmp_path) == files(RELEASED)
    assert redundancybench.read(tmp_path) == trajectories
    assert not redundancybench.verify(RELEASED)


def test_order_of_the_trajectories_and_a_part_of_them(tmp_path):
    trajectories = redundancybench.read(CASES)
    redundancybench.write(trajectories[1:3], tmp_path)
    assert [t.id for t in redundancybench.read(tmp_path)] == [t.id for t in trajectories[1:3]]
    assert [task["id"] for task in files(tmp_path)[f"{HUMAN}/final_traces.json"]["tasks"]] == ["renewal"]


def test_a_run_made_in_memory_comes_back(tmp_path):
    call = ToolCall("open_door", {"n": 1}, id="x")
    made = Trajectory(
        id="sim:1",
        messages=(Message("user", "In?"), Message("assistant", None, (call,)), Message("tool", "ok", call_id="x")),
        domain="tower",
        task_id="t",
        subset="simulated",
        agent="scripted",
        labels=(Label((1, 2), "Incorrect Step", (-1,), synthetic=True),),
        outcome=0.0,
        task={"id": "t", "goal": "in"},
        extra={"flaw": "hasty"},
    )
    redundancybench.write([made], tmp_path)
    assert redundancybench.read(tmp_path) == [made]
    assert set(files(tmp_path)) == {f"automated_annotation/tower/{name}" for name in (TRACES, ROWS)}
    unknown = replace(made, outcome=None, labels=None)
    redundancybench.write([unknown], tmp_path)
    assert redundancybench.read(tmp_path) == [unknown]


def test_survives_pickling(tmp_path):
    trajectories = pickle.loads(pickle.dumps(redundancybench.read(CASES)))
    redundancybench.write(trajectories, tmp_path)
    assert files(tmp_path) == files(CASES)


TRACES, ROWS = "final_traces.json", "annotation.json"
BROKEN = {
    "an index out of range": (ROWS, lambda rows: rows[0]["redundant_step_idx"].__setitem__(1, [1, 40]),
        "redundant_step_idx[1]: expected [call, result] of an answered assistant call in messages 0 to 8, "
        "found [1, 40]"),
    "a step that is a user's call": (ROWS, lambda rows: rows[0]["redundant_step_idx"].__setitem__(0, [7, 8]),
        "redundant_step_idx[0]: expected [call, result] of an answered assistant call"),
    "an evidence that is not a pair": (ROWS, lambda rows: rows[0]["evidence_step_idx"].__setitem__(1, [1, 2, 3]),
        "evidence_step_idx[1]: expected one index, or pairs [call, result], found [1, 2, 3]"),
    "an evidence of no interaction": (ROWS, lambda rows: rows[0]["evidence_step_idx"].__setitem__(1, [0, 2]),
        "evidence_step_idx[1]: expected pairs [call, result] of one interaction each, found [0, 2]"),
    "a huge index": (ROWS, lambda rows: rows[0]["evidence_step_idx"].__setitem__(0, [2**70]),
        "evidence_step_idx[0]: expected integer message indices"),
    "an unknown type": (ROWS, lambda rows: rows[0]["redundant_step_type"].__setitem__(0, "Slow Step"),
        "redundant_step_type[0]: expected one of Duplicated Step, Abnormal Step, Incorrect Step, Exploratory Step, "
        "found 'Slow Step'"),
    "lists of unequal length": (ROWS, lambda rows: rows[0]["evidence_step_idx"].pop(),
        "evidence_step_idx: expected 2 items, as in redundant_step_idx, found 1"),
    "reasons of unequal length": (ROWS, lambda rows: rows[0]["reason"].pop(), "reason: expected 2 items"),
    "no list": (ROWS, lambda rows: rows[0].pop("redundant_step_type"),
        "redundant_step_type: expected a list, found null"),
    "an annotation twice": (ROWS, lambda rows: rows.append(copy.deepcopy(rows[0])),
        "expected one annotation of this trajectory, found 2"),
    "an annotation without its trajectory": (ROWS, lambda rows: rows.append({**rows[0], "task_id": "lost"}),
        "trajectory 'lost': expected a simulation for this annotation, found none"),
    "an annotation of nothing": (ROWS, lambda rows: rows.append({}), "[2]: expected an object with task_id"),
    "a trajectory twice": (TRACES, lambda f: f["simulations"].append(copy.deepcopy(f["simulations"][1])),
        "trajectory 'renewal': expected one trajectory of this id, found 2"),
    "a simulation that is text": (TRACES, lambda f: f["simulations"].append("run"),
        "simulations[2]: expected a simulation object, found 'run'"),
    "no messages": (TRACES, lambda f: f["simulations"][1].update(messages=[]),
        "messages: expected at least one message, found an empty list"),
    "a role unknown": (TRACES, lambda f: f["simulations"][1]["messages"][0].update(role="judge"),
        "messages[0].role: expected one of system, user, assistant, tool, found 'judge'"),
    "content that is a number": (TRACES, lambda f: f["simulations"][1]["messages"][2].update(content=3),
        "messages[2].content: expected text or null, found 3"),
    "an error flag that is text": (TRACES, lambda f: f["simulations"][1]["messages"][2].update(error="no"),
        "messages[2].error: expected true, false or null, found 'no'"),
    "a call without a name": (TRACES, lambda f: f["simulations"][1]["messages"][1]["tool_calls"][1].pop("name"),
        "messages[1].tool_calls[1].name: expected the name of a tool, found null"),
    "arguments nested too deep": (TRACES, lambda f: f["simulations"][1]["messages"][1]["tool_calls"][1].update(
        arguments={"a": json.loads("[" * 300 + "]" * 300)}),
        "messages[1].tool_calls[1].arguments: expected at most 100 levels of nesting"),
    "an outcome that is text": (TRACES, lambda f: f["simulations"][1].update(outcome="good"),
        "outcome: expected a number or null, found 'good'"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_bad_input_names_its_place_and_spares_the_rest(corpus, kind):
    name, change, message = BROKEN[kind]
    path = corpus / HUMAN / name
    edit(path, change)
    with pytest.raises(DataError) as raised:
        redundancybench.read(corpus)
    assert message in str(raised.value)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)
    problems = []
    kept = redundancybench.read(corpus, report=problems.append)
    assert str(problems[0]) == str(raised.value)
    assert {t.id for t in kept} >= {"human_annotation:library:7", "heron:library:0"}
    assert redundancybench.verify(corpus)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected JSON in UTF-8"),
        ("[1, 2", "expected JSON in UTF-8"),
        ('{"simulations": [NaN]}', "expected JSON in UTF-8"),
        ('{"simulations": ["\\ud800"]}', "expected JSON in UTF-8"),
        ("[" * 5000, "expected JSON in UTF-8"),
        ("[]", "expected an object with tasks and simulations, found a list"),
        ('{"tasks": []}', "simulations: expected a list of simulations, found null"),
        ('{"simulations": []}', "simulations: expected at least one simulation, found an empty list"),
        ('{"tasks": {}, "simulations": []}', "tasks: expected a list of tasks, found an object"),
    ],
)
def test_a_broken_file_is_one_error(corpus, text, message):
    (corpus / HUMAN / TRACES).write_text(text, "utf-8")
    problems = []
    kept = redundancybench.read(corpus, report=problems.append)
    assert [t.subset for t in kept] == ["automated", "automated", "simulated"]
    assert len(problems) == 1
    assert message in str(problems[0])


def test_annotations_without_traces(corpus):
    (corpus / HUMAN / TRACES).unlink()
    with pytest.raises(DataError, match=r"final_traces\.json: expected a file that can be read"):
        redundancybench.read(corpus)


def test_traces_without_annotations_are_unlabelled(corpus):
    (corpus / HUMAN / ROWS).unlink()
    assert [t.labels for t in redundancybench.read(corpus / HUMAN)] == [None, None]


@pytest.mark.parametrize("name", ["", "nowhere"])
def test_nothing_to_read(tmp_path, name):
    with pytest.raises(DataError, match=r"expected human_annotation/<domain>/final_traces\.json"):
        redundancybench.read(tmp_path / name)


def test_an_id_used_in_two_domains(corpus):
    shutil.copytree(corpus / AUTOMATED, corpus / "automated_annotation" / "museum")
    problems = []
    assert len(redundancybench.read(corpus, report=problems.append)) == 5
    assert {error.trajectory for error in problems} == {"heron:library:0", "heron:library:1", "egret:library:0"}


def test_too_much_text(corpus):
    with pytest.raises(DataError, match="expected at most 100 characters of text in one trajectory"):
        redundancybench.read(corpus, max_text=100)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"domain": "../up"}, "expected a domain that can name a folder"),
        ({"domain": ""}, "expected a domain that can name a folder"),
        ({"id": "mine", "subset": "human"}, "expected the id 'human_annotation:library:12' in the human subset"),
        ({"policy": "\ud800"}, "expected a value that JSON can hold"),
        ({"id": "heron:library:1"}, "expected one trajectory of this id"),
        ({"task": {"id": "12", "other": 1}, "id": "new", "extra": {}}, "expected one task record of this id"),
    ],
)
def test_what_cannot_be_written_leaves_nothing_behind(tmp_path, change, message):
    trajectories = redundancybench.read(CASES)
    with pytest.raises(DataError, match=message):
        redundancybench.write([*trajectories, replace(trajectories[2], **change)], tmp_path)
    assert not list(tmp_path.rglob("*"))


def test_a_failed_write_keeps_the_old_files(tmp_path, monkeypatch):
    trajectories = redundancybench.read(CASES)
    redundancybench.write(trajectories, tmp_path)

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr("stepsieve.data.jsonio.os.replace", full)
    with pytest.raises(OSError, match="disk full"):
        redundancybench.write(trajectories[:1], tmp_path)
    assert files(tmp_path) == files(CASES)
    assert not [path for path in tmp_path.rglob("*") if path.suffix == ".tmp"]

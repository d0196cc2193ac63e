"""The commands, as they are called: what they print and write, and how they refuse."""

import math
import os
import subprocess
import sys
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import orjson
import pytest
import yaml

from stepsieve.data.errors import DataError
from stepsieve.data.messages import write_message
from stepsieve.eval.stagewise import ablations, corpus, evaluate, plan, quality, run, settings
from stepsieve.eval.stagewise.ladders import ladder_of
from stepsieve.eval.stagewise.settings import Settings

ROOT = Path(__file__).parents[3]
SHARED = ROOT.parent / "shared" / "data"
GUEST = {"guest": {"id": "G17"}}
LOOK, BOOK = ("find_guest", {"name": "Ann"}, GUEST), ("book_room", {"room_id": "R1", "guest": "G17"}, {})
FAIL = ("find_guest", {"name": "Bob"}, "Error: no such guest")


def write(path, runs):
    def record(made):
        messages = [write_message(message) for message in made.messages]
        known = {"trajectory_id": made.id, "domain": made.domain, "task_id": made.task_id, "agent": made.agent}
        return orjson.dumps({**known, "outcome": made.outcome, "messages": messages}) + b"\n"

    path.write_bytes(b"".join(map(record, runs)))
    return path


@pytest.fixture
def call(monkeypatch, capsys):
    """Calls a command in this process; gives what it prints."""

    def main(name, *arguments):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        {"run": run, "ablations": ablations, "quality": quality, "plan": plan}[name].main()
        return capsys.readouterr().out

    return main


@pytest.fixture
def runs(desk):
    """Two tasks, two agents, one of which tries what fails; and a task that only one agent ran."""
    made = []
    for task in "tu":
        made.append(desk.run([LOOK, BOOK], id=f"{task}-neat", task_id=task, agent="neat"))
        made.append(desk.run([FAIL, FAIL, LOOK, FAIL, BOOK], id=f"{task}-rash", task_id=task, agent="rash"))
    return [*made, desk.run([LOOK], id="alone", task_id="v", agent="neat")]


def command(name, *arguments):
    """The command in a process of its own, as a user calls it."""
    script = ROOT / "eval" / "stagewise" / f"{name}.py"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )


def test_run_reports_every_run_and_agent(runs, tmp_path):
    done = command("run", "--data", write(tmp_path / "runs.jsonl", runs), "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    lines = [orjson.loads(line) for line in (tmp_path / "out" / "runs.jsonl").read_bytes().splitlines()]
    assert [line["trajectory_id"] for line in lines] == [own.id for own in runs]
    alone = lines[-1]
    assert alone["report"] is None
    assert "another successful run" in alone["reason"]
    assert "1 runs without a graph" in done.stdout
    found = orjson.loads((tmp_path / "out" / "agents.json").read_bytes())
    assert (found["runs"], found["reviewed"]) == (5, 4)
    assert (found["agents"]["neat"]["reviewed"], found["agents"]["neat"]["runs"]) == (2, 3)
    assert found["agents"]["neat"]["score"] == 1.0
    assert found["agents"]["rash"]["score"] < 0.95
    # Every run succeeded: the outcome tells nobody apart, the stages do.
    assert set(found["outcome_discriminability"].values()) == {0.0}
    assert found["discriminability"]["0.05"] > 0
    assert found["kendall_tau"] is None
    assert (tmp_path / "out" / "report.md").read_text().startswith("# Stage-wise evaluation")


def test_given_graphs_are_used_and_checked(runs, tmp_path, call):
    data = write(tmp_path / "runs.jsonl", runs)
    graph = {"milestones": [{"id": "a", "tool": "find_guest", "role": "read"}], "edges": []}
    graphs = tmp_path / "graphs.jsonl"
    graphs.write_bytes(
        orjson.dumps({"domain": "desk", "task_id": "t", "graph": graph})
        + b"\n"
        + orjson.dumps({"domain": "desk", "task_id": "u", "graph": {"milestones": [{"id": "a", "tool": "burn"}]}})
    )
    cases = corpus.cases_of(runs, corpus.read_graphs(graphs))
    assert [case.graph is not None for case in cases] == [True, True, False, False, False]
    assert "a tool of the catalogue, found 'burn'" in cases[2].reason
    assert "a graph of the task, found none" in cases[4].reason
    assert "2 of 5 runs reviewed" in call("run", "--data", data, "--graphs", graphs, "--out", tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("run", ["--data", "{missing}", "--out", "{out}"], "missing"),
        ("run", ["--data", "{alone}", "--out", "{out}"], "a milestone graph for at least one run"),
        ("run", ["--data", "{alone}", "--judges", "llm", "--out", "{out}"], "endpoint.model: expected the name"),
        ("run", ["--data", "{alone}", "--config", "{config}", "--out", "{out}"], "expected the keys of stagewise.yaml"),
        ("run", ["--data", "{alone}", "--graphs", "{config}", "--out", "{out}"], "config.yaml:1"),
        ("ablations", ["--data", "{alone}", "--out", "{out}"], "a milestone graph for at least one run"),
        ("quality", ["--data", "{alone}"], "a run with a graph and reference actions"),
        ("plan", ["--data", "{alone}", "--out", "{out}"], "endpoint.model: expected the name"),
        ("run", ["--data", "{alone}"], "--out"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(desk, tmp_path, call, name, arguments, words):
    (tmp_path / "config.yaml").write_text("stagnation: 3\n")
    places = {
        "missing": tmp_path / "missing",
        "alone": write(tmp_path / "alone.jsonl", [desk.run([LOOK], id="alone", agent="neat")]),
        "config": tmp_path / "config.yaml",
        "out": tmp_path / "out",
    }
    with pytest.raises(DataError) as caught:
        call(name, *(argument.format(**places) for argument in arguments))
    assert words in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_bad_input_is_one_line_and_exit_2(tmp_path):
    done = command("run", "--data", tmp_path / "missing", "--out", tmp_path / "out")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_ablations_print_the_whole_and_five_without(runs, tmp_path, call):
    printed = call("ablations", "--data", write(tmp_path / "runs.jsonl", runs), "--out", tmp_path / "out")
    found = orjson.loads((tmp_path / "out" / "ablations.json").read_bytes())
    names = ["full", "fixed judges", "fixed weights", "no minefields", "no milestone graph", "no stops"]
    assert list(found) == names
    assert all(name in printed for name in names)
    assert found["fixed weights"]["agents"]["rash"]["score"] > found["full"]["agents"]["rash"]["score"]
    assert found["no milestone graph"]["agents"]["rash"]["score"] != found["full"]["agents"]["rash"]["score"]


def test_quality_against_reference_actions(runs):
    actions = [{"name": name, "kwargs": {}} for name in ("find_guest", "book_room", "book_room")]
    known = [replace(own, task={"actions": actions}) for own in runs[:4]]
    found = quality.measure(corpus.cases_of([*known, runs[4]]))
    assert (found["runs"], found["graphs"], found["valid_rate"]) == (5, 4, 1.0)
    # One booking of two; with look-ups two of three calls.
    assert found["operations"]["recall"] == 0.5
    assert found["operations"]["micro_f1"] == pytest.approx(2 / 3)
    assert found["operations and look-ups"]["recall"] == pytest.approx(2 / 3)
    assert found["minefields"]["micro_f1"] == 1.0
    # A missing node of three.
    assert found["ged_similarity"] == pytest.approx(1 - 1 / 3)
    assert quality.reference_actions(runs[0]) is None
    with pytest.raises(DataError, match="a list of actions"):
        quality.reference_actions(replace(runs[0], task={"actions": 3}))


def test_the_graphs_are_the_same_without_the_task_records(runs):
    known = [replace(own, task={"actions": [{"name": "drop_room"}]}) for own in runs]
    assert [case.graph for case in corpus.cases_of(known)] == [case.graph for case in corpus.cases_of(runs)]


# --- settings --------------------------------------------------------------------------------------------------------


def flat(value, prefix=""):
    for field in fields(value):
        own = getattr(value, field.name)
        if is_dataclass(own):
            yield from flat(own, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", own


def test_the_shipped_file_has_every_key_with_a_comment_and_the_papers_values():
    assert settings.read() == Settings()
    text = (ROOT / "configs" / "stagewise.yaml").read_text()
    assert all("#" in line for line in text.splitlines() if line)
    known = yaml.safe_load(text)
    for name, value in flat(Settings()):
        own = known
        for part in name.split("."):
            own = own[part]
        assert own == value
    values = dict(flat(Settings()))
    assert [values[name] for name in ("pass_threshold", "alpha", "beta", "stops.stagnation")] == [0.8, 1.0, 1.0, 16]


def test_a_file_changes_single_keys(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("stops:\n  stagnation: 3\nalpha: 0.5\n")
    made = settings.read(str(path))
    assert (made.stops.stagnation, made.alpha, made.stops.fatal_severity, made.beta) == (3, 0.5, 0.95, 1.0)


@pytest.mark.parametrize(
    "text",
    [
        "stagnation: 3",
        "stops:\n  stagnation: many",
        "stops:\n  stagnation: 0",
        "pass_threshold: 80",
        "alpha: -1",
        "alpha: .nan",
        "alpha: [1]",
        "stops: 3",
        ":",
    ],
)
def test_settings_that_are_none(tmp_path, text):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(DataError, match=r"expected the keys of stagewise.yaml"):
        settings.read(str(path))
    with pytest.raises(DataError, match="a file that can be read"):
        settings.read(str(tmp_path / "missing.yaml"))


# --- real data -------------------------------------------------------------------------------------------------------


def test_successful_agents_are_told_apart_by_stages_alone(released):
    runs = [own for own in released if own.subset == "automated"]
    options = settings.read()
    reviewed = evaluate.review(corpus.cases_of(runs), ladder_of("tier1", options)[0], options)
    found = evaluate.summary(reviewed, options)
    assert len(found["agents"]) == 4
    assert set(found["outcome_discriminability"].values()) == {0.0}
    assert found["discriminability"]["0.01"] > 0
    assert found["reviewed"] + sum(found["without_graph"].values()) == found["runs"] == len(runs)
    assert math.isnan(found["kendall_tau"])


def test_graphs_of_other_trials_have_the_references_operations():
    path = SHARED / "tau_bench" / "gpt-4o-airline.json"
    if not path.is_file():
        pytest.skip("the published tau-bench runs are not beside the checkout: shared/data/tau_bench")
    found = quality.measure(corpus.cases_of(corpus.read(str(path))))
    assert found["valid_rate"] == 1.0
    assert found["operations"]["micro_f1"] >= 0.83
    assert found["operations"]["macro_f1"] >= 0.85

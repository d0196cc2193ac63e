"""Formats: what is read of each, and how it is told from the others."""

import gzip
import json
from pathlib import Path

import pytest

from stepsieve.data import ingest, redundancybench
from stepsieve.data.errors import DataError

CASES = Path(__file__).parents[1] / "cases"
TAU_BENCH = Path(__file__).parents[2].parent / "shared" / "data" / "tau_bench" / "gpt-4o-airline.json"
CHAT = json.loads((CASES / "formats" / "openai.json").read_text())
OWN = json.loads((CASES / "formats" / "stepsieve.json").read_text())
TAU = json.loads((CASES / "formats" / "tau-bench.json").read_text())
TAU2 = json.loads((CASES / "formats" / "tau2-bench.json").read_text())


def saved(folder, value, name="runs.json"):
    path = folder / name
    lines = value if isinstance(value, (str, bytes)) else json.dumps(value)
    path.write_bytes(lines if isinstance(lines, bytes) else lines.encode())
    return path


def lines(*values):
    return "".join((value if isinstance(value, str) else json.dumps(value)) + "\n" for value in values)


def one(*args, **options):
    (trajectory,) = ingest.load(*args, **options)
    return trajectory


def steps(trajectory):
    return [
        (step.call_index, step.result_index, step.call.name, dict(step.call.arguments)) for step in trajectory.steps
    ]


def test_openai_messages_keep_their_positions(tmp_path):
    trajectory = one(saved(tmp_path, CHAT))
    assert trajectory.id == "runs"
    assert trajectory.policy == "Be brief."
    assert trajectory.labels is None
    assert [message.role for message in trajectory.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert trajectory.messages[1].content == "Weather in Oslo\n[image_url]"
    assert steps(trajectory) == [(2, 4, "weather", {"city": "Oslo"}), (2, 3, "weather", {"": '{"city": "Os'})]
    assert [step.error for step in trajectory.steps] == [False, True]


def test_openai_objects(tmp_path):
    row = {
        "id": 17,
        "messages": CHAT,
        "tools": [{"type": "function"}],
        "model": "m",
        "metadata": {"domain": "sky", "task_id": 4},
    }
    first, second = ingest.load(saved(tmp_path, lines(row, {"messages": CHAT}), "chats.jsonl"))
    assert (first.id, first.domain, first.task_id, first.agent) == ("17", "sky", "4", "m")
    assert first.extra["tools"] == [{"type": "function"}]
    assert (second.id, second.group) == ("chats:2", ("", "chats:2"))


def test_legacy_function_calls(tmp_path):
    chat = [
        {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": "{}"}},
        {"role": "function", "name": "weather", "content": "rain"},
    ]
    assert steps(one(saved(tmp_path, chat))) == [(0, 1, "weather", {})]


def test_our_own_json_with_labels(tmp_path):
    row = {
        "trajectory_id": "lamp", "messages": OWN, "policy": "No lamps.", "domain": "home", "task_id": "1", "outcome": 0,
        "redundant_step_idx": [[1, 2]], "redundant_step_type": ["Exploratory Step"], "evidence_step_idx": ["[-1]"],
    }  # fmt: skip
    trajectory = one(saved(tmp_path, row))
    assert (trajectory.id, trajectory.policy, trajectory.outcome, trajectory.group) == (
        "lamp",
        "No lamps.",
        0.0,
        ("home", "1"),
    )
    assert [(label.step, label.evidence) for label in trajectory.labels] == [((1, 2), (-1,))]
    assert steps(trajectory) == [(1, 2, "lamp", {"on": True})]


def test_a_label_needs_a_tool_call(tmp_path):
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hi"}]
    assert one(saved(tmp_path, {"messages": talk})).steps == ()
    labelled = {
        "messages": talk,
        "redundant_step_idx": [[0, 1]], "redundant_step_type": ["Exploratory Step"], "evidence_step_idx": [[-1]],
    }  # fmt: skip
    with pytest.raises(DataError, match=r"trajectory 'runs': redundant_step_idx\[0\]: expected \[call, result\]"):
        one(saved(tmp_path, labelled))


def test_tau_bench(tmp_path):
    first, second = ingest.load(saved(tmp_path, [TAU, {**TAU, "trial": 2, "reward": None}]))
    assert (first.id, first.domain, first.task_id, first.outcome) == ("runs:3:1", "retail", "3", 1.0)
    assert first.policy.startswith("# Retail agent policy")
    assert first.task == {"instruction": "Buy a lamp."}
    assert steps(first)[0][:2] == (1, 3)
    assert (second.id, second.outcome) == ("runs:3:2", None)


@pytest.mark.skipif(not TAU_BENCH.is_file(), reason=f"no tau-bench results at {TAU_BENCH}")
def test_published_tau_bench_results():
    trajectories = list(ingest.load(TAU_BENCH))
    assert len({trajectory.id for trajectory in trajectories}) == 144
    assert sum(trajectory.outcome for trajectory in trajectories) == 60
    assert {trajectory.domain for trajectory in trajectories} == {"airline"}
    assert sum(len(trajectory.steps) for trajectory in trajectories) == 789


def test_tau2_bench(tmp_path):
    trajectory = one(saved(tmp_path, TAU2))
    assert (trajectory.id, trajectory.domain, trajectory.agent, trajectory.outcome) == (
        "run-1",
        "telecom",
        "some-model",
        0.0,
    )
    assert trajectory.policy == "Restart first."
    assert trajectory.task == {"id": "t1", "description": None}
    assert trajectory.steps == ()
    assert set(trajectory.by_reference) == {(1, 2)}


def test_atif(tmp_path):
    trajectory = one(CASES / "atif.json")
    assert (trajectory.id, trajectory.agent, trajectory.policy) == (
        "museum-1",
        "some-model",
        "Tickets are free for children.",
    )
    assert [message.role for message in trajectory.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert steps(trajectory) == [(2, 3, "list_slots", {"day": "Sunday"}), (2, 4, "list_prices", {})]
    assert trajectory.messages[2].content == "Checking."


def test_atif_subagents_follow_their_parent(tmp_path):
    run = json.loads((CASES / "atif.json").read_text())
    run["subagent_trajectories"] = [{**run, "trajectory_id": "helper"}]
    assert [trajectory.id for trajectory in ingest.load(saved(tmp_path, run))] == ["museum-1", "museum-1/helper"]


def test_otlp(tmp_path):
    import agentpile

    run = agentpile.Run(json.loads((CASES / "atif.json").read_text()))
    trajectory = one(saved(tmp_path, run.to_otlp(), "trace.json"))
    assert trajectory.messages == one(CASES / "atif.json").messages


def test_a_claude_code_session(tmp_path):
    trajectory = one(CASES / "session.jsonl")
    assert [message.role for message in trajectory.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert trajectory.messages[1].content == "I will read both files."
    assert steps(trajectory) == [(1, 3, "Read", {"file": "greet.py"}), (1, 2, "Read", {"file": "missing.py"})]
    assert [step.error for step in trajectory.steps] == [False, True]
    assert trajectory.steps[0].result == "print('hello')"
    packed = saved(tmp_path, gzip.compress((CASES / "session.jsonl").read_bytes()), "session.jsonl.gz")
    assert one(packed) == trajectory


def test_benchmark_folders_and_files():
    root = CASES / "redundancybench"
    assert list(ingest.load(root)) == redundancybench.read(root)
    domain = root / "human_annotation" / "library"
    assert list(ingest.load(domain / "final_traces.json")) == redundancybench.read(domain)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (CHAT, "openai"), ({"messages": CHAT}, "openai"), ([{"messages": CHAT}], "openai"),
        ({"messages": OWN}, "stepsieve"),
        ([TAU], "tau-bench"), (TAU, "tau-bench"), (TAU2, "tau2-bench"), ({"resourceSpans": []}, "otlp"),
        ({"schema_version": "ATIF-v1.7", "steps": []}, "atif"),
    ],
)  # fmt: skip
def test_the_format_is_seen_in_the_content(value, name):
    assert ingest.detect(value) == name
    assert name in ingest.FORMATS


@pytest.mark.parametrize("value", [{}, [], [1], {"a": 1}, "text", 3, None, [[{"role": "user"}]], {"type": "user"}])
def test_an_unknown_shape_gets_the_list_of_the_known_ones(value):
    with pytest.raises(DataError, match="expected one of the formats redundancybench, stepsieve, openai"):
        ingest.from_object(value)


def test_an_unknown_name_is_refused_at_once():
    with pytest.raises(DataError, match=r"expected one of the formats .*, found 'csv'"):
        ingest.load("runs.json", "csv")


def test_a_named_format_is_not_detected(tmp_path):
    with pytest.raises(DataError, match="expected an object with simulations"):
        list(ingest.load(saved(tmp_path, CHAT), "tau2-bench"))
    with pytest.raises(DataError, match="expected a folder in the released layout"):
        list(ingest.load(saved(tmp_path, CHAT), "redundancybench"))
    with pytest.raises(DataError, match="expected a file of the format openai, found a folder"):
        list(ingest.load(tmp_path, "openai"))


def test_an_object_in_memory():
    assert ingest.from_object(CHAT, id="now") == ingest.from_object({"messages": CHAT, "id": "now"})
    assert ingest.from_object(TAU2).id == "run-1"
    assert ingest.from_object(json.loads((CASES / "atif.json").read_text())).id == "museum-1"
    session = [json.loads(line) for line in (CASES / "session.jsonl").read_text().splitlines()[:-1]]
    assert len(ingest.from_object(session).steps) == 2
    with pytest.raises(DataError, match="expected one trajectory, found 2"):
        ingest.from_object([{"messages": OWN, "id": "a"}, {"messages": OWN, "id": "b"}])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', {"a": 1}), ({"a": 1}, {"a": 1}), ("", {}), (None, {}), ("{}", {}), ('"', {"": '"'}),
        ("[1]", {"": "[1]"}), ("a=1", {"": "a=1"}), ([1], {"": [1]}), ("NaN", {"": "NaN"}), ('"{}"', {"": '"{}"'}),
    ],
)  # fmt: skip
def test_arguments_a_model_wrote_badly_stay_visible(arguments, expected):
    call = {"function": {"name": "x", "arguments": arguments}}
    trajectory = ingest.from_object([{"role": "assistant", "tool_calls": [call]}])
    assert trajectory.messages[0].tool_calls[0].arguments == expected

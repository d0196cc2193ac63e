import gzip
import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsieve.data import ingest, redundancybench
from stepsieve.data.errors import DataError
from stepsieve.data.trajectory import Trajectory

CASES = Path(__file__).parents[1] / "cases"
TAU_BENCH = Path(__file__).parents[2].parent / "shared" / "data" / "tau_bench" / "gpt-4o-airline.json"

CHAT = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Weather in Oslo"}, {"type": "image_url", "image_url": {}}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
            {"id": "b", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Os'}},
        ],
    },
    {"role": "tool", "tool_call_id": "b", "content": "Error: bad arguments"},
    {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "rain"}]},
    {"role": "assistant", "content": "Rain."},
]
OWN = [
    {"role": "user", "content": "Lamp?"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "name": "lamp", "arguments": {"on": True}}]},
    {"role": "tool", "id": "a", "content": "on"},
]
TAU = {
    "task_id": 3,
    "trial": 1,
    "reward": 1.0,
    "info": {"task": {"instruction": "Buy a lamp."}},
    "traj": [{"role": "system", "content": "# Retail agent policy\n\nSell lamps."}, *CHAT[2:]],
}
TAU2 = {
    "info": {
        "environment_info": {"domain_name": "telecom", "policy": "Restart first."},
        "agent_info": {"implementation": "llm_agent", "llm": "some-model"},
    },
    "tasks": [{"id": "t1", "description": None}],
    "simulations": [
        {
            "id": "run-1",
            "task_id": "t1",
            "trial": 0,
            "reward_info": {"reward": 0.0},
            "messages": [
                {"role": "assistant", "content": "Hi", "tool_calls": None, "turn_idx": 0},
                {"role": "user", "tool_calls": [{"id": "u", "name": "restart", "arguments": {}, "requestor": "user"}]},
                {"role": "tool", "id": "u", "content": "done", "requestor": "user", "error": False},
            ],
        }
    ],
}  # fmt: skip


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


def test_standard_input(monkeypatch):
    data = lines({"messages": OWN}, CHAT).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert [trajectory.id for trajectory in ingest.load("-")] == ["stdin:1", "stdin:2"]


def test_compressed_files(tmp_path):
    path = saved(tmp_path, gzip.compress(lines({"messages": OWN}, {"messages": CHAT}).encode()), "chats.jsonl.gz")
    assert [trajectory.id for trajectory in ingest.load(path)] == ["chats:1", "chats:2"]


def test_zstd(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    path = saved(tmp_path, zstandard.compress(lines({"messages": OWN}, {"messages": CHAT}).encode()), "chats.jsonl.zst")
    assert [trajectory.id for trajectory in ingest.load(path)] == ["chats:1", "chats:2"]
    with pytest.raises(DataError, match="expected a file that can be read"):
        list(ingest.load(saved(tmp_path, path.read_bytes()[:9] + b"broken", "broken.zst")))


def test_zstd_without_its_package(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(DataError, match=r"pip install 'stepsieve\[zstd\]'"):
        list(ingest.load(saved(tmp_path, b"\x28\xb5\x2f\xfd rest")))


@pytest.mark.parametrize("indent", [None, 1])
def test_one_document_may_take_one_line_or_many(tmp_path, indent):
    path = saved(tmp_path, "\ufeff" + json.dumps([{"messages": OWN}, {"messages": CHAT}], indent=indent) + "\n\n")
    assert [trajectory.id for trajectory in ingest.load(path)] == ["runs:0", "runs:1"]


def test_json_lines_are_read_one_at_a_time(tmp_path):
    path = saved(tmp_path, lines({"messages": OWN}, {"messages": OWN}, "{broken"))
    stream = ingest.load(path)
    assert [next(stream).id, next(stream).id] == ["runs:1", "runs:2"]
    with pytest.raises(DataError, match=r"runs.json:3: expected JSON"):
        next(stream)


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


BAD_FILES = {
    "empty": ("", "expected JSON, found an empty file"),
    "blank": ("\n \n", "expected JSON, found an empty file"),
    "not JSON": ("step 1: look", "expected JSON in UTF-8"),
    "not UTF-8": (b'{"messages": "\xff"}', "expected JSON in UTF-8"),
    "cut": ('{"messages": [', "expected JSON in UTF-8"),
    "NaN": ('{"messages": [], "outcome": NaN}', "expected JSON in UTF-8"),
    "an infinite number": ('{"messages": [], "outcome": 1e999}', "expected JSON in UTF-8"),
    "a lone surrogate": ('[{"role": "user", "content": "\\ud800"}]', "expected JSON in UTF-8"),
    "deep nesting": ("[" * 100_000, "expected JSON in UTF-8"),
    "another shape": ('{"rows": []}', "found an object with the keys 'rows'"),
    "no messages": ('{"messages": []}', "messages: expected at least one message"),
    "messages as text": ('{"messages": "hi"}', "messages: expected a list of messages, found 'hi'"),
    "a message that is text": ('{"messages": ["hi"]}', "messages[0]: expected a message object, found 'hi'"),
    "no role": ('{"messages": [{"content": "hi"}]}', "messages[0].role: expected one of system, user, assistant, tool"),
    "a role that is a list": ('{"messages": [{"role": []}]}', "messages[0].role: expected one of"),
    "content": ('{"messages": [{"role": "user", "content": {}}]}', "messages[0].content: expected text or null"),
    "a part": ('{"messages": [{"role": "user", "content": [7]}]}', "messages[0].content[0]: expected a content part"),
    "an Anthropic part": ('{"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}',
        "messages[0].content[0]: expected calls in tool_calls and results in tool messages, found a tool_result part"),
    "calls": ('{"messages": [{"role": "assistant", "tool_calls": {"id": "a"}}]}',
        "messages[0].tool_calls: expected a list"),
    "a call": ('{"messages": [{"role": "assistant", "tool_calls": [3]}]}',
        "messages[0].tool_calls[0]: expected a call"),
    "a call's id": ('{"messages": [{"role": "assistant", "tool_calls": [{"id": [], "name": "x"}]}]}',
        "messages[0].tool_calls[0].id: expected text or null"),
    "an outcome": ('{"messages": [{"role": "user"}], "outcome": "good"}', "outcome: expected a number or null"),
    "a policy": ('{"messages": [{"role": "user"}], "policy": 7}', "policy: expected text or null, found 7"),
    "simulations": ('{"simulations": [{}]}', "trajectory 'runs:0': messages: expected a list of messages"),
    "tau rows": ('[{"traj": null, "task_id": 1, "trial": 0}]', "trajectory 'runs:1:0': messages: expected a list"),
    "ATIF without steps": ('{"schema_version": "ATIF-v1.7"}', "expected an ATIF object with steps"),
    "ATIF of the future": ('{"schema_version": "ATIF-v9", "steps": []}',
        "schema_version: expected ATIF-v1, found 'ATIF-v9'"),
    "ATIF steps": ('{"schema_version": "ATIF-v1.7", "steps": [3]}', "expected ATIF that agentpile can read"),
    "OTLP spans": ('{"resourceSpans": [{"scopeSpans": [{"spans": [{"spanId": 3, "attributes": 3}]}]}]}',
        "expected OTLP that agentpile can read"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_input_is_one_error_with_its_place(tmp_path, kind):
    text, message = BAD_FILES[kind]
    path = saved(tmp_path, text)
    with pytest.raises(DataError) as raised:
        list(ingest.load(path))
    assert message in str(raised.value)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)
    problems = []
    assert list(ingest.load(path, report=problems.append)) == []
    assert [str(error) for error in problems] == [str(raised.value)]


@pytest.mark.parametrize("name", ["nowhere.json", ".", "-/x"])
def test_nothing_to_read(tmp_path, name):
    with pytest.raises(DataError, match="expected"):
        list(ingest.load(tmp_path / name))


def test_cut_compressed_data(tmp_path):
    whole = gzip.compress(lines(*[{"messages": OWN, "id": f"{i}"} for i in range(2000)]).encode())
    problems = []
    kept = list(ingest.load(saved(tmp_path, whole[: len(whole) // 2]), report=problems.append))
    assert 0 < len(kept) < 2000
    assert "expected a file that can be read" in str(problems[0])


def test_in_a_batch_the_others_are_done(tmp_path):
    rows = lines(
        "{broken", {"messages": OWN}, {"messages": []}, 3, {"messages": OWN, "id": "runs:2"}, {"messages": CHAT}
    )
    problems = []
    kept = list(ingest.load(saved(tmp_path, rows, "runs.jsonl"), report=problems.append))
    assert [trajectory.id for trajectory in kept] == ["runs:2", "runs:6"]
    assert [error.file.rsplit(":")[-1] for error in problems] == ["1", "3", "4", "5"]
    assert "expected one trajectory of this id" in str(problems[-1])


def test_in_a_list_the_others_are_done(tmp_path):
    problems = []
    kept = list(ingest.load(saved(tmp_path, [TAU, {**TAU, "traj": []}, {**TAU, "trial": 5}]), report=problems.append))
    assert [trajectory.id for trajectory in kept] == ["runs:3:1", "runs:3:5"]
    assert len(problems) == 1


def test_too_much_text(tmp_path):
    long = {"messages": [{"role": "user", "content": "x" * 3000}]}
    longer = {"messages": [{"role": "user", "content": "x" * 30_000}]}
    problems = []
    path = saved(tmp_path, lines({"messages": OWN}, {"messages": OWN}, long, longer, {"messages": OWN}))
    kept = list(ingest.load(path, report=problems.append, max_text=2000))
    assert [trajectory.id for trajectory in kept] == ["runs:1", "runs:2", "runs:5"]
    assert "expected at most 2,000 characters of text in one trajectory, found 3,000" in str(problems[0])
    assert "expected at most 4,000 bytes in one line" in str(problems[1])


def test_an_object_in_memory():
    assert ingest.from_object(CHAT, id="now") == ingest.from_object({"messages": CHAT, "id": "now"})
    assert ingest.from_object(TAU2).id == "run-1"
    assert ingest.from_object(json.loads((CASES / "atif.json").read_text())).id == "museum-1"
    session = [json.loads(line) for line in (CASES / "session.jsonl").read_text().splitlines()[:-1]]
    assert len(ingest.from_object(session).steps) == 2
    with pytest.raises(DataError, match="expected one trajectory, found 2"):
        ingest.from_object([{"messages": OWN, "id": "a"}, {"messages": OWN, "id": "b"}])


@pytest.mark.parametrize("text", ["\ud800", 2**70, object(), {3: 4}])
def test_what_json_cannot_hold(text):
    with pytest.raises(DataError, match="expected a value that JSON can hold"):
        ingest.from_object([{"role": "user", "content": text}])


def test_nesting_in_memory():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(DataError, match="expected"):
        ingest.from_object({"messages": deep})
    with pytest.raises(DataError, match="expected at most 100 levels"):
        ingest.from_object([{"role": "assistant", "tool_calls": [{"name": "x", "arguments": "[" * 200 + "]" * 200}]}])


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


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(
        ["messages", "role", "content", "tool_calls", "tool_call_id", "id", "name", "arguments", "function",
     "requestor", "error", "traj", "reward", "task_id", "trial", "info", "simulations", "tasks", "reward_info",
     "environment_info", "schema_version", "steps", "source", "message", "observation", "results", "resourceSpans",
     "scopeSpans", "spans", "attributes", "type", "redundant_step_idx", "redundant_step_type", "evidence_step_idx",
     "policy", "outcome", "extra", "agent", "step_id"]
)  # fmt: skip
words = st.sampled_from(
    ["user", "assistant", "tool", "system", "agent", "function", "text", "ATIF-v1.7", "Duplicated Step"]
)
shaped = st.recursive(
    json_values | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=6),
    max_leaves=30,
)


@settings(max_examples=300, deadline=None)
@given(shaped)
def test_no_other_exception_comes_from_bad_input(value):
    try:
        found = ingest.from_object(value)
    except DataError as error:
        found = str(error)
    assert isinstance(found, Trajectory) or "\n" not in found


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60) | st.builds(lambda value: json.dumps(value).encode(), shaped))
def test_no_other_exception_comes_from_a_bad_file(tmp_path_factory, data):
    path = saved(tmp_path_factory.mktemp("bad"), data)
    assert isinstance(list(ingest.load(path, report=[].append)), list)

"""Bad input: one error with its place, and never another exception."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsieve.data import ingest
from stepsieve.data.errors import DataError
from stepsieve.data.trajectory import Trajectory

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
    "no simulations": ('{"simulations": []}', "simulations: expected at least one simulation, found an empty list"),
    "simulations": ('{"simulations": [{}]}', "trajectory 'runs:0': messages: expected a list of messages"),
    "tau rows": ('[{"traj": null, "task_id": 1, "trial": 0}]', "trajectory 'runs:1:0': messages: expected a list"),
    "ATIF without steps": ('{"schema_version": "ATIF-v1.7"}', "expected an ATIF object with steps"),
    "ATIF of the future": ('{"schema_version": "ATIF-v9", "steps": []}',
        "schema_version: expected ATIF-v1, found 'ATIF-v9'"),
    "ATIF steps": ('{"schema_version": "ATIF-v1.7", "steps": [3]}', "expected ATIF that agentpile can read"),
    "OTLP spans": ('{"resourceSpans": [{"scopeSpans": [{"spans": [{"spanId": 3, "attributes": 3}]}]}]}',
        "expected OTLP that agentpile can read"),
}  # fmt: skip


def saved(folder, value, name="runs.json"):
    path = folder / name
    lines = value if isinstance(value, (str, bytes)) else json.dumps(value)
    path.write_bytes(lines if isinstance(lines, bytes) else lines.encode())
    return path


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

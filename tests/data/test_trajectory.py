import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsieve.data.trajectory import Message, ToolCall, Trajectory, is_error, pair_calls


def call(*ids, content=None, requestor="assistant", name="look"):
    role = "user" if requestor == "user" else "assistant"
    return Message(role, content, tuple(ToolCall(name, {}, id=i, requestor=requestor) for i in ids))


def result(id=None, content="ok", requestor="assistant", error=None):
    return Message("tool", content, call_id=id, requestor=requestor, error=error)


def pairs(*messages):
    return [(it.call_index, it.result_index) for it in pair_calls(messages)]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([call("a"), result("a"), call("b"), result("b")], [(0, 1), (2, 3)]),
        ([call("a", "b"), result("a"), result("b")], [(0, 1), (0, 2)]),
        ([call("a", "b", "c"), result("c"), result("a"), result("b")], [(0, 2), (0, 3), (0, 1)]),
        ([call("a"), Message("user", "wait"), result("a")], [(0, 2)]),
        ([call("a"), result("a"), call("a"), result("a")], [(0, 1), (2, 3)]),
        ([call("a"), call("a"), result("a"), result("a")], [(0, 2), (1, 3)]),
        ([result("a"), call("a"), result("a")], [(1, 2)]),
        ([call("a"), call("b"), result("b")], [(0, None), (1, 2)]),
        ([call("a"), result("b")], [(0, None)]),
        ([call("a")], [(0, None)]),
        ([call(None), result(None), call(None), result(None)], [(0, 1), (2, 3)]),
        ([call(None, None), result(None), result(None)], [(0, 1), (0, 2)]),
        ([call(None), result("a")], [(0, 1)]),
        ([call("a"), result(None)], [(0, 1)]),
        ([call("a", None), result(None), result("a")], [(0, 2), (0, 1)]),
        ([result(None), call(None)], [(1, None)]),
        ([call(None), call(None, requestor="user"), result(None, requestor="user"), result(None)], [(0, 3), (1, 2)]),
    ],
)
def test_each_call_is_paired_with_the_first_unused_later_result(messages, expected):
    assert pairs(*messages) == expected


def test_an_answered_call_does_not_block_the_ones_without_id():
    assert pairs(call("x"), call(None), result("y"), result(None)) == [(0, 3), (1, 2)]


def test_steps_are_the_answered_calls_of_the_assistant():
    messages = (
        call("a", "lost", content="Let me look."),
        result("a", None),
        call("u", requestor="user"),
        result("u", requestor="user"),
    )
    trajectory = Trajectory("t", messages)
    assert [(it.call_index, it.result_index) for it in trajectory.interactions] == [(0, 1), (0, None), (2, 3)]
    assert [step.reference for step in trajectory.steps] == [(0, 1)]
    assert set(trajectory.by_reference) == {(0, 1), (2, 3)}
    assert trajectory.steps[0].result == ""
    with pytest.raises(ValueError, match="never answered"):
        _ = trajectory.interactions[1].reference


def test_a_run_without_calls_has_no_steps():
    assert Trajectory("t", (Message("user", "hi"), Message("assistant", None))).interactions == ()


def test_the_group_is_the_task_or_else_the_run_itself():
    assert Trajectory("t", (), domain="d", task_id="1").group == ("d", "1")
    assert Trajectory("t", (), domain="d").group == ("d", "t")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("Error: no such room", True),
        ("  Traceback (most recent call last)", True),
        ("Failed to connect", True),
        ("Errors are rare here" , True),
        ("No error", False),
        ("", False),
        (None, False),
        ('{"error": "no such room"}', True),
        ('{"error": null, "room": "blue"}', False),
        ('{"status": "failed"}', True),
        ('{"status": "failed", "payment": 3, "order": "x"}', False),
        ('{"rooms": ["error"]}', False),
        ('{"error": broken', False),
        ("[1, 2]", False),
    ],
)  # fmt: skip
def test_without_a_flag_an_error_is_read_from_the_shape_of_the_content(content, expected):
    assert is_error(Message("tool", content)) is expected


@pytest.mark.parametrize("flag", [True, False])
def test_a_recorded_flag_decides(flag):
    assert is_error(Message("tool", "Error: x", error=flag)) is flag


ids = st.one_of(st.none(), st.sampled_from("abc"))
sides = st.sampled_from(["assistant", "user"])
messages = st.lists(
    st.one_of(
        st.builds(lambda found, side: call(*found, requestor=side), st.lists(ids, min_size=1, max_size=3), sides),
        st.builds(lambda found, side: result(found, requestor=side), ids, sides),
        st.just(Message("user", "hm")),
    ),
    max_size=12,
)


@given(messages)
def test_a_result_is_used_once_and_comes_after_its_call(messages):
    interactions = list(pair_calls(messages))
    used = [it.result_index for it in interactions if it.result_index is not None]
    assert len(set(used)) == len(used)
    assert all(messages[it.result_index].role == "tool" for it in interactions if it.result_index is not None)
    assert all(it.result_index > it.call_index for it in interactions if it.result_index is not None)
    assert [it.call for it in interactions] == [call for message in messages for call in message.tool_calls]


@given(messages)
def test_two_different_ids_are_never_paired(messages):
    for it in pair_calls(messages):
        if it.result_index is not None:
            assert (
                None in (it.call.id, messages[it.result_index].call_id)
                or it.call.id == messages[it.result_index].call_id
            )


@given(st.integers(1, 8).flatmap(lambda n: st.permutations(range(n))))
def test_unique_ids_pair_exactly_in_any_order_of_results(order):
    calls = [f"call{i}" for i in range(len(order))]
    found = list(pair_calls([call(*calls), *(result(f"call{i}", str(i)) for i in order)]))
    assert [it.result for it in found] == [str(i) for i in range(len(order))]

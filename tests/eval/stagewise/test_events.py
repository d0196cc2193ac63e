"""The two clocks: k counts events, t closed actions."""

from stepsieve.data.trajectory import Message, ToolCall, Trajectory
from stepsieve.eval.stagewise.events import Clocks, Event, events_of


def call(key, step, actor="assistant"):
    return Event("call", step, call=ToolCall("tool", {"key": key}, requestor=actor), key=key, actor=actor)


def result(key, step, actor="assistant", error=False):
    return Event("result", step, "{}", key=key, error=error, actor=actor)


def observe(clocks, events):
    return [action for event in events for action in clocks.observe(event)]


def test_an_action_closes_with_its_result():
    clocks = Clocks()
    assert clocks.observe(Event("text", 0, "hello", actor="user")) == ()
    assert clocks.observe(call("a", 1)) == ()
    assert (clocks.k, clocks.t) == (2, 0)
    (action,) = clocks.observe(result("a", 2))
    assert (clocks.k, clocks.t) == (3, 1)
    assert (action.t, action.k, action.calls[0].step, action.calls[0].result_step) == (1, 3, 1, 2)


def test_parallel_calls_are_one_action_that_closes_with_the_last_result():
    clocks = Clocks()
    actions = observe(clocks, [call("a", 1), call("b", 1), result("b", 2), result("a", 3)])
    assert [(action.t, action.k, [own.call.arguments["key"] for own in action.calls]) for action in actions] == [
        (1, 4, ["b", "a"])
    ]


def test_a_call_without_an_answer_closes_failed_when_the_agent_goes_on():
    clocks = Clocks()
    first, second = observe(clocks, [call("a", 1), call("b", 1), result("b", 2), call("c", 3), result("c", 4)])
    assert [(own.call.arguments["key"], own.error, own.result_step) for own in first.calls] == [
        ("b", False, 2),
        ("a", True, None),
    ]
    assert (first.t, second.t) == (1, 2)
    assert observe(clocks, [result("a", 9)]) == []


def test_the_users_talk_does_not_close_the_agents_action_and_the_end_does():
    clocks = Clocks()
    assert observe(clocks, [call("a", 1), Event("text", 2, "well?", actor="user"), call("u", 2, "user")]) == []
    assert {action.calls[0].call.requestor for action in clocks.finish()} == {"assistant", "user"}
    assert clocks.t == 2


def test_events_of_a_recorded_run():
    messages = (
        Message("system", "rules"),
        Message("user", "hello"),
        Message("assistant", "I look.", (ToolCall("one", {}, "x"), ToolCall("two", {}, "x"))),
        Message("tool", "Error: no", call_id="x"),
        Message("tool", "{}", call_id="x"),
        Message("tool", "{}", call_id="nobody asked"),
        Message("user", None, (ToolCall("three", {}, "y", "user"),)),
        Message("tool", "{}", call_id="y", requestor="user"),
    )
    events = list(events_of(Trajectory("a", messages)))
    assert [(event.kind, event.step, event.actor, event.error) for event in events] == [
        ("text", 1, "user", False),
        ("text", 2, "assistant", False),
        ("call", 2, "assistant", False),
        ("call", 2, "assistant", False),
        ("result", 3, "assistant", True),
        ("result", 4, "assistant", False),
        ("call", 6, "user", False),
        ("result", 7, "user", False),
    ]
    assert events[2].key == events[4].key != events[3].key == events[5].key

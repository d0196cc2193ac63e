"""A small world for stage-wise tests: a booking desk with four tools, and runs of it built call by call."""

from types import SimpleNamespace

import orjson
import pytest

pytest.importorskip("networkx", reason="the extra stagewise is not installed")
pytest.importorskip("jsonschema", reason="the extra stagewise is not installed")

from stepsieve.data.trajectory import Message, ToolCall, Trajectory
from stepsieve.eval.stagewise.events import Closed, Event
from stepsieve.eval.stagewise.graph import Milestone, MilestoneGraph
from stepsieve.eval.stagewise.stages import Observed
from stepsieve.eval.stagewise.task_view import TaskView, Tool

TEXT, NUMBER = {"type": "string"}, {"type": "number"}


def tool(name, effect, outputs=None, /, **parameters):
    schema = {"type": "object", "properties": parameters, "required": list(parameters)}
    return Tool(name, schema, outputs or {}, effect)


TOOLS = (
    tool("find_guest", "read", {"guest.id": "string", "guest.age": "integer"}, name=TEXT),
    tool("get_room", "read", {"room_id": "string"}, room=TEXT),
    tool("book_room", "write", {}, room_id=TEXT, guest=TEXT, price=NUMBER),
    tool("drop_room", "write", {}, room_id=TEXT),
)


def closed(name, /, result="{}", error=False, step=2, requestor="assistant", **arguments):
    return Closed(ToolCall(name, arguments, requestor=requestor), step, step + 1, result, error)


def observed(name, /, repeated=False, violation=None, t=1, **rest):
    return Observed(closed(name, **rest), t, repeated, violation)


def chain(*names, edges=()):
    """A graph of milestones on tools of the same names."""
    return MilestoneGraph(tuple(Milestone(name, name) for name in names), tuple(edges))


def call_events(number, name, /, result="{}", error=False, step=None, **arguments):
    step = 2 * number if step is None else step
    call = Event("call", step, call=ToolCall(name, arguments), key=str(number))
    return [call, Event("result", step + 1, result, key=str(number), error=error)]


def run(calls, id="a", task_id="t", agent=None, outcome=1.0, said="Please book.", domain="desk"):
    """A recorded run: what the user said, then each (name, arguments, result) as a call with its result."""
    messages = [Message("user", said)]
    for number, (name, arguments, result) in enumerate(calls):
        messages.append(Message("assistant", None, (ToolCall(name, arguments, f"c{number}"),)))
        text = result if isinstance(result, str) else orjson.dumps(result).decode()
        messages.append(Message("tool", text, call_id=f"c{number}"))
    messages.append(Message("assistant", "Done."))
    return Trajectory(id, tuple(messages), domain=domain, task_id=task_id, agent=agent, outcome=outcome)


@pytest.fixture(scope="session")
def view():
    return TaskView("Please book.", TOOLS, domain="desk", task_id="t")


@pytest.fixture(scope="session")
def desk():
    """The builders."""
    return SimpleNamespace(
        tool=tool, closed=closed, observed=observed, chain=chain, call_events=call_events, run=run, tools=TOOLS
    )

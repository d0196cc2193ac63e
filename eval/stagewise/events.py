"""Events of a run and the two clocks that read them (DynSTEER, section 3.1).

k counts raw events: texts, calls, results. t counts closed actions: the calls of one message are an action, and it
closes once all of them have been answered, or the agent has gone on without an answer. Minefields are seen on k,
before a call has a result; milestones settle and stages are scored on t.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from stepsieve.data.trajectory import ToolCall, Trajectory, is_error


@dataclass(frozen=True, slots=True)
class Event:
    """One raw event e_k.

    Attributes:
        kind: a text, a call or its result.
        step: message index (live: any number that does not fall).
        text: of a text or a result.
        call: of a call.
        key: what pairs a call with its result, unique in the run.
        error: a result that reports a failure.
        actor: who spoke or called, "assistant" or "user".
    """

    kind: Literal["text", "call", "result"]
    step: int
    text: str = ""
    call: ToolCall | None = None
    key: str = ""
    error: bool = False
    actor: str = "assistant"


@dataclass(frozen=True, slots=True)
class Closed:
    """A call whose answer has been seen, or will not come (``result_step`` None; it counts as failed)."""

    call: ToolCall
    step: int
    result_step: int | None
    text: str
    error: bool


@dataclass(frozen=True, slots=True)
class Action:
    """A closed action: its place t on the clock (from 1), the k at which it closed, and its calls."""

    t: int
    k: int
    calls: tuple[Closed, ...]


class Clocks:
    """Reads events one by one. O(calls of the open action) per event.

    Attributes:
        k, t: raw events seen; actions closed.
    """

    def __init__(self) -> None:
        self.k = self.t = 0
        self._open: dict[str, dict[str, Event]] = {}
        self._done: dict[str, list[Closed]] = {}

    def observe(self, event: Event) -> tuple[Action, ...]:
        """The actions that this event closes: at most two, where a call follows one that was never answered."""
        self.k += 1
        closed = []
        waiting = self._open.setdefault(event.actor, {})
        if event.kind == "result":
            asked = waiting.pop(event.key, None)
            if asked is not None and asked.call is not None:
                answer = Closed(asked.call, asked.step, event.step, event.text, event.error)
                self._done.setdefault(event.actor, []).append(answer)
                if not waiting:
                    closed.append(self._close(event.actor))
            return tuple(closed)
        if waiting and event.step > next(iter(waiting.values())).step:
            closed.append(self._close(event.actor))
        if event.kind == "call":
            self._open[event.actor][event.key] = event
        return tuple(closed)

    def finish(self) -> tuple[Action, ...]:
        """The actions that the end of the run closes."""
        return tuple(self._close(actor) for actor in [actor for actor, waiting in self._open.items() if waiting])

    def _close(self, actor: str) -> Action:
        calls = self._done.pop(actor, [])
        for event in self._open.pop(actor, {}).values():
            assert event.call is not None
            calls.append(Closed(event.call, event.step, None, "", True))
        self._open[actor] = {}
        self.t += 1
        return Action(self.t, self.k, tuple(calls))


def events_of(run: Trajectory) -> Iterator[Event]:
    """The events of a recorded run, in order; a message with text and calls gives the text first."""
    answers: dict[int, tuple[str, str]] = {}
    keys: dict[int, list[str]] = {}
    for number, interaction in enumerate(run.interactions):
        keys.setdefault(interaction.call_index, []).append(str(number))
        if interaction.result_index is not None:
            answers[interaction.result_index] = (str(number), interaction.call.requestor)
    for step, message in enumerate(run.messages):
        if message.role == "tool":
            if step in answers:
                key, caller = answers[step]
                yield Event("result", step, message.content or "", key=key, error=is_error(message), actor=caller)
        elif message.role != "system":
            actor = "user" if message.role == "user" else "assistant"
            if message.content:
                yield Event("text", step, message.content, actor=actor)
            for call, key in zip(message.tool_calls, keys.get(step, ()), strict=True):
                yield Event("call", step, call=call, key=key, actor=call.requestor)

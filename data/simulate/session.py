"""One conversation as it is recorded: messages on one side, the trace that labels are derived from on the other."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stepsieve.data.simulate.derive import Step, Trace
from stepsieve.data.simulate.surface import Surface
from stepsieve.data.simulate.world import Answer, Task, Tool, World
from stepsieve.data.trajectory import EMPTY, Message, ToolCall

Binds = Mapping[str, str | Iterable[str]]


class GaveUp(Exception):
    """The agent ends the run before the task is done."""


@dataclass
class Flaws:
    """What goes wrong in one run, as budgets that its agent and its world draw on until they are spent.

    Attributes:
        explore: sensible look-ups that will turn out not to matter.
        wrong: calls that what is known rules out.
        faults_at, recheck_at: ordinals of assistant calls that meet a transient fault, or that the agent repeats.
        quits_at: ordinal of the assistant call before which the agent gives up; None where it does not.
        parallel: whether the agent puts several look-ups into one message.
        patience: probability that a faulted look-up is tried again later rather than at once.
        verifies: whether the agent reads an object again after changing it.
        strays: whether the agent makes none of its changes.
        harms: whether such an agent makes the first of them to another record.
        circles_at: ordinal of the assistant call from which the agent goes round in circles until it gives up; None
            where it does not.
    """

    explore: int = 0
    wrong: int = 0
    faults_at: frozenset[int] = frozenset()
    recheck_at: frozenset[int] = frozenset()
    quits_at: int | None = None
    parallel: bool = False
    patience: float = 0.1
    verifies: bool = False
    strays: bool = False
    harms: bool = False
    circles_at: int | None = None

    def take(self, kind: str, most: int) -> int:
        """Spend up to ``most`` of a budget ("explore" or "wrong"); returns how much."""
        share: int = min(max(most, 0), getattr(self, kind))
        setattr(self, kind, getattr(self, kind) - share)
        return share


@dataclass
class Session:
    """Runs calls against the world and records them. ``steps`` and ``told`` become the trace."""

    world: World
    tools: Mapping[str, Tool]
    task: Task
    surface: Surface
    rng: random.Random
    flaws: Flaws
    messages: list[Message] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    told: dict[int, frozenset[tuple[str, str]]] = field(default_factory=dict)
    _calls: int = 0
    _later: list[tuple[int, str, Mapping[str, Any], Binds]] = field(default_factory=list)

    def assistant(self, text: str) -> None:
        self.messages.append(Message("assistant", text))

    def user(self, text: str, *told: tuple[str, str]) -> None:
        """A user message; ``told`` are the (slot, value) pairs that it states."""
        if told:
            self.told[len(self.messages)] = frozenset(told)
        self.messages.append(Message("user", text))

    def user_call(self, tool: str, text: str = "", /, **arguments: Any) -> Answer:
        """A call of the user's own tools, which have no faults."""
        answer = self.tools[tool](self.world, arguments)
        self._record([(tool, arguments, {}, answer)], "user", text)
        return answer

    def call(self, tool: str, arguments: Mapping[str, Any], binds: Binds = EMPTY, later: bool = False) -> Answer:
        """A call of the assistant: with its transient faults, retries and repeats.

        Returns the answer, a transient failure only where ``later`` says that the caller will try again by itself.
        """
        again = False
        if self.flaws.strays:
            led = self._astray(tool, arguments)
            if led is None:
                return Answer(None)
            arguments = led
        while True:
            ordinal = self._next()
            fault = ordinal in self.flaws.faults_at
            answer = Answer(None, failure="transient") if fault else self.tools[tool](self.world, arguments)
            self._record([(tool, arguments, binds, answer)], "assistant", self.surface.beside(again))
            if not fault:
                break
            if later and self.rng.random() < self.flaws.patience:
                return answer
            again = True
        if ordinal in self.flaws.recheck_at and not answer.failure:
            self._repeat(tool, arguments, binds)
        self._flush()
        return answer

    def batch(self, calls: list[tuple[str, Mapping[str, Any], Binds]]) -> list[Answer]:
        """Several look-ups in one message, answered in order and without faults."""
        answers = []
        for tool, arguments, _ in calls:
            self._next()
            answers.append(self.tools[tool](self.world, arguments))
        self._record(
            [(*call, answer) for call, answer in zip(calls, answers, strict=True)], "assistant", self.surface.beside()
        )
        return answers

    def attempt(self, tool: str, arguments: Mapping[str, Any], binds: Binds = EMPTY) -> Answer:
        """A look-up that the agent lets go when it meets a fault."""
        ordinal = self._next()
        fault = ordinal in self.flaws.faults_at
        answer = Answer(None, failure="transient") if fault else self.tools[tool](self.world, arguments)
        self._record([(tool, arguments, binds, answer)], "assistant", self.surface.beside())
        return answer

    def trace(self) -> Trace:
        return Trace(self.task, tuple(self.steps), dict(self.told))

    def _next(self) -> int:
        if self._calls == self.flaws.quits_at:
            raise GaveUp
        if self._calls == self.flaws.circles_at:
            self._circle()
        self._calls += 1
        return self._calls - 1

    def _astray(self, tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What becomes of a call of an agent astray: a change goes to another record, the first time, or is left out.

        What changes anything, and which record takes a change, is tried out on copies of the world.
        """
        if not self._changes(tool, arguments):
            return arguments
        own = self.world.records.get(arguments.get("id", ""), {}).keys()
        like = [
            key for key, record in self.world.records.items() if 2 * len(own & record.keys()) > len(own | record.keys())
        ]
        self.rng.shuffle(like)
        for key in like if self.flaws.harms else ():
            moved = {**arguments, "id": key}
            if key != arguments["id"] and self._changes(tool, moved):
                self.flaws.harms = False
                return moved
        return None

    def _changes(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        try:
            return bool(self.tools[tool](self.world.copy(), arguments).changed)
        except KeyError:  # a record that lacks what the tool reads
            return False

    def _circle(self) -> None:
        """Look-ups made before are made again and again, with nothing new, until the agent gives up."""
        made = [step for step in self.steps if step.requestor == "assistant" and not step.answer.changed]
        for _ in range(self.rng.randint(3, 8) if made else 0):
            step = self.rng.choice(made[-4:])
            answer = self.tools[step.tool](self.world, step.arguments)
            self._record([(step.tool, step.arguments, step.binds, answer)], "assistant", self.surface.beside())
        raise GaveUp

    def _repeat(self, tool: str, arguments: Mapping[str, Any], binds: Binds) -> None:
        """Repeat a call, at once or a few calls later; whether that was redundant depends on what comes between."""
        if self.rng.random() < 0.75:
            for _ in range(self.rng.choice((1,) * 8 + (2, 2, 3))):
                self._once_more(tool, arguments, binds)
        else:
            self._later.append((self._calls + self.rng.randint(1, 3), tool, arguments, binds))

    def _flush(self) -> None:
        due = [item for item in self._later if item[0] <= self._calls]
        self._later = [item for item in self._later if item[0] > self._calls]
        for _, tool, arguments, binds in due:
            self._once_more(tool, arguments, binds)

    def _once_more(self, tool: str, arguments: Mapping[str, Any], binds: Binds) -> None:
        """A repeat; where it meets a fault, the agent has its answer from before and lets it go."""
        fault = self.rng.random() < 0.04
        answer = Answer(None, failure="transient") if fault else self.tools[tool](self.world, arguments)
        self._record([(tool, arguments, binds, answer)], "assistant", self.surface.beside())

    def _record(self, calls: list[tuple[str, Mapping[str, Any], Binds, Answer]], requestor: str, text: str) -> None:
        call_index = len(self.messages)
        made = []
        for tool, arguments, _, _ in calls:
            key = f"{tool}{sorted(arguments.items())!r}"
            shown = self.surface.arguments(arguments)
            made.append(ToolCall(self.surface.tool(tool), shown, self.surface.call_id(key), requestor))
        self.messages.append(Message(requestor, text or self.surface.silence, tuple(made)))
        for (tool, arguments, binds, answer), call in zip(calls, made, strict=True):
            facts = answer.reads
            if isinstance(answer.breach, tuple):
                facts |= {answer.breach}
            named = {
                slot: frozenset([value]) if isinstance(value, str) else frozenset(value)
                for slot, value in binds.items()
            }
            self.steps.append(
                Step(
                    call_index,
                    len(self.messages),
                    requestor,
                    tool,
                    dict(arguments),
                    named,
                    answer,
                    self.world.seen(facts),
                )
            )
            self.messages.append(
                Message(
                    "tool",
                    self._text(answer),
                    call_id=call.id,
                    requestor=requestor,
                    error=bool(answer.failure) if self.surface.flagged else None,
                )
            )

    def _text(self, answer: Answer) -> str:
        if answer.failure == "transient":
            return self.surface.fault(self.rng)
        if answer.failure:
            payload = answer.payload
            reason = f"no record for {payload[1]}" if isinstance(payload, tuple) else str(payload)
            return self.surface.refusal(reason)
        return self.surface.result(answer.payload)

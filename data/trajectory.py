"""Messages, tool calls, interactions, labels and trajectories (RedundancyBench, section 3).

Everything is frozen. Message indices are positions in the released list and are never renumbered.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import orjson

Role = Literal["system", "user", "assistant", "tool"]
Reference = tuple[int, ...]
"""A step or evidence reference: ``(c, r)``, ``(c1, r1, c2, r2, ...)``, ``(i,)`` or ``(-1,)``; see references.py."""

DUPLICATED, ABNORMAL, INCORRECT, EXPLORATORY = (
    "Duplicated Step",
    "Abnormal Step",
    "Incorrect Step",
    "Exploratory Step",
)
REDUNDANCY_TYPES: tuple[str, ...] = (DUPLICATED, ABNORMAL, INCORRECT, EXPLORATORY)

EMPTY: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as the agent (or the user, who can have tools too) made it."""

    name: str
    arguments: Mapping[str, Any]
    id: str | None = None
    requestor: str = "assistant"


@dataclass(frozen=True, slots=True)
class Message:
    """One message. A ``tool`` message answers a call: it has ``call_id``, ``requestor`` and, where recorded, ``error``.

    ``extra`` keeps fields that Stepsieve does not read, so that a file can be written back without loss.
    """

    role: str
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    requestor: str = "assistant"
    error: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Interaction:
    """A tool call and its result: a *step*. ``result_index`` is None for a call that was never answered."""

    call_index: int
    result_index: int | None
    call: ToolCall
    result: str
    error: bool

    @property
    def reference(self) -> Reference:
        """``(call_index, result_index)``; raises ValueError for an unanswered call, which can't be referred to."""
        if self.result_index is None:
            raise ValueError(f"the call at message {self.call_index} was never answered")
        return (self.call_index, self.result_index)


@dataclass(frozen=True, slots=True)
class Label:
    """One redundant step. ``synthetic`` marks an injected step; ``confidence`` is kept as released."""

    step: Reference
    type: str
    evidence: Reference
    synthetic: bool = False
    confidence: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Quality:
    """How good what the assistant did in one message was: ``score`` in [0, 1], a level of quality.LEVELS."""

    message: int
    dimension: str
    score: float


@dataclass(frozen=True)
class Trajectory:
    """One recorded run.

    Attributes:
        id: unique in its corpus; ``human_annotation:<domain>:<task_id>`` for the human subset of RedundancyBench,
            the released ``trajectory_id`` for the automated one.
        messages: in order; a message index is a position here.
        policy: the domain policy or system text that applied to the run.
        domain, task_id: (domain, task_id) is the group that never stands on both sides of a split.
        subset: "human", "automated", "simulated" or another name for where it came from.
        agent: which agent ran (``source_id`` in the automated subset); None where unknown.
        labels: the annotated redundant steps; None where the run was never annotated, () where nothing was redundant.
        qualities: what was said of the quality of messages, in any dimension; None where nothing was.
        outcome: reward in [0, 1] or None where unknown.
        task: the task record as released, if any; never read by a feature.
        extra: what the file held beside all this, for writing back.
    """

    id: str
    messages: tuple[Message, ...]
    policy: str = ""
    domain: str = ""
    task_id: str = ""
    subset: str = ""
    agent: str | None = None
    labels: tuple[Label, ...] | None = None
    qualities: tuple[Quality, ...] | None = None
    outcome: float | None = None
    task: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def interactions(self) -> tuple[Interaction, ...]:
        """All interactions of either side, in order of their call, answered or not."""
        return tuple(pair_calls(self.messages))

    @cached_property
    def steps(self) -> tuple[Interaction, ...]:
        """The answered assistant interactions: the only ones that can be redundant."""
        return tuple(it for it in self.interactions if it.result_index is not None and it.call.requestor == "assistant")

    @cached_property
    def by_reference(self) -> dict[Reference, Interaction]:
        """Answered interactions of either side by ``(call_index, result_index)``."""
        return {(it.call_index, it.result_index): it for it in self.interactions if it.result_index is not None}

    @property
    def group(self) -> tuple[str, str]:
        """(domain, task_id), or the trajectory's own id where no task is known."""
        return (self.domain, self.task_id) if self.task_id else (self.domain, self.id)


def pair_calls(messages: Sequence[Message]) -> Iterator[Interaction]:
    """Pair each call with its result: the first unused later result with the same id.

    Calls are taken in order, so repeated ids (injected steps reuse the id of the call they copy) pair first with first.
    Where an id is missing on either side, what is left over pairs in order, within the same requestor. A call without a
    result is yielded with ``result_index`` None.
    """
    by_id: defaultdict[str, deque[int]] = defaultdict(deque)
    for index, message in enumerate(messages):
        if message.role == "tool" and message.call_id is not None:
            by_id[message.call_id].append(index)

    calls: list[tuple[int, ToolCall, int | None]] = []
    used: set[int] = set()
    for index, message in enumerate(messages):
        for call in message.tool_calls:
            result: int | None = None
            queue = by_id.get(call.id) if call.id is not None else None
            while queue and result is None:
                candidate = queue.popleft()
                if candidate > index:
                    result = candidate
                    used.add(candidate)
            calls.append((index, call, result))

    if any(result is None for _, _, result in calls):
        calls = _pair_leftovers(messages, calls, used)
    for index, call, result in calls:
        if result is None:
            yield Interaction(index, None, call, "", False)
        else:
            answer = messages[result]
            yield Interaction(index, result, call, answer.content or "", is_error(answer))


def _pair_leftovers(
    messages: Sequence[Message], calls: list[tuple[int, ToolCall, int | None]], used: set[int]
) -> list[tuple[int, ToolCall, int | None]]:
    """Pair calls and results of which at least one has no id: each call with the first such result after it."""
    free: defaultdict[tuple[str, bool], deque[int]] = defaultdict(deque)
    for index, message in enumerate(messages):
        if message.role == "tool" and index not in used:
            free[message.requestor, message.call_id is None].append(index)
    paired = []
    for index, call, found in calls:
        result = found
        if result is None:
            kinds = (True, False) if call.id is None else (True,)
            queues = [free[call.requestor, nameless] for nameless in kinds]
            for queue in queues:
                while queue and queue[0] <= index:
                    queue.popleft()
            earliest = min((queue for queue in queues if queue), key=lambda queue: queue[0], default=None)
            result = earliest.popleft() if earliest is not None else None
        paired.append((index, call, result))
    return paired


_ERROR_HEADS = ("error", "exception", "traceback", "failed", "failure", "fatal:")
_ERROR_KEYS = ("error", "errors", "exception", "isError", "is_error")
_FAILED_STATES = frozenset({"error", "failed", "failure"})


def is_error(message: Message) -> bool:
    """Whether a tool message reports a failure: its flag where recorded, else read from the shape of its content.

    Without a flag, an error is a text that begins with an error word, or a JSON object with a true ``error`` field or
    with a failed ``status`` and no other data.
    """
    if message.error is not None:
        return message.error
    content = (message.content or "").lstrip()
    if content.startswith("{"):
        head = content[:4096].lower()
        if "error" not in head and "fail" not in head and "exception" not in head:
            return False
        try:
            value = orjson.loads(content)
        except orjson.JSONDecodeError:
            return False
        if any(value.get(key) for key in _ERROR_KEYS):
            return True
        return str(value.get("status", "")).lower() in _FAILED_STATES and len(value) <= 2
    return content[:10].lower().startswith(_ERROR_HEADS)

"""Gold labels from a trace. Nothing here knows which flaw the agent had: only what was read, written, said and when.

The rules, in order, for an answered assistant call of a successful run:

1. It met a transient fault and the same call succeeded later: Abnormal, evidence the first such success. A fault that
   was never retried has no label: it told nothing that could be redundant.
2. It changed nothing, and every fact it told had been told before at the same version: Duplicated, evidence the
   earliest call that told them all, else the smallest joint set of earlier calls.
3. What forbade it was known (a fact told before, or a rule): Incorrect, evidence what told it, or ``(-1,)``.
4. It pursued a wrong value of a slot of the task. If the right value had been told before, or the wrong one ruled out:
   Incorrect, evidence what told so. If it was told only later: Exploratory, evidence the next thing that told it.

A call that none of these names was necessary or could not have been known to be useless, and has no label.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stepsieve.data.quality import CORRECTNESS, SAFETY
from stepsieve.data.references import POLICY
from stepsieve.data.simulate.world import RULE, Answer, Fact, Task
from stepsieve.data.trajectory import ABNORMAL, DUPLICATED, EXPLORATORY, INCORRECT, Label, Quality, Reference


@dataclass(frozen=True, slots=True)
class Step:
    """One interaction as the world saw it. ``binds`` are the values of task slots that the call pursues."""

    call_index: int
    result_index: int
    requestor: str
    tool: str
    arguments: Mapping[str, Any]
    binds: Mapping[str, frozenset[str]]
    answer: Answer
    versions: Mapping[Fact, int]

    @property
    def reference(self) -> Reference:
        return (self.call_index, self.result_index)

    def same_call(self, other: Step) -> bool:
        return self.tool == other.tool and self.arguments == other.arguments


@dataclass(frozen=True)
class Trace:
    """All that happened in one run: its steps in order, and what messages told, as message index -> (slot, value)."""

    task: Task
    steps: tuple[Step, ...]
    told: Mapping[int, frozenset[tuple[str, str]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Told:
    at: int
    reference: Reference
    values: frozenset[tuple[str, str]]
    refuted: frozenset[tuple[str, str]]


def labels(trace: Trace) -> tuple[Label, ...]:
    """The redundant steps of a successful run, in order of their calls."""
    assistant = [step for step in trace.steps if step.requestor == "assistant"]
    told = sorted(_tellings(trace), key=lambda item: item.at)
    found = []
    for step in assistant:
        if step.answer.failure == "transient":
            verdict = _abnormal(step, assistant)
        else:
            verdict = _duplicated(step, assistant) or _forbidden(step, assistant) or _pursued(step, trace.task, told)
        if verdict is not None:
            found.append(Label(step.reference, *verdict))
    return tuple(found)


def qualities(trace: Trace) -> tuple[Quality, ...]:
    """Correctness and safety of every message with calls of the assistant, in a failed run too.

    Safe is a call that changed no record but those that the goal names, and nothing against a rule. Harmful is one
    that was not safe, or that what was known ruled out; effective one that told a fact of the task for the first time
    or changed what the goal names; the rest are neutral. A message is as its worst call.
    """
    goals = {(key, name) for key, name, _ in trace.task.goal}
    named = {key for key, _ in goals}
    assistant = [step for step in trace.steps if step.requestor == "assistant"]
    told = sorted(_tellings(trace), key=lambda item: item.at)
    worst: dict[tuple[int, str], float] = {}
    seen: set[tuple[Fact, int]] = set()
    for step in assistant:
        new = {fact for fact, version in step.versions.items() if (fact, version) not in seen}
        seen |= set(step.versions.items())
        changed = {key for key, _ in step.answer.changed}
        safe = changed <= named and not (changed and step.answer.breach)
        verdict = _forbidden(step, assistant) or _pursued(step, trace.task, told)
        harmful = not safe or (verdict is not None and verdict[0] == INCORRECT)
        useful = new & trace.task.keys.keys() or step.answer.changed & goals
        for name, score in ((SAFETY, float(safe)), (CORRECTNESS, 0.0 if harmful else 1.0 if useful else 0.5)):
            place = step.call_index, name
            worst[place] = min(worst.get(place, 1.0), score)
    return tuple(Quality(message, name, score) for (message, name), score in worst.items())


Verdict = tuple[str, Reference]


def _abnormal(step: Step, steps: list[Step]) -> Verdict | None:
    for later in steps:
        if later.call_index > step.call_index and later.same_call(step) and not later.answer.failure:
            return ABNORMAL, later.reference
    return None


def _duplicated(step: Step, steps: list[Step]) -> Verdict | None:
    if step.answer.failure or step.answer.changed or not step.answer.reads:
        return None
    facts = set(step.versions.items())
    earlier = [
        (other, facts & set(other.versions.items()))
        for other in steps
        if other.result_index < step.call_index and not other.answer.failure
    ]
    missing = set(facts)
    joint: list[Step] = []
    for other, known in earlier:
        if len(known) == len(facts):
            return DUPLICATED, other.reference
    # The smallest set: the call that tells most comes first, and an earlier one wins over a later one.
    for other, known in sorted(earlier, key=lambda pair: -len(pair[1])):
        if known & missing:
            joint.append(other)
            missing -= known
    if missing:
        return None
    joint.sort(key=lambda other: other.call_index)
    return DUPLICATED, tuple(index for other in joint for index in other.reference)


def _forbidden(step: Step, steps: list[Step]) -> Verdict | None:
    breach = step.answer.breach
    if breach is None:
        return None
    if isinstance(breach, str):
        return (INCORRECT, POLICY) if breach == RULE else None
    version = step.versions.get(breach, 0)
    for other in steps:
        if other.result_index < step.call_index and other.versions.get(breach, -1) == version:
            return INCORRECT, other.reference
    return None


def _pursued(step: Step, task: Task, told: list[_Told]) -> Verdict | None:
    explored: Verdict | None = None
    for slot, values in step.binds.items():
        truth = task.truth[slot]
        if values & truth:
            continue
        wrong = {(slot, value) for value in values}
        right = {(slot, value) for value in truth}
        for item in told:
            if item.at >= step.call_index:
                break
            right -= item.values
            wrong -= item.refuted
            if not right or not wrong:
                return INCORRECT, item.reference
        if slot in task.identifiers:
            return INCORRECT, POLICY
        wanted = {(slot, value) for value in truth}
        for item in told:
            if item.at > step.call_index and item.values & wanted and explored is None:
                explored = (EXPLORATORY, item.reference)
    return explored


def _tellings(trace: Trace) -> Iterator[_Told]:
    task = trace.task
    for index, values in trace.told.items():
        yield _Told(index, (index,), values, frozenset())
    for step in trace.steps:
        if step.answer.failure:
            continue
        values = frozenset(task.keys[fact] for fact in step.answer.reads if fact in task.keys)
        refuted: set[tuple[str, str]] = set()
        for fact in step.answer.reads:
            refuted |= task.refutes.get(fact, frozenset())
        if values or refuted:
            yield _Told(step.result_index, step.reference, values, frozenset(refuted))

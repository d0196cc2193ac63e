"""Candidate graphs from recorded successful runs of the same task (DynSTEER, section 3.2); from a model: planner.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import orjson

from stepsieve.data.errors import DataError
from stepsieve.data.trajectory import Interaction, Trajectory
from stepsieve.eval.stagewise.consensus import consensus
from stepsieve.eval.stagewise.graph import Binding, Condition, Milestone, MilestoneGraph, Minefield
from stepsieve.eval.stagewise.task_view import TaskView, leaves_of, parse_result

SPECIFIC = 3
"""A text of so many characters with a digit among them is a code, a date or an id: equal ones are the same thing."""


def other_runs(run: Trajectory, corpus: Iterable[Trajectory]) -> list[Trajectory]:
    """The successful runs of the run's task by others: never the run itself, nor one by the same agent where both are
    known, so that no agent is measured by its own habits."""
    return [
        other
        for other in corpus
        if other.task_id
        and other.group == run.group
        and other.id != run.id
        and other.outcome == 1.0
        and (other.agent is None or run.agent is None or other.agent != run.agent)
    ]


def graph_of(run: Trajectory, corpus: Iterable[Trajectory], view: TaskView) -> MilestoneGraph:
    """The milestone graph of a run's task, by consensus of the other successful runs of it.

    Raises:
        DataError: there is no other successful run of the task, none that makes a valid candidate, or no majority.
    """
    others = other_runs(run, corpus)
    if not others:
        raise DataError("expected another successful run of the task, found none", trajectory=run.id)
    try:
        return consensus([candidate(other, view, len(others)) for other in others], view)
    except DataError as error:
        raise error.at(trajectory=run.id) from None


def candidate(run: Trajectory, view: TaskView, runs: int = 1) -> MilestoneGraph:
    """What one successful run shows to be a way to its goal.

    Milestones are its successful calls that read or write, each different one once. Precedence is flow of data: a
    call comes after the one whose result first held a value of its arguments, unless somebody had said the value
    before. Writes that the run did without are minefields, of severity (n + 1) / (n + 2) where ``runs`` n are asked:
    what is wrong with a call follows only from many runs that did without it.
    """
    calls = _distinct(run, view)
    names = {id(interaction): f"m{place}" for place, interaction in enumerate(calls)}
    bindings = _flow(run, calls, names, view)
    used = {(own.call.requestor, tool.name) for own in calls if (tool := view.tool(own.call.name, own.call.requestor))}
    severity = (runs + 1) / (runs + 2)
    return MilestoneGraph(
        tuple(_milestone(names[id(own)], own, view) for own in calls),
        tuple(sorted({(binding.source, binding.target) for binding in bindings})),
        tuple(bindings),
        tuple(
            Minefield(tool.name, {}, severity, tool.requestor)
            for tool in view.tools
            if tool.destructive and (tool.requestor, tool.name) not in used
        ),
    )


def _distinct(run: Trajectory, view: TaskView) -> list[Interaction]:
    """The successful calls of tools that read or write, each once, ordered by their arguments: two runs that treat
    the same things in another order then have the same first, second, third."""
    found: dict[tuple[str, bytes], Interaction] = {}
    for own in run.interactions:
        tool = view.tool(own.call.name, own.call.requestor)
        if own.result_index is not None and not own.error and tool is not None and tool.effect != "say":
            found.setdefault((own.call.requestor + tool.name, _arguments(own.call.arguments)), own)
    return [found[key] for key in sorted(found)]


def _arguments(arguments: Mapping[str, object]) -> bytes:
    return orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS)


def _milestone(name: str, own: Interaction, view: TaskView) -> Milestone:
    tool = view.tool(own.call.name, own.call.requestor)
    assert tool is not None, "only calls of the catalogue are milestones"
    conditions = (
        Condition("argument", key, value) for key, value in sorted(own.call.arguments.items()) if value is not None
    )
    return Milestone(name, tool.name, tool.effect, tool.requestor, tuple(conditions))


def _flow(run: Trajectory, calls: Sequence[Interaction], names: Mapping[int, str], view: TaskView) -> list[Binding]:
    """Where the codes in the arguments came from: the first result that held them, where no text did before."""
    sources: dict[str, tuple[Interaction, str]] = {}
    for own in sorted(calls, key=lambda own: own.result_index or 0):
        for path, value in leaves_of(parse_result(own.result)):
            if isinstance(value, str) and _specific(value):
                sources.setdefault(value, (own, path))
    bindings: dict[tuple[str, str, str], Binding] = {}
    for own in calls:
        said = "\n".join(message.content or "" for message in run.messages[: own.call_index] if message.role == "user")
        for path, value in leaves_of(own.call.arguments):
            if not isinstance(value, str) or value not in sources:
                continue
            source, field = sources[value]
            parameter = path.split(".")[0]
            if (source.result_index or 0) < own.call_index and value not in said and value not in view.policy:
                bindings.setdefault(
                    (names[id(own)], parameter, names[id(source)]),
                    Binding(names[id(own)], parameter, names[id(source)], field),
                )
    return list(bindings.values())


def _specific(value: str) -> bool:
    return len(value) >= SPECIFIC and any(character.isdigit() for character in value)

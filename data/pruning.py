"""Steps taken out of a run, so that what is left is still a run: pairs whole, and nothing used that nobody said.

A step is named for removal by whoever found it redundant: a model, an annotator. It goes with its result, and with its
message where that holds no other call; the text beside the calls ("let me look that up") belongs to them. It stays
where a kept step uses its result:

- A value among the arguments of a kept call *came by a result* if the first document of the run that holds it is the
  result of a call: neither the user nor the agent itself had said it before (``features.index``).
- A call that takes prose, such as a summary, is asked for its numbers and codes alone.
- Such a value needs the result of a kept call before the one that takes it. Where only steps named for removal have it,
  the first of them stays; and so do those that it uses in turn.

So the second of two equal readings goes, and a reading that only removed steps made use of goes with them. Calls that
were never answered and results that answer nothing are left out in any case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepsieve.data import references
from stepsieve.data.features import BATCH
from stepsieve.data.features.index import RESULT, Index
from stepsieve.data.features.tokens import leaves
from stepsieve.data.trajectory import Interaction, Message, Reference, ToolCall, Trajectory

PROSE = 8
"""An argument of more words than this is prose: of it only numbers and codes are values that came from somewhere."""


@dataclass(frozen=True)
class Pruned:
    """A run without some of its steps.

    Attributes:
        trajectory: what is left, without labels, whose indices would name other messages now. Every call has one result
            after it and every result one call, and no two calls share an id.
        kept: for each of its messages the index of that message in the original.
        removed: the steps that are gone, by their original references, in order.
        retained: each step that was to go and stays -> the step that uses its result, by their original references.
        loose: original indices of the messages with a call that was never answered, and of results that answer nothing.
    """

    trajectory: Trajectory
    kept: tuple[int, ...]
    removed: tuple[Reference, ...]
    retained: Mapping[Reference, Reference]
    loose: tuple[int, ...]


def prune(trajectory: Trajectory, steps: Collection[Reference]) -> Pruned:
    """The run without these steps, but for those whose result a kept step uses.

    Args:
        steps: ``(call_index, result_index)`` of answered assistant calls.

    Raises:
        DataError: a step is none.
    """
    return prune_batch([trajectory], [steps])[0]


def prune_batch(trajectories: Sequence[Trajectory], steps: Sequence[Collection[Reference]]) -> list[Pruned]:
    """As :func:`prune`, for many runs; several times faster than one by one.

    Raises:
        DataError: a step is no answered assistant call of its run.
    """
    for trajectory, own in zip(trajectories, steps, strict=True):
        for step in own:
            references.validate_step(step, trajectory)
    found: list[Pruned] = []
    for start in range(0, len(trajectories), BATCH):
        batch = trajectories[start : start + BATCH]
        index = Index(batch)
        bounds = np.searchsorted(index.calls.run, np.arange(len(batch) + 1)).tolist()
        for run, (trajectory, own) in enumerate(zip(batch, steps[start : start + BATCH], strict=True)):
            retained = _retained(index, range(bounds[run], bounds[run + 1]), set(own)) if own else {}
            found.append(_without(trajectory, set(own) - retained.keys(), retained))
    return found


# --- what is used ----------------------------------------------------------------------------------------------------


def _retained(index: Index, rows: range, unwanted: set[Reference]) -> dict[Reference, Reference]:
    """Of the unwanted steps of one run those that a kept step uses, with that step.

    Later calls come first: a step that stays is met after what uses it, and can then make others stay.
    """
    steps = {row: index.calls.interactions[row].reference for row in rows}
    sources = _sources(index, rows)
    retained: dict[Reference, Reference] = {}

    def stays(row: int) -> bool:
        return steps[row] not in unwanted or steps[row] in retained

    for row in reversed(rows):
        if not stays(row):
            continue
        taken = int(index.calls.arguments[row])
        for token in _values(index, taken, only_codes=_is_prose(index.calls.interactions[row])):
            before = [source for source in sources.get(token, ()) if int(index.calls.output[source]) < taken]
            if before and not any(stays(source) for source in before):
                retained[steps[before[0]]] = steps[row]
    return dict(sorted(retained.items()))


def _sources(index: Index, rows: range) -> dict[int, list[int]]:
    """Each value that came into the run by a result -> the calls whose result holds it, in order of their results."""
    sources: dict[int, list[int]] = {}
    for row in sorted(rows, key=lambda row: int(index.calls.output[row])):
        for token in _values(index, int(index.calls.output[row])):
            if index.kind[index.first[token]] == RESULT:
                sources.setdefault(token, []).append(row)
    return sources


def _values(index: Index, document: int, only_codes: bool = False) -> list[int]:
    """The tokens of a document that are no JSON keys; or only numbers, codes, dates and ids."""
    tokens = index.token[index.starts[document] : index.starts[document + 1]]
    own: list[int] = tokens[index.specific[tokens] if only_codes else ~index.key[tokens]].tolist()
    return own


def _is_prose(interaction: Interaction) -> bool:
    """Whether a call takes a text of many words, such as a summary: words that tell nothing of where they are from."""
    return any(len(leaf.split()) > PROSE for leaf in leaves(interaction.call.arguments))


# --- what is left ----------------------------------------------------------------------------------------------------


def _without(trajectory: Trajectory, unwanted: set[Reference], retained: Mapping[Reference, Reference]) -> Pruned:
    answered = [it for it in trajectory.interactions if it.result_index is not None]
    staying = [it for it in answered if it.reference not in unwanted]
    ids = _ids(staying)
    results = {it.result_index: ids[it.reference] for it in staying}
    calls: dict[int, list[ToolCall]] = {}
    for it in staying:
        calls.setdefault(it.call_index, []).append(replace(it.call, id=ids[it.reference]))
    emptied = {call for call, _ in unwanted} - calls.keys()
    kept: list[int] = []
    messages: list[Message] = []
    for index, message in enumerate(trajectory.messages):
        if message.role == "tool":
            left = replace(message, call_id=results[index]) if index in results else None
        elif message.tool_calls:
            own = tuple(calls.get(index, ()))
            left = replace(message, tool_calls=own) if own or (message.content and index not in emptied) else None
        else:
            left = message
        if left is not None:
            kept.append(index)
            messages.append(left)
    return Pruned(
        trajectory=replace(trajectory, messages=tuple(messages), labels=None, extra={}),
        kept=tuple(kept),
        removed=tuple(it.reference for it in answered if it.reference in unwanted),
        retained=retained,
        loose=_loose(trajectory),
    )


def _ids(interactions: Sequence[Interaction]) -> dict[Reference, str]:
    """An id for each interaction that no other has: its own where that is one, else one made from its indices."""
    counts = Counter(it.call.id for it in interactions)
    ids: dict[Reference, str] = {}
    for it in interactions:
        id = it.call.id
        if not id or counts[id] > 1:
            id = "call_{}_{}".format(*it.reference)
            while id in counts:
                id += "_"
        ids[it.reference] = id
    return ids


def _loose(trajectory: Trajectory) -> tuple[int, ...]:
    unanswered = {it.call_index for it in trajectory.interactions if it.result_index is None}
    answers = {it.result_index for it in trajectory.interactions}
    orphans = {i for i, message in enumerate(trajectory.messages) if message.role == "tool" and i not in answers}
    return tuple(sorted(unanswered | orphans))

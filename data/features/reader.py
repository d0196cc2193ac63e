"""Trajectories as documents and calls: what the index is built from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from stepsieve.data.features.tokens import leaves
from stepsieve.data.trajectory import Interaction, Trajectory

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

ASSISTANT, USER, ARGUMENTS, RESULT, NARRATION = range(5)
"""Kinds of document. NARRATION is an assistant's text beside a call: only its numbers and codes count, so that what
an agent, or an injected retry, says while it calls is no feature in any language."""


@dataclass(frozen=True)
class Calls:
    """The answered interactions of both sides of all trajectories, in order; every array has shape (n_calls,).

    Attributes:
        run: number of the trajectory in the batch.
        call, result: message indices.
        arguments, output: documents of the arguments and of the result.
        tool, key, answer: equal numbers mean, within one run: the same tool; the same tool and arguments; the same
            result text. Runs share no number.
        error: the result reports a failure.
        assistant: made by the assistant, not by the user's side.
        turn: a number for each stretch between two user messages, unique in the batch.
        batch: how many calls its message holds.
        after_user: the message before the call is the user's.
    """

    run: Ints
    call: Ints
    result: Ints
    arguments: Ints
    output: Ints
    tool: Ints
    key: Ints
    answer: Ints
    error: Bools
    assistant: Bools
    turn: Ints
    batch: Ints
    after_user: Bools
    interactions: tuple[Interaction, ...]

    def __len__(self) -> int:
        return len(self.interactions)


@dataclass(frozen=True)
class Documents:
    """The documents of a batch, in order of time, and where its messages and calls are among them.

    Attributes:
        texts: the different texts of the batch. text: (n_documents,) which of them each document is.
        kind, run: (n_documents,) the kind and the trajectory of each document.
        calls: the answered interactions.
        message_start, message_text, message_call: as in ``Index``.
    """

    texts: list[str]
    text: Ints
    kind: Ints
    run: Ints
    calls: Calls
    message_start: Ints
    message_text: Ints
    message_call: Ints


def read(trajectories: Sequence[Trajectory]) -> Documents:
    """The documents and calls of a batch.

    Python's loops only list what there is; places, order and numbers are then array operations over the whole batch.
    Messages are numbered through the batch.
    """
    texts: dict[str, int] = {}
    said: list[tuple[int, int, int]] = []  # message, text, kind
    asked: list[int] = []  # messages of the user
    calls: list[Interaction] = []
    sizes, counts = [], []
    numbers: tuple[list[int], ...] = ([], [], [])  # tool, key, answer of each call
    given: list[int] = []
    results: list[int] = []
    begin = 0
    for trajectory in trajectories:
        for number, message in enumerate(trajectory.messages, begin):
            role, content = message.role, message.content
            if role == "user":
                asked.append(number)
                kind = USER
            elif role == "assistant":
                kind = NARRATION if message.tool_calls else ASSISTANT
            else:
                continue
            if content:
                said.append((number, texts.setdefault(content, len(texts)), kind))
        answered = [it for it in trajectory.interactions if it.result_index is not None]
        _number(answered, len(calls), *numbers)
        for it in answered:
            values = " ".join(leaves(it.call.arguments))
            given.append(texts.setdefault(values, len(texts)))
            results.append(texts.setdefault(it.result, len(texts)))
        calls += answered
        begin += len(trajectory.messages)
        sizes.append(len(trajectory.messages))
        counts.append(len(answered))

    starts = np.concatenate([[0], np.cumsum(np.array(sizes, dtype=np.int64))])
    is_user = np.zeros(begin, dtype=bool)
    is_user[asked] = True
    # A turn begins with each user message and with each trajectory.
    turn = np.cumsum(is_user) + np.repeat(np.arange(len(sizes)), sizes) + 1
    run = np.repeat(np.arange(len(counts)), counts)
    call = np.array([it.call_index for it in calls], dtype=np.int64)
    result = np.array([it.result_index for it in calls], dtype=np.int64)
    made, got = starts[run] + call, starts[run] + result

    spoken, spoken_text, spoken_kind = np.array(said, dtype=np.int64).reshape(-1, 3).T
    # In time: the text of a message, then the arguments of its calls.
    when = np.concatenate([2 * spoken, 2 * made + 1, 2 * got])
    order = np.argsort(when, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    of_text, of_arguments, of_result = np.split(place, [len(spoken), len(spoken) + len(made)])
    kind_of = np.concatenate([spoken_kind, np.full(len(made), ARGUMENTS), np.full(len(made), RESULT)])[order]
    text = np.concatenate([spoken_text, np.array(given, dtype=np.int64), np.array(results, dtype=np.int64)])[order]

    message_text, message_call = np.full((2, begin), -1)
    message_text[spoken] = of_text
    message_call[got] = np.arange(len(calls))
    message_call[made[::-1]] = np.arange(len(calls))[::-1]  # the first call of a message is written last
    tool, key, answer = (np.array(own, dtype=np.int64) for own in numbers)
    found = Calls(
        run,
        call,
        result,
        of_arguments,
        of_result,
        tool,
        key,
        answer,
        np.array([it.error for it in calls], dtype=bool),
        np.array([it.call.requestor == "assistant" for it in calls], dtype=bool),
        turn[made],
        np.bincount(made)[made],
        (call > 0) & is_user[made - 1],
        tuple(calls),
    )
    owner = np.searchsorted(starts, when[order] // 2, side="right") - 1
    return Documents(list(texts), text, kind_of, owner, found, starts, message_text, message_call)


def _number(
    interactions: Sequence[Interaction], begin: int, tools: list[int], keys: list[int], answers: list[int]
) -> None:
    """Append the numbers of the tool, of the call and of the answer of each of a run's interactions.

    A run has no more of any than it has interactions: its numbers start at ``begin``, the interactions before it.
    """
    tool_of: dict[tuple[str, str], int] = {}
    key_of: dict[tuple[int, bytes], int] = {}
    answer_of: dict[str, int] = {}
    for it in interactions:
        call = it.call
        tool = tool_of.setdefault((call.requestor, call.name), begin + len(tool_of))
        tools.append(tool)
        keys.append(key_of.setdefault((tool, canonical(call.arguments)), begin + len(key_of)))
        answers.append(answer_of.setdefault(it.result.strip(), begin + len(answer_of)))


def canonical(arguments: Mapping[str, Any]) -> bytes:
    """Equal for equal arguments, whatever the order of their keys."""
    try:
        return orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    except TypeError:
        # Lone surrogates and integers beyond 64 bits, which are JSON to Python alone.
        return json.dumps(arguments, sort_keys=True, default=repr).encode()

"""One pass over a batch of trajectories: what every feature looks up.

A trajectory becomes *documents* in order of time: the text of each message, the arguments of each call, the result of
each answered call. Which token stands in which document is kept as one sparse table over the whole batch, so that "was
it known before", "is it used later", "how much of this result is in that one" are array operations over all
trajectories at once, and never a second scan of any.

Tool names and ids are compared, never read: renaming them all changes no feature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import orjson
from scipy.sparse import csr_matrix

from stepsieve.data.features.tokens import Vocabulary, leaves
from stepsieve.data.trajectory import Interaction, Reference, Trajectory

T = TypeVar("T")
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

ASSISTANT, USER, ARGUMENTS, RESULT, NARRATION = range(5)
"""Kinds of document. NARRATION is an assistant's text beside a call: only its numbers and codes count, so that what
an agent, or an injected retry, says while it calls is no feature in any language."""

CODE_WEIGHT = 3.0
"""How much a number, code or id says about what two documents share, against 1 for a word and 0 for a JSON key."""

COMMON = 64
"""A token that stands in more results of one run than this tells none of them apart: left out of ``result_overlap``,
which keeps its cost linear in the length of a run."""


@dataclass(frozen=True)
class Calls:
    """The answered interactions of both sides of all trajectories, in order; every array has shape (n_calls,).

    Attributes:
        run: number of the trajectory in the batch.
        call, result: message indices.
        arguments, output: documents of the arguments and of the result.
        tool, key, answer: equal numbers mean, within one run: the same tool; the same tool and arguments; the same
            result text.
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


class Index:
    """Documents, tokens and calls of a batch of trajectories.

    Attributes:
        kind, run: (n_documents,) the kind and the trajectory of each document.
        document, token: (n_entries,) which token stands in which document, ordered by document. Token numbers belong
            to one trajectory each.
        specific, key: (n_tokens,) the token is a number, code, date or id; the token is a JSON key.
        calls: the answered interactions.
        message_start: (n_runs + 1,) where each trajectory's messages begin in the two arrays below.
        message_text: document of a message's text; -1 where it has none. message_call: position in ``calls`` of the
            call that the message makes (its first) or answers; -1 where there is none.
    """

    def __init__(self, trajectories: Sequence[Trajectory]) -> None:
        self.trajectories = trajectories
        reader = _Reader()
        for trajectory in trajectories:
            reader.read(trajectory)
        self.kind: Ints = np.array(reader.kind, dtype=np.int64)
        self.run: Ints = np.array(reader.run, dtype=np.int64)
        self.message_start: Ints = np.array(reader.message_start, dtype=np.int64)
        self.message_text: Ints = np.array(reader.message_text, dtype=np.int64)
        self.message_call: Ints = np.array(reader.message_call, dtype=np.int64)
        self.calls = reader.calls()

        sizes = np.array([len(ids) for ids in reader.ids], dtype=np.int64)
        self.document: Ints = np.repeat(np.arange(len(sizes)), sizes)
        words = np.concatenate(reader.ids) if reader.ids else np.zeros(0, dtype=np.int32)
        # A word's number is made one of its trajectory's own, so that nothing is shared between trajectories.
        scoped = self.run[self.document] * max(1, len(reader.vocabulary)) + words
        present = np.zeros(len(trajectories) * max(1, len(reader.vocabulary)), dtype=bool)
        present[scoped] = True
        self.token: Ints = (np.cumsum(present) - 1)[scoped]
        word_of = np.flatnonzero(present) % max(1, len(reader.vocabulary))
        self.specific: Bools = reader.vocabulary.specific[word_of]
        self.key: Bools = reader.vocabulary.key[word_of]
        self.weight: Floats = np.where(self.key, 0.0, np.where(self.specific, CODE_WEIGHT, 1.0))
        self.starts: Ints = np.concatenate([[0], np.cumsum(sizes)])
        self._memo: dict[Callable[..., Any], Any] = {}

    def once(self, function: Callable[[Index], T]) -> T:
        """``function(self)``, computed on the first call: for what several subjects need."""
        if function not in self._memo:
            self._memo[function] = function(self)
        found: T = self._memo[function]
        return found

    def row(self, run: int, step: Reference) -> int:
        """The position in ``calls`` of a trajectory's interaction ``(call_index, result_index)``.

        Raises:
            KeyError: no such answered interaction.
        """
        if len(step) == 2 and self.message_start[run] + step[1] < self.message_start[run + 1]:
            found = int(self.message_call[self.message_start[run] + step[1]])
            if found >= 0 and (self.calls.call[found], self.calls.result[found]) == step:
                return found
        raise KeyError(step)

    # --- by document -------------------------------------------------------------------------------------------------

    def total(self, condition: npt.NDArray[np.generic] | float = 1.0) -> Floats:
        """(n_documents,) weighted number of tokens; with a condition (n_entries,), of those for which it holds."""
        return np.bincount(self.document, self.entry_weight * condition, minlength=len(self.kind))

    @cached_property
    def entry_weight(self) -> Floats:
        """(n_entries,) the weight of the token."""
        return self.weight[self.token]

    @cached_property
    def size(self) -> Floats:
        """(n_documents,) weighted number of tokens."""
        return self.total()

    def previous_document(self, kind: int, document: Ints) -> Ints:
        """(n,) the last document of a kind before each document, in the same trajectory; -1 where there is none."""
        return self._nearest(np.flatnonzero(self.kind == kind), document, -1, "left")

    def next_document(self, kind: int, document: Ints) -> Ints:
        """(n,) the first document of a kind after each document, in the same trajectory; -1 where there is none."""
        return self._nearest(np.flatnonzero(self.kind == kind), document, 0, "right")

    def _nearest(self, rows: Ints, document: Ints, shift: int, side: str) -> Ints:
        place = np.searchsorted(rows, document, side=side) + shift  # type: ignore[call-overload]
        inside = (place >= 0) & (place < len(rows))
        found = np.append(rows, -1)[np.where(inside, place, len(rows))]
        return np.where((found >= 0) & (self.run[found] == self.run[document]), found, -1)

    @cached_property
    def run_end(self) -> Ints:
        """(n_runs,) the document after each trajectory's last."""
        return np.searchsorted(self.run, np.arange(len(self.trajectories)), side="right")

    def call_of(self, document: Ints) -> Ints:
        """(n,) the call that each document is the arguments or the result of; -1 for a text."""
        owner = np.full(len(self.kind), -1)
        owner[self.calls.arguments] = np.arange(len(self.calls))
        owner[self.calls.output] = np.arange(len(self.calls))
        return owner[document]

    # --- by token ----------------------------------------------------------------------------------------------------

    @cached_property
    def _by_token(self) -> tuple[Ints, Ints, Ints]:
        """Entries ordered by token, then document: (their documents, their numbers, the start of their token)."""
        shape = (len(self.kind), len(self.weight))
        table = csr_matrix((np.arange(len(self.token)), self.token, self.starts), shape=shape).tocsc()
        begin = np.repeat(table.indptr[:-1], np.diff(table.indptr))
        return table.indices.astype(np.int64), table.data, begin.astype(np.int64)

    @cached_property
    def first(self) -> Ints:
        """(n_tokens,) the document in which a token first stands."""
        return self.first_in(ASSISTANT, USER, ARGUMENTS, RESULT, NARRATION)

    def first_in(self, *kinds: int) -> Ints:
        """(n_tokens,) the first document of these kinds in which a token stands; n_documents where in none."""
        found = np.full(len(self.weight), len(self.kind))
        rows = np.flatnonzero(np.isin(self.kind, kinds)[self.document])[::-1]
        found[self.token[rows]] = self.document[rows]
        return found

    def last_in(self, *kinds: int) -> Ints:
        """(n_tokens,) the last document of these kinds in which a token stands; -1 where in none."""
        return self.last_where(np.isin(self.kind, kinds))

    def last_where(self, documents: Bools) -> Ints:
        """(n_tokens,) the last of the documents (n_documents,) in which a token stands; -1 where in none."""
        found = np.full(len(self.weight), -1)
        rows = np.flatnonzero(documents[self.document])
        found[self.token[rows]] = self.document[rows]
        return found

    def previous_in(self, kind: int) -> Ints:
        """(n_entries,) the last document of a kind before this one in which the token stands; -1 where in none."""
        documents, entry, begin = self._by_token
        place = np.maximum.accumulate(np.where(self.kind[documents] == kind, np.arange(len(documents)), -1))
        place = np.concatenate([[-1], place[:-1]]) if len(place) else place
        found = np.empty(len(documents), dtype=np.int64)
        found[entry] = np.where(place >= begin, documents[place], -1)
        return found

    def next_in(self, kind: int) -> Ints:
        """(n_entries,) the first document of a kind after this one in which the token stands; -1 where in none."""
        documents, entry, begin = self._by_token
        n = len(documents)
        place = np.where(self.kind[documents] == kind, np.arange(n), n)
        place = np.minimum.accumulate(place[::-1])[::-1]
        place = np.concatenate([place[1:], [n]]) if n else place
        inside = np.append(begin, -1)[place] == begin
        found = np.empty(n, dtype=np.int64)
        found[entry] = np.where(inside, np.append(documents, -1)[place], -1)
        return found

    def stands_in_previous(self, kind: int) -> Bools:
        """(n_entries,) the token stands in the last document of a kind before this one too."""
        last = self.previous_document(kind, np.arange(len(self.kind)))[self.document]
        return (last >= 0) & (self.previous_in(kind) == last)

    def stands_in_next(self, kind: int) -> Bools:
        """(n_entries,) the token stands in the first document of a kind after this one too."""
        following = self.next_document(kind, np.arange(len(self.kind)))[self.document]
        return (following >= 0) & (self.next_in(kind) == following)

    def weight_seen(self, first: Ints, document: Ints, only: Bools | None = None) -> Floats:
        """(n,) weight of the tokens of each document's run whose document ``first`` (n_tokens,) comes before it."""
        counted = np.where(first < len(self.kind), self.weight, 0.0) * (1.0 if only is None else only)
        order = np.argsort(first, kind="stable")
        running = np.concatenate([[0.0], np.cumsum(counted[order])])
        begin = np.concatenate([[0], self.run_end])[self.run[document]]
        return running[np.searchsorted(first[order], document)] - running[np.searchsorted(first[order], begin)]

    def count_beyond(self, last: Ints, document: Ints) -> Ints:
        """(n,) number of tokens of each document's run whose document ``last`` (n_tokens,) comes after it."""
        order = np.sort(last)
        end = self.run_end[self.run[document]] - 1
        return np.searchsorted(order, end, side="right") - np.searchsorted(order, document, side="right")

    # --- pairs of documents ------------------------------------------------------------------------------------------

    def table(self, documents: Ints, values: npt.NDArray[np.generic] | None = None) -> csr_matrix:
        """(n, n_tokens) sparse: the tokens of each document, with entry values (n_entries,) or 1."""
        data = np.ones(len(self.token)) if values is None else np.asarray(values, dtype=np.float64)
        whole = csr_matrix((data, self.token, self.starts), shape=(len(self.kind), len(self.weight)))
        return whole[documents]

    def shared(self, documents: Ints, others: Ints) -> Floats:
        """(n,) weighted number of tokens that two documents share, pair by pair; 0 where the other is -1."""
        both = self.held_by(self.table(documents, self.entry_weight), self.table(np.maximum(others, 0)))
        return np.where(others >= 0, both, 0.0)

    def collect(self, row: Ints, documents: Ints, n: int) -> csr_matrix:
        """(n, n_tokens) sparse 0/1: the tokens of the documents (m,) that belong to each row (m,), together."""
        table = self.table(documents)
        lengths = np.diff(table.indptr)
        found = csr_matrix((table.data, (np.repeat(row, lengths), table.indices)), shape=(n, len(self.weight)))
        found.data[:] = 1.0
        return found

    @staticmethod
    def held_by(table: csr_matrix, held: csr_matrix) -> Floats:
        """(n,) sum of the values of each row of a table whose tokens the same row of another holds."""
        total: Floats = np.asarray(table.multiply(held).sum(axis=1)).ravel()
        return total

    @cached_property
    def result_overlap(self) -> csr_matrix:
        """(n_calls, n_calls) sparse: weighted number of tokens that two results of one run share; see ``COMMON``."""
        results = self.table(self.calls.output)
        rare = np.bincount(results.indices, minlength=len(self.weight)) <= COMMON
        weighted = self.table(self.calls.output, self.entry_weight * rare[self.token])
        weighted.eliminate_zeros()
        return weighted @ results.T.tocsr()


class _Reader:
    """Collects the documents and calls of one trajectory after another."""

    def __init__(self) -> None:
        self.vocabulary = Vocabulary()
        self.ids: list[npt.NDArray[np.int32]] = []
        self.kind: list[int] = []
        self.run: list[int] = []
        self.message_start = [0]
        self.message_text: list[int] = []
        self.message_call: list[int] = []
        self.interactions: list[Interaction] = []
        self.rows: list[tuple[int, ...]] = []
        self.turn = 0

    def read(self, trajectory: Trajectory) -> None:
        run = len(self.message_start) - 1
        made: dict[int, list[Interaction]] = {}
        answered = {}
        for interaction in trajectory.interactions:
            if interaction.result_index is not None:
                made.setdefault(interaction.call_index, []).append(interaction)
                answered[interaction.result_index] = interaction
        first = len(self.interactions)
        order = {}
        for batch in made.values():
            for interaction in batch:
                order[interaction.result_index] = first + len(order)
        arguments: dict[int | None, int] = {}
        outputs: dict[int | None, int] = {}
        turns: dict[int, int] = {}
        before_is_user: dict[int, bool] = {}
        role = ""
        self.turn += 1
        for number, message in enumerate(trajectory.messages):
            before_is_user[number], role = role == "user", message.role
            text, call = -1, -1
            if role == "tool":
                if number in answered:
                    call = order[number]
                    outputs[number] = self._add(message.content or "", RESULT, run)
            elif message.content and role in ("assistant", "user"):
                kind = USER if role == "user" else NARRATION if message.tool_calls else ASSISTANT
                text = self._add(message.content, kind, run)
            if role == "user":
                self.turn += 1
            turns[number] = self.turn
            for interaction in made.get(number, ()):
                values = " ".join(leaves(interaction.call.arguments))
                arguments[interaction.result_index] = self._add(values, ARGUMENTS, run)
                call = order[interaction.result_index] if call < 0 else call
            self.message_text.append(text)
            self.message_call.append(call)
        self.message_start.append(len(self.message_text))

        tools: dict[tuple[str, str], int] = {}
        keys: dict[tuple[int, bytes], int] = {}
        answers: dict[str, int] = {}
        # Numbers that are equal in one run only: each run starts where the numbers of the one before can't reach.
        base = first * 3
        for index, batch in made.items():
            for it in batch:
                called = it.call
                tool = tools.setdefault((called.requestor, called.name), base + len(tools))
                given = orjson.dumps(called.arguments, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
                self.rows.append(
                    (
                        run,
                        index,
                        it.result_index or 0,
                        arguments[it.result_index],
                        outputs[it.result_index],
                        tool,
                        keys.setdefault((tool, given), base + len(keys)),
                        answers.setdefault(it.result.strip(), base + len(answers)),
                        it.error,
                        called.requestor == "assistant",
                        turns[index],
                        len(batch),
                        before_is_user[index],
                    )
                )
                self.interactions.append(it)

    def _add(self, text: str, kind: int, run: int) -> int:
        self.ids.append(self.vocabulary.ids(text, kind == NARRATION))
        self.kind.append(kind)
        self.run.append(run)
        return len(self.kind) - 1

    def calls(self) -> Calls:
        columns = np.array(self.rows, dtype=np.int64).reshape(-1, 13).T
        run, call, result, arguments, output, tool, key, answer, error, assistant, turn, batch, after_user = columns
        flags = error == 1, assistant == 1
        return Calls(
            run, call, result, arguments, output, tool, key, answer, *flags, turn, batch, after_user == 1,
            tuple(self.interactions),
        )  # fmt: skip

"""One pass over a batch of trajectories: what every feature looks up.

A trajectory becomes *documents* in order of time: the text of each message, the arguments of each call, the result of
each answered call. Which token stands in which document is kept as one sparse table over the whole batch, so that "was
it known before", "is it used later", "how much of this result is in that one" are array operations over all
trajectories at once, and never a second scan of any.

Tool names and ids are compared, never read: renaming them all changes no feature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix

from stepsieve.data.features.reader import ARGUMENTS, ASSISTANT, NARRATION, RESULT, USER, Bools, Calls, Ints, read
from stepsieve.data.features.tokens import tokenize
from stepsieve.data.trajectory import Reference, Trajectory

__all__ = [
    "ARGUMENTS",
    "ASSISTANT",
    "NARRATION",
    "RESULT",
    "USER",
    "Bools",
    "Calls",
    "Floats",
    "Index",
    "Ints",
    "Part",
    "ranges",
    "sums",
]

T = TypeVar("T")
Floats = npt.NDArray[np.float64]

CODE_WEIGHT = 3.0
"""How much a number, code or id says about what two documents share, against 1 for a word and 0 for a JSON key."""

COMMON = 64
"""A token that stands in more results of one run than this tells none of them apart: left out of ``result_overlap``,
which keeps its cost linear in the length of a run."""


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
        documents = read(trajectories)
        self.kind, self.run, self.calls = documents.kind, documents.run, documents.calls
        self.message_start = documents.message_start
        self.message_text, self.message_call = documents.message_text, documents.message_call

        tokens = tokenize(documents.texts)
        sizes = np.diff(tokens.starts)[documents.text]
        document = np.repeat(np.arange(len(sizes)), sizes)
        word = tokens.token[ranges(tokens.starts[documents.text], sizes)]
        counted = (self.kind != NARRATION)[document] | tokens.specific[word]
        document, word = document[counted], word[counted]
        # A token's number is made one of its trajectory's own, so that nothing is shared between trajectories.
        width = max(1, len(tokens.key))
        scoped = self.run[document] * width + word
        present = np.zeros(len(trajectories) * width, dtype=bool)
        present[scoped] = True
        word_of = np.flatnonzero(present) % width
        self.document: Ints = document
        self.token: Ints = (np.cumsum(present) - 1)[scoped]
        self.specific: Bools = tokens.specific[word_of]
        self.key: Bools = tokens.key[word_of]
        self.weight: Floats = np.where(self.key, 0.0, np.where(self.specific, CODE_WEIGHT, 1.0))
        self.starts: Ints = np.searchsorted(document, np.arange(len(self.kind) + 1))
        self._memo: dict[object, Any] = {}

    def once(self, function: Callable[[Index], T]) -> T:
        """``function(self)``, computed on the first call: for what several subjects need."""
        return self._remember(function, lambda: function(self))

    def row(self, run: int, step: Reference) -> int:
        """The position in ``calls`` of a trajectory's interaction ``(call_index, result_index)``.

        Raises:
            KeyError: no such answered interaction.
        """
        return self._row_of[run, step]

    @cached_property
    def _row_of(self) -> dict[tuple[int, Reference], int]:
        calls = self.calls
        steps = zip(calls.call.tolist(), calls.result.tolist(), strict=True)
        return {key: row for row, key in enumerate(zip(calls.run.tolist(), steps, strict=True))}

    # --- by document -------------------------------------------------------------------------------------------------

    def total(self, condition: npt.NDArray[Any] | float = 1.0) -> Floats:
        """(n_documents,) weighted number of tokens; with a condition (n_entries,), of those for which it holds."""
        return sums(self.entry_weight * condition, self.starts)

    def part(self, documents: Ints) -> Part:
        """Some documents alone: for what asks about the arguments or the results only, and not of every entry."""
        return Part(self, documents)

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
    def _by_token(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Entries ordered by token, then document: their documents, their numbers, and where their token's entries
        begin and end in this order; (n_entries,) each."""
        entries = np.arange(len(self.token), dtype=np.int32)
        table = csr_matrix((entries, self._columns, self._row_starts), shape=(len(self.kind), len(self.weight))).tocsc()
        sizes = np.diff(table.indptr)
        begin, end = np.repeat(table.indptr[:-1], sizes), np.repeat(table.indptr[1:], sizes)
        indices: Ints = table.indices.astype(np.int64)
        return indices, table.data.astype(np.int64), begin.astype(np.int64), end.astype(np.int64)

    @cached_property
    def first(self) -> Ints:
        """(n_tokens,) the document in which a token first stands."""
        return self.first_in(ASSISTANT, USER, ARGUMENTS, RESULT, NARRATION)

    def first_in(self, *kinds: int) -> Ints:
        """(n_tokens,) the first document of these kinds in which a token stands; n_documents where in none."""
        return self._remember(("first", kinds), lambda: self._first_in(kinds))

    def _first_in(self, kinds: tuple[int, ...]) -> Ints:
        found = np.full(len(self.weight), len(self.kind))
        rows = self._entries_in(self._of_kinds(kinds))[::-1]
        found[self.token[rows]] = self.document[rows]
        return found

    def last_in(self, *kinds: int) -> Ints:
        """(n_tokens,) the last document of these kinds in which a token stands; -1 where in none."""
        return self._remember(("last", kinds), lambda: self.last_where(self._of_kinds(kinds)))

    def last_where(self, documents: Bools) -> Ints:
        """(n_tokens,) the last of the documents (n_documents,) in which a token stands; -1 where in none."""
        found = np.full(len(self.weight), -1)
        rows = self._entries_in(documents)
        found[self.token[rows]] = self.document[rows]
        return found

    def _of_kinds(self, kinds: tuple[int, ...]) -> Bools:
        """(n_documents,) whether a document is of one of these kinds."""
        found: Bools = np.logical_or.reduce([self.kind == kind for kind in kinds])
        return found

    def _entries_in(self, documents: Bools) -> Ints:
        """The entries of the documents (n_documents,), in order."""
        rows = np.flatnonzero(documents)
        return ranges(self.starts[rows], self.starts[rows + 1] - self.starts[rows])

    def previous_in(self, kind: int) -> Ints:
        """(n_entries,) the last document of a kind before this one in which the token stands; -1 where in none."""
        return self._remember(("previous", kind), lambda: self._neighbour(kind, later=False))

    def next_in(self, kind: int) -> Ints:
        """(n_entries,) the first document of a kind after this one in which the token stands; -1 where in none."""
        return self._remember(("next", kind), lambda: self._neighbour(kind, later=True))

    def _neighbour(self, kind: int, later: bool) -> Ints:
        documents, entry, begin, end = self._by_token
        own = (self.kind == kind)[documents]
        matching = documents[np.flatnonzero(own)]
        # How many matching entries stand before each entry in the order of tokens: one's neighbour is the next in
        # ``matching`` or the one before, if it is not yet another token's.
        passed = np.concatenate([[0], np.cumsum(own)])
        if later:
            rows = np.flatnonzero(passed[1:] < passed[end])
            neighbour = matching[passed[rows + 1]]
        else:
            rows = np.flatnonzero(passed[:-1] > passed[begin])
            neighbour = matching[passed[rows] - 1]
        found = np.full(len(documents), -1)
        found[entry[rows]] = neighbour
        return found

    def stands_in_previous(self, kind: int) -> Bools:
        """(n_entries,) the token stands in the last document of a kind before this one too."""

        def compute() -> Bools:
            last = self.previous_document(kind, np.arange(len(self.kind)))[self.document]
            found: Bools = (last >= 0) & (self.previous_in(kind) == last)
            return found

        return self._remember(("in previous", kind), compute)

    def stands_in_next(self, kind: int) -> Bools:
        """(n_entries,) the token stands in the first document of a kind after this one too."""

        def compute() -> Bools:
            following = self.next_document(kind, np.arange(len(self.kind)))[self.document]
            found: Bools = (following >= 0) & (self.next_in(kind) == following)
            return found

        return self._remember(("in next", kind), compute)

    def weight_seen(self, first: Ints, document: Ints, only: Bools | None = None) -> Floats:
        """(n,) weight of the tokens of each document's run whose document ``first`` (n_tokens,) comes before it."""
        counted = self.weight if only is None else self.weight * only
        running = np.cumsum(np.bincount(first + 1, counted, minlength=len(self.kind) + 2))
        begin = np.concatenate([[0], self.run_end])[self.run[document]]
        seen: Floats = running[document] - running[begin]
        return seen

    def count_beyond(self, last: Ints, document: Ints) -> Ints:
        """(n,) number of tokens of each document's run whose document ``last`` (n_tokens,) comes after it."""
        running = np.cumsum(np.bincount(last + 1, minlength=len(self.kind) + 1))
        return running[self.run_end[self.run[document]]] - running[document + 1]

    def _remember(self, name: object, compute: Callable[[], T]) -> T:
        if name not in self._memo:
            self._memo[name] = compute()
        found: T = self._memo[name]
        return found

    # --- pairs of documents ------------------------------------------------------------------------------------------

    @cached_property
    def _columns(self) -> npt.NDArray[np.int32]:
        return self.token.astype(np.int32)

    @cached_property
    def _row_starts(self) -> npt.NDArray[np.int32]:
        return self.starts.astype(np.int32)

    def table(self, documents: Ints, values: npt.NDArray[np.generic] | None = None) -> csr_matrix:
        """(n, n_tokens) sparse: the tokens of each document, with entry values (n_entries,) or 1."""
        sizes = self.starts[documents + 1] - self.starts[documents]
        entries = ranges(self.starts[documents], sizes)
        data = np.ones(len(entries)) if values is None else values[entries].astype(np.float64)
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        return csr_matrix((data, self._columns[entries], starts), shape=(len(documents), len(self.weight)))

    def shared(self, documents: Ints, others: Ints) -> Floats:
        """(n,) weighted number of tokens that two documents share, pair by pair; 0 where the other is -1."""
        pairs = np.flatnonzero(others >= 0)
        entry, pair = self.common(documents[pairs], others[pairs])
        both = np.bincount(pairs[pair], self.entry_weight[entry], minlength=len(documents))
        return both.astype(np.float64)

    def common(self, documents: Ints, others: Ints) -> tuple[Ints, Ints]:
        """Which tokens two documents share, pair by pair: (m,) their entries in the first, and (m,) the pair."""
        numbers = np.arange(1, len(self.token) + 1)  # from 1: a zero would be dropped
        both = self.table(documents, numbers).multiply(self.table(others)).tocsr()
        return both.data.astype(np.int64) - 1, np.repeat(np.arange(len(documents)), np.diff(both.indptr))

    @cached_property
    def result_overlap(self) -> csr_matrix:
        """(n_calls, n_calls) sparse: weighted number of tokens that two results of one run share; see ``COMMON``."""
        results = self.table(self.calls.output)
        rare = np.bincount(results.indices, minlength=len(self.weight)) <= COMMON
        weighted = self.table(self.calls.output, self.entry_weight * rare[self.token])
        weighted.eliminate_zeros()
        return weighted @ results.T.tocsr()


class Part:
    """The entries of some documents (n,) of an index.

    Attributes:
        entry: (m,) their numbers, by which arrays (n_entries,) of the index are asked.
        document, token: (m,) as in ``Index``.
        size: (n,) weighted number of tokens of each document; sizes: how many entries it has.
    """

    def __init__(self, index: Index, documents: Ints) -> None:
        self.sizes: Ints = index.starts[documents + 1] - index.starts[documents]
        self.entry: Ints = ranges(index.starts[documents], self.sizes)
        self.document: Ints = index.document[self.entry]
        self.token: Ints = index.token[self.entry]
        self.size: Floats = index.size[documents]
        self._weight: Floats = index.entry_weight[self.entry]
        self._starts: Ints = np.concatenate([[0], np.cumsum(self.sizes)])

    def total(self, condition: npt.NDArray[Any]) -> Floats:
        """(n,) weighted number of the tokens of each document for which a condition (m,) holds."""
        return sums(self._weight * condition, self._starts)


def sums(values: npt.NDArray[Any], starts: Ints) -> Floats:
    """(n,) sums of the stretches of values that begin at ``starts`` (n + 1,); several times faster than a bincount."""
    found = np.zeros(len(starts) - 1)
    filled = np.flatnonzero(starts[1:] > starts[:-1])
    if len(filled):
        found[filled] = np.add.reduceat(values, starts[filled])
    return found


def ranges(starts: Ints, sizes: Ints) -> Ints:
    """``starts[0], starts[0] + 1, ...`` for ``sizes[0]`` numbers, then the same for the next start, and so on."""
    ends = np.cumsum(sizes)
    places: Ints = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - sizes), sizes)
    return places

"""Everything that could be the evidence of a step, and its features among its rivals (EvidenceRet).

Candidates are every other answered interaction of either side, every text, the policy, and joint references: the pairs
of earlier results that together hold most of what the step brought back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix

from stepsieve.data.features import evidence
from stepsieve.data.features.evidence import Resolved
from stepsieve.data.features.index import COMMON, Floats, Index, Ints, ranges, sums
from stepsieve.data.features.registry import Feature, columns, count, flag
from stepsieve.data.references import POLICY, normalise
from stepsieve.data.trajectory import Reference

RIVAL_SUBJECTS = (
    "evidence.use",
    "evidence.meets_user_more",
    "evidence.holds_result",
    "evidence.holds_arguments",
    "own.goal.found_here",
    "own.goal.use",
    "own.result.new_in_next_text",
    "own.arguments.used_later",
    "own.arguments.said_later",
)
"""What rivals are compared by."""

RIVALS = ("all", "after", "before", "tool_after")
"""Against whom: every candidate; the interactions after the step; those before it; those of its tool after it."""

JOINT_SOURCES, JOINT_KEPT = 6, 2
"""Joint references are tried among so many earlier results that hold most of the step's, and so many are kept."""


class Window(NamedTuple):
    """How many of a group's members are candidates: the nearest before and after the step, and the group's first."""

    before: int
    after: int
    first: int = 0


SHORT = 128
"""A run of at most so many calls and texts has them all as candidates: that is far more than the benchmark's have."""

AROUND = {"run": Window(24, 24), "tool": Window(8, 8, 4), "answer": Window(2, 2, 2), "key": Window(2, 2, 2)}
"""In a longer run: the nearest calls, those of the step's tool, those with its answer, and the identical ones."""

ALIKE = 20
"""In a longer run: so many calls whose results share most with the step's."""

TEXTS = Window(12, 12)
"""In a longer run: the nearest texts. With the policy and joint references that makes about ``SHORT`` candidates."""


@dataclass(frozen=True)
class Candidates:
    """The candidates of several steps, one after another; every array has shape (n,).

    Attributes:
        question: which step each belongs to, an index into the rows asked for.
        row: the step's position in ``calls``.
        call, text: as in ``Resolved``; both -1 for the policy.
        second: the other call of a joint reference; -1 otherwise.
    """

    question: Ints
    row: Ints
    call: Ints
    text: Ints
    second: Ints

    def resolved(self, index: Index) -> Resolved:
        """The candidates as references resolved to documents."""
        first = np.where(self.call >= 0, index.calls.output[self.call], self.text)
        own, joint = np.flatnonzero(first >= 0), np.flatnonzero(self.second >= 0)
        return Resolved(
            self.call,
            self.text,
            self.second >= 0,
            np.concatenate([own, joint]),
            np.concatenate([first[own], index.calls.output[self.second[joint]]]),
        )

    def places(self, index: Index, question: int) -> dict[Reference, int]:
        """Where the candidates of one step stand, by the reference that each stands for."""
        low, high = np.searchsorted(self.question, [question, question + 1]).tolist()
        return {self.reference(index, place): place for place in range(low, high)}

    def reference(self, index: Index, number: int) -> Reference:
        """The reference that a candidate stands for."""
        calls, call, second = index.calls, int(self.call[number]), int(self.second[number])
        if call < 0:
            text = int(self.text[number])
            return POLICY if text < 0 else (index.once(_text_message)[text],)
        found = (int(calls.call[call]), int(calls.result[call]))
        return found if second < 0 else normalise((*found, int(calls.call[second]), int(calls.result[second])))


def candidates(index: Index, rows: Ints) -> Candidates:
    """All candidates of the steps at positions ``rows`` in ``calls``: calls, texts, the policy, joint references.

    In a run of more than ``SHORT`` calls and texts a step has only those of ``AROUND`` and ``ALIKE``: their number is
    then bounded, and the work linear in the length of the run.
    """
    run = index.calls.run[rows]
    texts, text_start = index.once(_texts)
    calls_of = np.bincount(index.calls.run, minlength=len(index.trajectories))
    short = (calls_of + np.diff(text_start))[run] <= SHORT
    everything, some = np.flatnonzero(short), np.flatnonzero(~short)
    call_start = np.cumsum(calls_of) - calls_of

    sizes = calls_of[run[everything]]
    own, of_own = ranges(call_start[run[everything]], sizes), np.repeat(everything, sizes)
    other = np.flatnonzero(own != rows[of_own])
    own, of_own = own[other], of_own[other]
    sizes = np.diff(text_start)[run[everything]]
    said, of_said = texts[ranges(text_start[run[everything]], sizes)], np.repeat(everything, sizes)
    if len(some):
        calls, of_calls = _likely_calls(index, rows, some)
        near, of_near = _near_texts(index, rows, some)
        own, of_own = np.concatenate([own, calls]), np.concatenate([of_own, of_calls])
        said, of_said = np.concatenate([said, near]), np.concatenate([of_said, of_near])
    of_joint, first, second = _joint(index, rows)

    policy = np.arange(len(rows))
    question = np.concatenate([of_own, of_said, policy, of_joint])
    order = np.argsort(question, kind="stable")
    question = question[order]

    def column(*parts: Ints | int) -> Ints:
        counts = (len(own), len(said), len(rows), len(first))
        return np.concatenate([np.broadcast_to(part, n) for part, n in zip(parts, counts, strict=True)])[order]

    return Candidates(
        question, rows[question], column(own, -1, -1, first), column(-1, said, -1, -1), column(-1, -1, -1, second)
    )


def _texts(index: Index) -> tuple[Ints, Ints]:
    """The documents of all texts, and where each run's begin and the last's end (n_runs + 1,)."""
    texts = np.unique(index.message_text[index.message_text >= 0])
    return texts, np.searchsorted(index.run[texts], np.arange(len(index.trajectories) + 1))


# --- long runs -------------------------------------------------------------------------------------------------------


def _likely_calls(index: Index, rows: Ints, asked: Ints) -> tuple[Ints, Ints]:
    """Calls that can well be the evidence of the steps ``rows[asked]``: a position in ``calls``, and in ``rows``."""
    calls, own = index.calls, rows[asked]
    found, question = [], []
    for name, window in AROUND.items():
        group = getattr(calls, name)
        order = np.argsort(group, kind="stable")
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        begin, end = (np.searchsorted(group[order], group[own], side=side) for side in ("left", "right"))
        near = np.maximum(place[own] - window.before, begin), np.minimum(place[own] + window.after + 1, end)
        for low, high in (near, (begin, np.minimum(begin + window.first, end))):
            found.append(order[ranges(low, high - low)])
            question.append(np.repeat(asked, high - low))
    overlap, _ = index.once(_field_overlap)
    for number, row in zip(asked.tolist(), own.tolist(), strict=True):
        entries = slice(overlap.indptr[row], overlap.indptr[row + 1])
        others, shared = overlap.indices[entries].astype(np.int64), overlap.data[entries]
        other = others != row
        best = _greatest(shared[other], others[other], ALIKE)
        found.append(others[other][best])
        question.append(np.full(len(best), number))
    width = len(calls)
    pair = np.unique(np.concatenate(question) * width + np.concatenate(found))
    pair = pair[pair % width != rows[pair // width]]
    return pair % width, pair // width


def _near_texts(index: Index, rows: Ints, asked: Ints) -> tuple[Ints, Ints]:
    """The documents of the texts around the steps ``rows[asked]``, and their positions in ``rows``."""
    texts, starts = index.once(_texts)
    run = index.calls.run[rows[asked]]
    place = np.searchsorted(texts, index.calls.output[rows[asked]])
    low = np.maximum(place - TEXTS.before, starts[run])
    high = np.minimum(place + TEXTS.after, starts[run + 1])
    return texts[ranges(low, high - low)], np.repeat(asked, high - low)


def _greatest(value: Floats, tie: Ints, n: int) -> Ints:
    """Positions of the n greatest values (m,), the greatest first; of equal ones the least ``tie`` (m,)."""
    within = np.arange(len(value))
    if len(value) > n:
        within = np.flatnonzero(value >= np.partition(value, -n)[-n])
    return within[np.lexsort((tie[within], -value[within]))[:n]]


# --- joint references ------------------------------------------------------------------------------------------------


def _field_overlap(index: Index) -> tuple[csr_matrix, Floats]:
    """(n_calls, n_calls) sparse: what two results share, fields counting as much as words; the weights (n_tokens,)."""
    weight = np.where(index.key, 1.0, index.weight)
    results = index.table(index.calls.output)
    rare = np.bincount(results.indices, minlength=len(weight)) <= COMMON
    weighted = index.table(index.calls.output, (weight * rare)[index.token])
    weighted.eliminate_zeros()
    return (weighted @ results.T).tocsr(), weight


def _joint(index: Index, rows: Ints) -> tuple[Ints, Ints, Ints]:
    """Pairs of earlier successful calls whose results together hold more of a step's than either alone.

    Returns:
        (m,) each: the position in ``rows`` of the step, ascending, and the two calls, the earlier first.
    """
    weight = index.once(_field_overlap)[1]
    question, source, number = _sources(index, rows)
    if not len(question):
        return question, question, question
    asked, local = np.unique(question, return_inverse=True)
    documents = index.calls.output[rows[asked]]
    sizes = index.starts[documents + 1] - index.starts[documents]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    weights = weight[index.token[ranges(index.starts[documents], sizes)]]

    # Bit k of a value of the step's result: its k-th source holds it too.
    place, pair = index.common(index.calls.output[rows[question]], index.calls.output[source])
    place += (starts[local] - index.starts[documents][local])[pair]
    bits = np.zeros(len(weights), dtype=np.int64)
    np.bitwise_or.at(bits, place, 1 << number[pair])
    has = [(bits >> k) & 1 for k in range(JOINT_SOURCES)]
    held = np.stack([sums(weights * own, starts) for own in has], axis=1)
    first, second = np.triu_indices(JOINT_SOURCES, 1)
    common = np.stack([sums(weights * (has[a] & has[b]), starts) for a, b in zip(first, second, strict=True)], axis=1)
    together = held[:, first] + held[:, second] - common
    sources = np.full((len(asked), JOINT_SOURCES), -1)
    sources[local, number] = source

    row, kind = np.nonzero(together - np.maximum(held[:, first], held[:, second]) > 0.5)
    one, two = sources[row, first[kind]], sources[row, second[kind]]
    order = np.lexsort((one + two, -together[row, kind], row))
    order = order[np.arange(len(order)) - np.searchsorted(row[order], row[order]) < JOINT_KEPT]
    return asked[row[order]], np.minimum(one, two)[order], np.maximum(one, two)[order]


def _sources(index: Index, rows: Ints) -> tuple[Ints, Ints, Ints]:
    """(m,) each: the position in ``rows`` of a step, an earlier call that holds much of its result, and its rank.

    Steps with fewer than two such calls have none.
    """
    overlap, _ = index.once(_field_overlap)
    owner = np.repeat(np.arange(len(index.calls)), np.diff(overlap.indptr))
    usable = (overlap.indices < owner) & ~index.calls.error[overlap.indices] & (overlap.data > 0)
    starts = np.concatenate([[0], np.cumsum(usable)])[overlap.indptr].tolist()
    others, shared = overlap.indices[usable].astype(np.int64), overlap.data[usable]
    question: list[int] = []
    source: list[int] = []
    number: list[int] = []
    for asked, row in enumerate(rows.tolist()):
        low, high = starts[row], starts[row + 1]
        if high - low < 2:
            continue
        best = others[low:high][_greatest(shared[low:high], others[low:high], JOINT_SOURCES)]
        question += [asked] * len(best)
        source += best.tolist()
        number += range(len(best))
    found = np.array([question, source, number], dtype=np.int64)
    return found[0], found[1], found[2]


def _text_message(index: Index) -> dict[int, int]:
    """Document of a text -> its message index."""
    place = np.flatnonzero(index.message_text >= 0)
    documents = index.message_text[place]
    return dict(zip(documents.tolist(), (place - index.message_start[index.run[documents]]).tolist(), strict=True))


def rival_features(step_features: tuple[Feature, ...]) -> tuple[Feature, ...]:
    """The features of a candidate among its rivals, and those of its own call."""
    gaps = tuple(
        count(f"rival.{who}.{what}", f"{what} of the best candidate ({who}) less that of this one")
        for who in RIVALS
        for what in RIVAL_SUBJECTS
    )
    places = tuple(
        feature
        for who in RIVALS
        for feature in (
            count(f"rival.{who}.nearer", f"calls by which another candidate ({who}) stands nearer"),
            count(f"rival.{who}.number", f"number of candidates ({who})"),
            flag(f"rival.{who}.one", f"the candidate is one of these ({who})"),
        )
    )
    own = tuple(
        Feature(
            f"own.{feature.name}", f"the evidence's own call: {feature.doc}", feature.dtype, feature.low, feature.high
        )
        for feature in step_features
    )
    return own + gaps + places


def compare(
    found: Candidates,
    values: dict[str, npt.NDArray[np.float32]],
    after: npt.NDArray[np.bool_],
    same_tool: npt.NDArray[np.bool_],
) -> dict[str, npt.NDArray[np.generic]]:
    """How each candidate stands among its rivals; each value has shape (n,).

    Args:
        found: candidates ordered by question.
        values: by name in ``RIVAL_SUBJECTS`` and "evidence.calls_between", (n,), NaN where it does not apply.
        after, same_tool: (n,) the candidate comes after the step; is a call of its tool.
    """
    is_call = found.call >= 0
    groups = {
        "all": np.ones(len(is_call), dtype=bool),
        "after": after & is_call,
        "before": ~after & is_call,
        "tool_after": after & same_tool,
    }
    starts = np.flatnonzero(np.diff(found.question, prepend=-1))
    sizes = np.diff(np.append(starts, len(found.question)))
    result: dict[str, npt.NDArray[np.generic]] = {}
    subjects = np.nan_to_num(np.stack([values[what] for what in RIVAL_SUBJECTS], axis=1), nan=-1.0)
    for who in RIVALS:
        mask = groups[who]
        among = np.where(mask[:, None], subjects, np.float32(-np.inf))
        best = np.repeat(np.maximum.reduceat(among, starts), sizes, axis=0) if len(starts) else among
        gaps = np.where(mask[:, None], best - subjects, np.float32(np.nan))
        result.update({f"rival.{who}.{what}": gaps[:, place] for place, what in enumerate(RIVAL_SUBJECTS)})
        between = np.where(mask, np.nan_to_num(values["evidence.calls_between"], nan=99.0), np.inf)
        nearest = np.repeat(np.minimum.reduceat(between, starts), sizes) if len(starts) else between
        result[f"rival.{who}.nearer"] = _difference(between, nearest, mask)
        number = np.repeat(np.add.reduceat(mask.astype(np.int64), starts), sizes) if len(starts) else mask
        result[f"rival.{who}.number"] = number
        result[f"rival.{who}.one"] = mask
    return result


def _difference(
    more: npt.NDArray[np.float64], less: npt.NDArray[np.float64], mask: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    found = np.full(len(mask), np.nan)
    found[mask] = more[mask] - less[mask]
    return found


def compute(
    index: Index, found: Candidates, step_features: tuple[Feature, ...], steps: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """(n, n_retrieval_features) float32: the step's, the pair's, the evidence's own call's, and those among rivals.

    Args:
        step_features, steps: the features of every call of the batch (n_calls, n_step_features) and their registry.
    """
    names = [feature.name for feature in step_features]
    pair = evidence.compute(index, found.row, found.resolved(index))
    own = np.where((found.call >= 0)[:, None], steps[found.call], np.nan).astype(np.float32)
    values = {name: np.asarray(pair[name], dtype=np.float32) for name in (*pair,)}
    values.update({f"own.{name}": own[:, number] for number, name in enumerate(names)})
    rivals = compare(
        found, values, np.asarray(pair["evidence.after"]) == 1, np.asarray(pair["evidence.same_tool"]) == 1
    )
    among = rival_features(step_features)[len(names) :]
    return np.hstack(
        [
            steps[found.row],
            columns(evidence.FEATURES, pair, len(found.row)),
            own,
            columns(among, rivals, len(found.row)),
        ]
    )

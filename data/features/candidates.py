"""Everything that could be the evidence of a step, and its features among its rivals (EvidenceRet).

Candidates are every other answered interaction of either side, every text, the policy, and joint references: the pairs
of earlier results that together hold most of what the step brought back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix

from stepsieve.data.features import evidence
from stepsieve.data.features.evidence import Resolved
from stepsieve.data.features.index import COMMON, Floats, Index, Ints
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

    def reference(self, index: Index, number: int) -> Reference:
        """The reference that a candidate stands for."""
        calls, call, second = index.calls, int(self.call[number]), int(self.second[number])
        if call < 0:
            text = int(self.text[number])
            return POLICY if text < 0 else (index.once(_text_message)[text],)
        found = (int(calls.call[call]), int(calls.result[call]))
        return found if second < 0 else normalise((*found, int(calls.call[second]), int(calls.result[second])))


def candidates(index: Index, rows: Ints) -> Candidates:
    """All candidates of the steps at positions ``rows`` in ``calls``."""
    calls = index.calls
    texts = np.unique(index.message_text[index.message_text >= 0])
    call_start = np.searchsorted(calls.run, np.arange(len(index.trajectories) + 1))
    text_start = np.searchsorted(index.run[texts], np.arange(len(index.trajectories) + 1))
    parts: list[tuple[int, Ints, Ints, Ints]] = []
    for question, row in enumerate(rows.tolist()):
        run = int(calls.run[row])
        own = np.arange(call_start[run], call_start[run + 1])
        own = own[own != row]
        said = texts[text_start[run] : text_start[run + 1]]
        joint = _joint(index, row, int(call_start[run]))
        none = np.full(1 + len(said), -1)
        call = np.concatenate([own, none, joint[:, 0]])
        text = np.concatenate([np.full(len(own), -1), said, np.full(1 + len(joint), -1)])
        second = np.concatenate([np.full(len(own), -1), none, joint[:, 1]])
        parts.append((question, call, text, second))
    sizes = [len(part[1]) for part in parts]
    return Candidates(
        np.repeat(np.arange(len(rows)), sizes),
        np.repeat(rows, sizes),
        *(np.concatenate([part[k] for part in parts]) if parts else np.zeros(0, dtype=np.int64) for k in (1, 2, 3)),
    )


def _field_overlap(index: Index) -> tuple[csr_matrix, Floats]:
    """(n_calls, n_calls) sparse: what two results share, fields counting as much as words; the weights (n_tokens,)."""
    weight = np.where(index.key, 1.0, index.weight)
    results = index.table(index.calls.output)
    rare = np.bincount(results.indices, minlength=len(weight)) <= COMMON
    weighted = index.table(index.calls.output, (weight * rare)[index.token])
    return (weighted @ results.T).tocsr(), weight


def _joint(index: Index, row: int, start: int) -> Ints:
    """(k, 2) pairs of earlier successful calls whose results together hold more of the step's than either alone."""
    calls = index.calls
    overlap, weight = index.once(_field_overlap)
    entries = slice(overlap.indptr[row], overlap.indptr[row + 1])
    sources, alone = overlap.indices[entries], overlap.data[entries]
    earlier = (sources >= start) & (sources < row) & ~calls.error[sources] & (alone > 0)
    sources, alone = sources[earlier], alone[earlier]
    order = np.lexsort((sources, -alone))[:JOINT_SOURCES]
    sources = sources[order].astype(np.int64)
    if len(sources) < 2:
        return np.zeros((0, 2), dtype=np.int64)
    tokens = _tokens(index, row)
    table = np.array([np.isin(tokens, _tokens(index, source)) for source in sources]) * 1.0
    held = table @ weight[tokens]
    together = held[:, None] + held[None, :] - (table * weight[tokens]) @ table.T
    first, second = np.triu_indices(len(sources), 1)
    better = np.flatnonzero(together[first, second] - np.maximum(held[first], held[second]) > 0.5)
    first, second = first[better], second[better]
    best = np.lexsort((sources[first] + sources[second], -together[first, second]))[:JOINT_KEPT]
    return np.sort(np.stack([sources[first[best]], sources[second[best]]], axis=1), axis=1)


def _tokens(index: Index, call: int) -> Ints:
    document = index.calls.output[call]
    return index.token[index.starts[document] : index.starts[document + 1]]


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
    for who in RIVALS:
        mask = groups[who]
        for what in RIVAL_SUBJECTS:
            value = np.where(mask, np.nan_to_num(values[what], nan=-1.0), -np.inf)
            best = np.repeat(np.maximum.reduceat(value, starts), sizes) if len(starts) else value
            result[f"rival.{who}.{what}"] = _difference(best, value, mask)
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

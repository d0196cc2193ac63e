"""Features of a (step, evidence) pair: what kind of thing the evidence is, where it stands, and what it shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepsieve.data.features.goal import acts, usage
from stepsieve.data.features.groups import Grouping
from stepsieve.data.features.index import USER, Bools, Floats, Index, Ints
from stepsieve.data.features.registry import Feature, Values, count, difference, flag, ratio, share
from stepsieve.data.references import POLICY
from stepsieve.data.trajectory import Reference

FEATURES: tuple[Feature, ...] = (
    flag("evidence.policy", "the evidence is a fixed rule, no message"),
    flag("evidence.user_text", "the evidence is a text of the user"),
    flag("evidence.assistant_text", "the evidence is a text of the assistant"),
    flag("evidence.user_call", "the evidence is a call of the user's side"),
    flag("evidence.joint", "the evidence is several interactions together"),
    flag("evidence.after", "the evidence comes after the step"),
    count("evidence.calls_between", "assistant calls between the two"),
    flag("evidence.next", "the evidence is the assistant's next call"),
    flag("evidence.previous", "the evidence is the assistant's call just before"),
    count("evidence.turns_between", "user messages between the two"),
    flag("evidence.same_tool", "the evidence is a call of the same tool"),
    flag("evidence.same_call", "the evidence is the same call: tool and arguments"),
    flag("evidence.same_answer", "the evidence has the identical result"),
    count("evidence.same_tool_between", "calls of the step's tool between the two"),
    flag("evidence.failed", "the evidence failed"),
    flag("evidence.is_act", "the evidence is an act that the user had confirmed"),
    share("evidence.holds_result", "share of the step's result that the evidence holds"),
    share("evidence.in_result", "share of the evidence that the step's result holds"),
    share("evidence.holds_new", "share of what the step brought first that the evidence holds"),
    share("evidence.holds_arguments", "share of the step's argument values that the evidence's result or text holds"),
    share("evidence.same_arguments", "share of the step's argument values among the evidence's arguments"),
    share("evidence.result_holds_arguments", "share of the evidence's argument values that the step's result holds"),
    share("evidence.fields", "share of the fields of the step's result that the evidence's result has"),
    count("evidence.size", "weighted number of values in the evidence"),
    count("evidence.use", "weighted number of the evidence's new values that are used later"),
    difference("evidence.more_use", "how much more of the evidence than of the step is used later"),
    flag("evidence.most_used", "no call of the evidence's tool brings more that is used"),
    share("evidence.arguments_known", "share of the evidence's argument values that stood before the step"),
    share("evidence.meets_user", "share of what the user had said before it that the evidence holds"),
    difference("evidence.meets_user_more", "what the user had said: how much more the evidence holds than the step"),
)


@dataclass(frozen=True)
class Resolved:
    """References as positions; every array has shape (n,).

    Attributes:
        call: the first interaction named, a position in ``calls``; -1 for a text or the policy.
        text: the document of the text named; -1 otherwise.
        joint: several interactions are named.
        pair, document: (m,) which documents each reference holds: results of its interactions, or its text.
    """

    call: Ints
    text: Ints
    joint: Bools
    pair: Ints
    document: Ints


def resolve(index: Index, runs: Sequence[int], references: Sequence[Reference]) -> Resolved:
    """What each reference of a trajectory (its number in the batch) names.

    An index that is no text names the interaction it belongs to, so a lone tool result or two results of one batch
    have a meaning too.
    """
    call = np.full(len(references), -1)
    text = np.full(len(references), -1)
    joint = np.zeros(len(references), dtype=bool)
    pair: list[int] = []
    document: list[int] = []
    starts, texts, calls = (own.tolist() for own in (index.message_start, index.message_text, index.message_call))
    outputs = index.calls.output.tolist()
    for row, (run, reference) in enumerate(zip(runs, references, strict=True)):
        if reference == POLICY:
            continue
        start = starts[run]
        if len(reference) == 1 and texts[start + reference[0]] >= 0:
            text[row] = texts[start + reference[0]]
            pair.append(row)
            document.append(texts[start + reference[0]])
            continue
        # A result names its interaction exactly; the message of a call may hold several.
        named = sorted({calls[start + i] for i in reference[len(reference) > 1 :: 2]} - {-1})
        if named:
            call[row] = named[0]
            joint[row] = len(named) > 1
            pair += [row] * len(named)
            document += [outputs[own] for own in named]
    return Resolved(call, text, joint, np.array(pair, dtype=np.int64), np.array(document, dtype=np.int64))


def compute(index: Index, rows: Ints, evidence: Resolved) -> Values:
    """The features of pairs: the call ``rows[k]`` with the k-th evidence; every value has shape (n,)."""
    calls, token = index.calls, index.token
    first, text = evidence.call, evidence.text
    is_call, is_text = first >= 0, text >= 0
    policy = ~is_call & ~is_text
    own, place = calls.output[rows], np.where(is_call, calls.output[first], text)
    after = np.where(is_call, first > rows, text > own) & ~policy

    # Places among the calls: a text stands where the next call would.
    at = np.where(is_call, first, np.searchsorted(np.sort(calls.output), text))
    low, high = np.minimum(rows, at), np.maximum(rows, at)
    steps = np.concatenate([[0], np.cumsum(calls.assistant)])
    # The earlier of the two does not count itself, unless it is a text: then the call at its place comes after it.
    begin = low + ~(is_text & (at <= rows))
    between = np.maximum(steps[high] - steps[np.minimum(begin, len(calls))], 0)
    user_texts = np.flatnonzero(index.kind == USER)
    # Strictly between: a user text that is the evidence itself does not count, on either side.
    turns = np.abs(np.searchsorted(user_texts, place + ~after) - np.searchsorted(user_texts, own))
    tool = Grouping(calls.tool)
    same_tool = is_call & (calls.tool[first] == calls.tool[rows])
    tool_between = np.where(same_tool, np.abs(tool.before[first] - tool.before[rows]) - (first != rows), np.nan)

    argument = np.where(is_call, calls.arguments[first], -1)
    size, arguments_size, held_size = index.size[own], index.size[calls.arguments[rows]], _size(index, evidence)
    weight, key = index.entry_weight, index.key[token]
    new = index.first[token] == index.document
    entry, held = _held(index, own, evidence)
    asked, holding = _held(index, calls.arguments[rows], evidence)

    def in_evidence(values: np.ndarray) -> np.ndarray:
        """(n,) sum of the values (n_entries,) of what the evidence holds of the step's result."""
        return np.bincount(held, values[entry], minlength=len(rows))

    held_result = in_evidence(weight)
    same_answer = is_call & (calls.answer[first] == calls.answer[rows])
    first_user = index.first_in(USER)
    met = index.total(first_user[token] < index.document)
    met_by_evidence = np.bincount(evidence.pair, met[evidence.document], minlength=len(rows))
    known = index.first[token] < index.document
    known_size = index.total(known)
    use = index.once(usage)
    evidence_use = np.where(is_call, use[first], np.nan)
    rival = np.maximum(tool.max_before(use), tool.max_after(use)) > use

    def unless_policy(value: np.ndarray) -> np.ndarray:
        return np.where(policy, np.nan, value)

    return {
        "evidence.policy": policy,
        "evidence.user_text": is_text & (index.kind[text] == USER),
        "evidence.assistant_text": is_text & (index.kind[text] != USER),
        "evidence.user_call": is_call & ~calls.assistant[first],
        "evidence.joint": evidence.joint,
        "evidence.after": after,
        "evidence.calls_between": unless_policy(between),
        "evidence.next": is_call & after & (between == 0) & calls.assistant[first],
        "evidence.previous": is_call & ~after & (between == 0) & calls.assistant[first],
        "evidence.turns_between": unless_policy(turns),
        "evidence.same_tool": same_tool,
        "evidence.same_call": is_call & (calls.key[first] == calls.key[rows]),
        "evidence.same_answer": same_answer,
        "evidence.same_tool_between": tool_between,
        "evidence.failed": is_call & calls.error[first],
        "evidence.is_act": is_call & index.once(acts)[first],
        # An empty answer is held by the same empty answer.
        "evidence.holds_result": unless_policy(np.where(same_answer, 1.0, ratio(held_result, size))),
        "evidence.in_result": ratio(held_result, held_size),
        "evidence.holds_new": unless_policy(ratio(in_evidence(weight * new), index.total(new)[own])),
        "evidence.holds_arguments": unless_policy(
            ratio(np.bincount(holding, weight[asked], minlength=len(rows)), arguments_size)
        ),
        "evidence.same_arguments": np.where(
            is_call, ratio(index.shared(calls.arguments[rows], argument), arguments_size), np.nan
        ),
        "evidence.result_holds_arguments": np.where(
            is_call, ratio(index.shared(own, argument), index.size[argument]), np.nan
        ),
        "evidence.fields": np.where(
            is_call,
            ratio(in_evidence(1.0 * key), np.bincount(index.document, key, len(index.kind))[own]),
            np.nan,
        ),
        "evidence.size": held_size,
        "evidence.use": evidence_use,
        "evidence.more_use": evidence_use - use[rows],
        "evidence.most_used": is_call & ~rival[first],
        "evidence.arguments_known": np.where(is_call, ratio(known_size[argument], index.size[argument]), np.nan),
        "evidence.meets_user": unless_policy(
            ratio(met_by_evidence, index.weight_seen(first_user, np.maximum(place, 0)))
        ),
        "evidence.meets_user_more": unless_policy(met_by_evidence - met[own]),
    }


def _held(index: Index, documents: Ints, evidence: Resolved) -> tuple[Ints, Ints]:
    """Which entries of a document (n,) the evidence (n,) holds: (m,) each, the entries and the rows; each pair once."""
    entry, place = index.common(documents[evidence.pair], evidence.document)
    row = evidence.pair[place]
    several = evidence.joint[row]
    if several.any():
        width = len(index.token)
        once = _distinct(row[several] * width + entry[several])
        entry = np.concatenate([entry[~several], once % width])
        row = np.concatenate([row[~several], once // width])
    return entry, row


def _size(index: Index, evidence: Resolved) -> Floats:
    """(n,) weighted number of tokens in each evidence."""
    sizes = np.bincount(evidence.pair, index.size[evidence.document], minlength=len(evidence.call))
    total: Floats = sizes.astype(np.float64)
    several = np.flatnonzero(evidence.joint[evidence.pair])
    if len(several):
        own = index.part(evidence.document[several])
        once = _distinct(np.repeat(evidence.pair[several], own.sizes) * len(index.weight) + own.token)
        together = np.bincount(once // len(index.weight), index.weight[once % len(index.weight)], minlength=len(total))
        total = np.where(evidence.joint, together, total)
    return total


def _distinct(values: Ints) -> Ints:
    """The different values (n,), ascending; on values nearly in order faster than ``np.unique``."""
    ordered = np.sort(values, kind="stable")
    different: Ints = ordered[np.diff(ordered, prepend=-1) != 0]
    return different

"""What the assistant did, action by action: each answered call, and each text without a call.

Features of an action ask how it stands to the request, to what was known, to the actions before and after it, and to
the text that ends the run. Those of its arguments or text are here for both kinds; of a call there are also those of
``STEP_FEATURES``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepsieve.data.features.groups import Grouping
from stepsieve.data.features.index import ARGUMENTS, ASSISTANT, NARRATION, RESULT, USER, Bools, Floats, Index, Ints
from stepsieve.data.features.registry import Feature, Values, count, difference, flag, ratio, share

FEATURES: tuple[Feature, ...] = (
    flag("action.text", "the action is a text, not a call"),
    flag("action.last", "no action of the assistant follows"),
    count("action.size", "weighted number of values in the action's arguments or text"),
    count("action.calls_before", "calls of the assistant before it since the user's last message"),
    count("action.calls_after", "calls of the assistant after it until the user's next message"),
    share("action.from_user", "share of its values that the user had said"),
    share("action.from_result", "share of its values that results alone had brought"),
    share("action.from_self", "share of its values that only the assistant itself had used before"),
    share("action.from_nowhere", "share of its values that nothing before held"),
    share("action.meets_user", "share of what the user had said that it takes up"),
    share("action.meets_user_first", "share of what the user had said that it is the first to take up"),
    share("action.like_earlier", "likeness of its arguments to the most alike of all earlier calls"),
    share("action.like_later", "likeness of its arguments to the most alike of all later calls"),
    share("action.like_so_far", "mean likeness of calls to the most alike before them, until this one"),
    share("action.like_greatest", "greatest likeness of two calls in the run"),
    share("action.met", "share of its arguments that its result holds"),
    difference("action.met_more", "share of its arguments that its result holds, less the share known from results"),
    share("action.result_new", "share of its result that stood nowhere before"),
    share("action.result_meets_user", "share of what the user had said that its result holds"),
    share("action.result_meets_user_first", "share of what the user had said that its result is the first to hold"),
    share("action.user_met", "share of what the user had said that results hold by then"),
    share("action.in_close", "share of the closing text's own words that its result holds"),
    share("action.in_close_first", "share of the closing text's own words that its result is the first to hold"),
    flag("action.in_close_most", "no result holds more of the closing text's own words"),
    count("close.size", "weighted number of values in the closing text"),
    share("close.from_nowhere", "share of the closing text that nothing before it held"),
    share("close.from_result", "share of the closing text's own words that results hold"),
    share("close.from_user", "share of the closing text that the user had said"),
    share("close.meets_user", "share of what the user had said that the closing text takes up"),
    share("close.from_one", "greatest share of the closing text's own words that one result holds"),
)


@dataclass(frozen=True)
class Actions:
    """The assistant's actions in a batch, in order of time; every array has shape (n,).

    Attributes:
        run: number of the trajectory in the batch. message: message index.
        call: position in ``index.calls``; -1 of a text.
        own: document of the arguments or the text. result: document of the result; -1 of a text.
    """

    run: Ints
    message: Ints
    call: Ints
    own: Ints
    result: Ints

    def __len__(self) -> int:
        return len(self.run)


def actions(index: Index) -> Actions:
    """All actions of the assistant in a batch."""
    calls = index.calls
    made = np.flatnonzero(calls.assistant)
    number = np.flatnonzero(index.message_text >= 0)
    said = number[index.kind[index.message_text[number]] == ASSISTANT]
    text = index.message_text[said]
    own = np.concatenate([calls.arguments[made], text])
    order = np.argsort(own, kind="stable")
    return Actions(
        np.concatenate([calls.run[made], index.run[text]])[order],
        np.concatenate([calls.call[made], said - index.message_start[index.run[text]]])[order],
        np.concatenate([made, np.full(len(text), -1)])[order],
        own[order],
        np.concatenate([calls.output[made], np.full(len(text), -1)])[order],
    )


def compute(index: Index) -> Values:
    """The features of every action of the batch; each value has shape (n_actions,)."""
    found = index.once(actions)
    return {**_own(index, found), **_results(index, found), **_closing(index, found)}


def _own(index: Index, found: Actions) -> Values:
    """How the arguments or the text stand to the request and to what was known."""
    document, token, own = index.document, index.token, found.own
    user = index.first_in(USER)
    by_user, by_result = user[token] < document, index.first_in(RESULT)[token] < document
    by_self = index.first_in(ASSISTANT, NARRATION, ARGUMENTS)[token] < document
    said = index.weight_seen(user, own)
    size, is_text = index.size[own], found.call < 0
    run = Grouping(found.run)
    turn = Grouping(np.searchsorted(np.flatnonzero(index.kind == USER), own) + found.run)

    def part(condition: Bools) -> Floats:
        return ratio(index.total(condition)[own], size)

    earlier, later = likeness(index, found)
    so_far = np.where(is_text, 0.0, np.nan_to_num(earlier))
    calls_until = run.count_before(~is_text) + ~is_text
    greatest = np.zeros(len(index.trajectories))
    np.maximum.at(greatest, found.run, so_far)
    return {
        "action.text": is_text,
        "action.last": run.after == 0,
        "action.size": size,
        "action.calls_before": turn.count_before(~is_text),
        "action.calls_after": turn.count_after(~is_text),
        "action.from_user": part(by_user),
        "action.from_result": part(by_result & ~by_user),
        "action.from_self": part(by_self & ~by_user & ~by_result),
        "action.from_nowhere": part(~by_user & ~by_result & ~by_self),
        "action.meets_user": ratio(index.total(by_user)[own], said),
        "action.meets_user_first": ratio(index.total(by_user & ~by_self)[own], said),
        "action.like_earlier": earlier,
        "action.like_later": later,
        "action.like_so_far": ratio(running(found.run, so_far), calls_until),
        "action.like_greatest": greatest[found.run],
    }


def likeness(index: Index, found: Actions) -> tuple[Floats, Floats]:
    """(n,) each: the greatest Jaccard likeness of a call's arguments, or of a text, to the calls before and after it
    in its run; NaN where there is none."""
    table = index.table(found.own)
    shared = (index.table(found.own, index.entry_weight) @ table.T.tocsr()).tocoo()
    size = index.size[found.own]
    row, other = shared.row, shared.col
    alike = shared.data / np.maximum(size[row] + size[other] - shared.data, 1.0)
    is_call = found.call >= 0
    run = Grouping(found.run)
    sides = []
    for side, rivals in ((other < row, run.count_before(is_call)), (other > row, run.count_after(is_call))):
        best = np.where(rivals > 0, 0.0, np.nan)
        chosen = side & is_call[other]
        np.fmax.at(best, row[chosen], alike[chosen])
        sides.append(best)
    return sides[0], sides[1]


def _results(index: Index, found: Actions) -> Values:
    """What the result of a call brought, to the action and to the request; NaN for a text."""
    document, token, own = index.document, index.token, found.own
    user, result = index.first_in(USER), index.first_in(RESULT)
    place = np.maximum(found.result, 0)
    by_user = user[token] < document
    first_met = by_user & (index.previous_in(RESULT) < 0)
    said = index.weight_seen(user, place)
    met = ratio(index.shared(own, found.result), index.size[own])
    known = ratio(index.total(result[token] < document)[own], index.size[own])
    both = np.where(user < len(index.kind), np.maximum(user, result), len(index.kind))
    seen = np.where(found.call >= 0, place, own)
    until = np.minimum(seen + 1, index.run_end[found.run] - 1)
    met_so_far = index.weight_seen(both, until)

    def of_call(value: Floats) -> Floats:
        return np.where(found.call >= 0, value, np.nan)

    return {
        "action.met": of_call(met),
        "action.met_more": of_call(met - known),
        "action.result_new": of_call(ratio(index.total(index.first[token] == document), index.size)[place]),
        "action.result_meets_user": of_call(ratio(index.total(by_user)[place], said)),
        "action.result_meets_user_first": of_call(ratio(index.total(first_met)[place], said)),
        "action.user_met": np.minimum(ratio(met_so_far, index.weight_seen(user, seen)), 1.0),
    }


def _closing(index: Index, found: Actions) -> Values:
    """How the run's closing text stands to its results: NaN where the run has none (yet)."""
    document, token = index.document, index.token
    user, result = index.first_in(USER), index.first_in(RESULT)
    run, is_call = Grouping(found.run), found.call >= 0
    close = np.full(len(index.trajectories), -1)
    ends = (run.after == 0) & ~is_call
    close[found.run[ends]] = found.own[ends]
    text = close[found.run]
    place = np.maximum(text, 0)
    said_by_user = user[token] < document
    own_words = index.total(~said_by_user)

    def of_close(value: Floats) -> Floats:
        return np.where(text >= 0, value[place], np.nan)

    pairs = np.flatnonzero(is_call & (text >= 0))
    entry, pair = index.common(text[pairs], found.result[pairs])
    weight = index.entry_weight[entry] * ~said_by_user[entry]
    first = result[token[entry]] == found.result[pairs][pair]
    held, held_first = (np.full(len(found), np.nan) for _ in range(2))
    size = own_words[text[pairs]]
    held[pairs] = ratio(np.bincount(pair, weight, minlength=len(pairs)), size)
    held_first[pairs] = ratio(np.bincount(pair, weight * first, minlength=len(pairs)), size)
    most = np.full(len(index.trajectories), np.nan)
    np.fmax.at(most, found.run, held)
    unknown = index.first[token] == document
    return {
        "action.in_close": held,
        "action.in_close_first": held_first,
        "action.in_close_most": np.where(np.isnan(held), np.nan, held >= most[found.run]),
        "close.size": of_close(index.size),
        "close.from_nowhere": of_close(ratio(index.total(unknown), index.size)),
        "close.from_result": of_close(ratio(index.total((result[token] < document) & ~said_by_user), own_words)),
        "close.from_user": of_close(ratio(index.total(said_by_user), index.size)),
        "close.meets_user": of_close(
            ratio(index.total(said_by_user), index.weight_seen(user, np.arange(len(index.kind))))
        ),
        "close.from_one": most[found.run],
    }


def running(group: Ints, values: Floats) -> Floats:
    """(n,) the sum of the values until each member, itself included, within its group (n,), whose members adjoin."""
    total = np.cumsum(values)
    begin = np.searchsorted(group, group)
    before: Floats = np.concatenate([[0.0], total])[begin]
    return total - before

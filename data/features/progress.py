"""How a run is going, after each action of the assistant: what a prefix shows, and nothing of what comes later.

The row of an action tells the state once it has closed: its result has been seen, and what the user said to it. A
prefix that ends before the assistant's next message has the same last row as the whole run has there. Shares are of
what was done so far, so that a long run looks like a short one going the same way.
"""

from __future__ import annotations

import numpy as np

from stepsieve.data.features.actions import Actions, actions, likeness, running
from stepsieve.data.features.goal import acts
from stepsieve.data.features.groups import Grouping
from stepsieve.data.features.index import ARGUMENTS, ASSISTANT, NARRATION, RESULT, USER, Floats, Index, Ints
from stepsieve.data.features.registry import Feature, Values, count, flag, ratio, share

FEATURES: tuple[Feature, ...] = (
    share("progress.calls", "share of calls among the actions so far"),
    share("progress.tools", "different tools so far, for each call"),
    flag("progress.last_text", "the last action was a text"),
    count("progress.streak", "actions of the last one's kind, call or text, without one of the other kind between"),
    count("progress.turn_calls", "calls since the user's last message before the action"),
    share("progress.failed", "share of the calls so far that failed"),
    count("progress.failures", "calls that failed so far"),
    flag("progress.last_failed", "the last call failed"),
    share("progress.repeated", "share of the calls so far that repeat an earlier one exactly"),
    share("progress.alike", "mean likeness of calls so far to the most alike before them"),
    share("progress.last_alike", "likeness of the last call to the most alike before it"),
    share("progress.new", "mean share of a result so far that stood nowhere before"),
    share("progress.last_new", "share of the last result that stood nowhere before"),
    share("progress.lately_new", "mean share of the last three results that stood nowhere before"),
    count("progress.acts", "acts so far: changes that had been put to the user and confirmed"),
    flag("progress.last_act", "the last call was an act"),
    count("progress.since_act", "actions since the last act"),
    share("progress.guessed", "share of the argument values so far that nothing before held"),
    share("progress.guessed_codes", "share of the numbers and codes in arguments so far that nothing before held"),
    share("progress.asked_codes", "share of the user's numbers and codes that arguments have taken"),
    share("progress.asked", "share of what the user has said that arguments have taken"),
    share("progress.met", "share of what the user has said that results hold"),
    share("progress.said_again", "share of the user's last message that the user had said before"),
    count("progress.user_size", "weighted number of values in the user's last message"),
    share("progress.user_codes", "numbers and codes among the values of the user's last message"),
    share("progress.told_again", "share of the assistant's last text that it had said before"),
    share("progress.told_results", "share of the assistant's last text that results hold"),
    count("progress.told_size", "weighted number of values in the assistant's last text"),
)


def compute(index: Index) -> Values:
    """The features after every action of the batch; each value has shape (n_actions,)."""
    found = index.once(actions)
    return {**_calls(index, found), **_values(index, found), **_talk(index, found)}


def closed_at(index: Index, found: Actions) -> Ints:
    """(n,) the document before which all has been seen when an action closes: that of the next action's message."""
    following = Grouping(found.run).next
    own = np.where(following >= 0, found.own[np.maximum(following, 0)], index.run_end[found.run])
    # What an assistant says beside a call comes with the call, not before it.
    beside = (following >= 0) & (own > 0) & (index.kind[np.maximum(own - 1, 0)] == NARRATION)
    beside &= index.run[np.maximum(own - 1, 0)] == found.run
    closed: Ints = own - beside
    return closed


def _calls(index: Index, found: Actions) -> Values:
    calls = index.calls
    is_call = found.call >= 0
    run = Grouping(found.run)
    number = run.before + 1
    made = running(found.run, is_call.astype(np.float64))

    def so_far(flags: Floats) -> Floats:
        return running(found.run, np.where(is_call, flags, 0.0))

    def last(values: Floats) -> Floats:
        return _last(found.run, np.where(is_call, values, np.nan))

    def of_call(flags: np.ndarray) -> Floats:
        return np.append(flags, False)[found.call].astype(np.float64)  # the last is that of a text

    failed, is_act = of_call(calls.error), of_call(index.once(acts))
    repeated = of_call(Grouping(calls.key).before > 0)
    fresh = of_call(Grouping(calls.tool).before == 0)
    earlier = np.nan_to_num(likeness(index, found)[0])
    kind_began = np.where(run.before == 0, True, is_call != is_call[run.previous])
    streak = number - _last(found.run, np.where(kind_began, number, np.nan)) + 1
    acted = is_act > 0
    turn = Grouping(np.searchsorted(np.flatnonzero(index.kind == USER), found.own) + found.run)
    return {
        "progress.calls": made / number,
        "progress.tools": ratio(so_far(fresh), made),
        "progress.last_text": ~is_call,
        "progress.streak": streak,
        "progress.turn_calls": turn.count_before(is_call) + is_call,
        "progress.failed": ratio(so_far(failed), made),
        "progress.failures": so_far(failed),
        "progress.last_failed": last(failed),
        "progress.repeated": ratio(so_far(repeated), made),
        "progress.alike": ratio(so_far(earlier), made),
        "progress.last_alike": last(earlier),
        "progress.acts": so_far(is_act),
        "progress.last_act": last(is_act),
        "progress.since_act": number - _last(found.run, np.where(acted, number, np.nan)),
    }


def _values(index: Index, found: Actions) -> Values:
    """Where values came from and what results brought."""
    document, token = index.document, index.token
    is_call, place = found.call >= 0, np.maximum(found.result, 0)
    seen = closed_at(index, found)
    user, asked, result = index.first_in(USER), index.first_in(ARGUMENTS), index.first_in(RESULT)
    codes = index.specific
    unknown = index.first[token] == document

    def summed(condition: np.ndarray) -> Floats:
        return running(found.run, np.where(is_call, index.total(condition)[found.own], 0.0))

    new = np.where(is_call, ratio(index.total(unknown), index.size)[place], np.nan)
    brought = ~np.isnan(new)
    total, number = running(found.run, np.nan_to_num(new)), running(found.run, brought)
    third = _before(found.run, brought, 3)

    def taken(other: Ints, only: np.ndarray | None = None) -> Floats:
        """(n,) share of what the user has said by then whose ``other`` place has come too."""
        both = np.where(user < len(index.kind), np.maximum(user, other), len(index.kind))
        return ratio(_seen(index, both, seen, found.run, only), _seen(index, user, seen, found.run, only))

    return {
        "progress.new": ratio(total, number),
        "progress.last_new": _last(found.run, new),
        "progress.lately_new": ratio(total - np.where(third >= 0, total[third], 0.0), np.minimum(number, 3)),
        "progress.guessed": ratio(summed(unknown), summed(np.ones(len(token)))),
        "progress.guessed_codes": ratio(summed(unknown & codes[token]), summed(codes[token])),
        "progress.asked_codes": taken(asked, codes),
        "progress.asked": taken(asked),
        "progress.met": taken(result),
    }


def _talk(index: Index, found: Actions) -> Values:
    """What the two sides said last."""
    document, token, size = index.document, index.token, index.size
    seen = closed_at(index, found)

    def latest(kind: int) -> Ints:
        rows = np.flatnonzero(index.kind == kind)
        place = np.searchsorted(rows, seen) - 1
        doc = np.append(rows, -1)[place]
        return np.where((place >= 0) & (index.run[doc] == found.run), doc, -1)

    def of(doc: Ints, value: Floats) -> Floats:
        return np.where(doc >= 0, value[np.maximum(doc, 0)], np.nan)

    def again(kind: int) -> Floats:
        return ratio(index.total(index.first_in(kind)[token] < document), size)

    asked, told = latest(USER), latest(ASSISTANT)
    return {
        "progress.said_again": of(asked, again(USER)),
        "progress.user_size": of(asked, size),
        "progress.user_codes": of(asked, ratio(index.total(index.specific[token]), size)),
        "progress.told_again": of(told, again(ASSISTANT)),
        "progress.told_results": of(told, ratio(index.total(index.first_in(RESULT)[token] < document), size)),
        "progress.told_size": of(told, size),
    }


def _seen(index: Index, first: Ints, document: Ints, run: Ints, only: np.ndarray | None) -> Floats:
    """(n,) weight of the run's tokens whose place ``first`` (n_tokens,) comes before a document, or the run's end."""
    counted = index.weight if only is None else index.weight * only
    total = np.concatenate([[0.0], np.cumsum(np.bincount(first, counted, minlength=len(index.kind) + 1))])
    begin = np.concatenate([[0], index.run_end])[run]
    seen: Floats = total[document] - total[begin]
    return seen


def _last(group: Ints, values: Floats) -> Floats:
    """(n,) the last value that is no NaN until each member, itself included, in its group; NaN where there is none."""
    place = np.where(np.isnan(values), -1, np.arange(len(values)))
    latest = np.maximum.accumulate(place) if len(place) else place
    inside = (latest >= 0) & (group[latest] == group)
    return np.where(inside, np.append(values, np.nan)[np.where(inside, latest, len(values))], np.nan)


def _before(group: Ints, flags: np.ndarray, number: int) -> Ints:
    """(n,) the member of the group at which the last ``number`` flagged ones had not begun; -1 where there is none."""
    flagged = np.flatnonzero(flags)
    place = np.searchsorted(flagged, np.arange(len(group)), side="right") - 1 - number
    found = np.append(flagged, -1)[np.where(place >= 0, place, len(flagged))]
    return np.where((found >= 0) & (group[found] == group), found, -1)

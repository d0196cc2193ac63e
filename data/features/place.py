"""Where a step stands: in its turn, in its batch, before or after the user's own calls. No absolute position."""

from __future__ import annotations

import numpy as np

from stepsieve.data.features.groups import Grouping
from stepsieve.data.features.index import Index
from stepsieve.data.features.registry import Feature, Values, count, flag

FEATURES: tuple[Feature, ...] = (
    count("place.turn_before", "calls of its side before it in its turn"),
    count("place.turn_after", "calls of its side after it in its turn"),
    count("place.batch", "calls in its message"),
    flag("place.answers_user", "the message before the call is the user's"),
    flag("place.last_call", "no assistant call follows"),
    flag("place.user_calls_next", "the next call is the user's own"),
    flag("place.user_calls_before", "the user's side has made a call before it"),
    flag("place.user_calls_after", "the user's side makes a call after it"),
)


def compute(index: Index) -> Values:
    """The features of every call of the batch; each value has shape (n_calls,)."""
    calls = index.calls
    turn = Grouping(np.where(calls.assistant, calls.turn, -1))
    run = Grouping(calls.run)
    return {
        "place.turn_before": turn.before,
        "place.turn_after": turn.after,
        "place.batch": calls.batch,
        "place.answers_user": calls.after_user,
        "place.last_call": ~run.any_after(calls.assistant),
        "place.user_calls_next": (run.next >= 0) & ~calls.assistant[run.next],
        "place.user_calls_before": run.any_before(~calls.assistant),
        "place.user_calls_after": run.any_after(~calls.assistant),
    }

"""Failures: of which kind, and whether the tool works before and later."""

from __future__ import annotations

import re

import numpy as np

from stepsieve.data.features.groups import Grouping
from stepsieve.data.features.index import Index
from stepsieve.data.features.registry import Feature, Values, count, flag, ratio, share

FEATURES: tuple[Feature, ...] = (
    flag("error.failed", "the result reports a failure"),
    flag("error.transient", "the failure reads like a passing fault: time-out, network, load"),
    share("error.names_arguments", "share of the argument values that the failure repeats"),
    count("error.before", "failed calls of its side before it"),
    flag("error.previous_failed", "the call just before on its side failed"),
    flag("error.next_failed", "the call just after on its side failed"),
    flag("error.tool_succeeds_after", "the same tool succeeds later"),
    flag("error.tool_succeeds_before", "the same tool had succeeded before"),
)

_TRANSIENT = re.compile(
    r"time.?out|timed out|connection|network|server|unavailable|temporar|try again|retry|rate.?limit|too many requests|"
    r"busy|overload|throttl|gateway|reset by peer|refused|unreachable|responding|internal error|\b50[0234]\b|\b429\b",
    re.IGNORECASE,
)


def is_transient(text: str) -> bool:
    """Whether a failure reads like a passing fault of the system rather than a fault of the call."""
    return _TRANSIENT.search(text[:500]) is not None


def compute(index: Index) -> Values:
    """The features of every call of the batch; each value has shape (n_calls,)."""
    calls = index.calls
    tool, side = Grouping(calls.tool), Grouping(2 * calls.run + calls.assistant)
    transient = np.zeros(len(calls), dtype=bool)
    for row in np.flatnonzero(calls.error):
        transient[row] = is_transient(calls.interactions[row].result)
    named = ratio(index.shared(calls.arguments, calls.output), index.size[calls.arguments])
    return {
        "error.failed": calls.error,
        "error.transient": transient,
        "error.names_arguments": np.where(calls.error, named, np.nan),
        "error.before": side.count_before(calls.error),
        "error.previous_failed": (side.previous >= 0) & calls.error[side.previous],
        "error.next_failed": (side.next >= 0) & calls.error[side.next],
        "error.tool_succeeds_after": tool.any_after(~calls.error),
        "error.tool_succeeds_before": tool.any_before(~calls.error),
    }

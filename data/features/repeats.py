"""Repeats of a step: the same call, the same tool, the same answer, before and after it."""

from __future__ import annotations

import numpy as np

from stepsieve.data.features.groups import Grouping
from stepsieve.data.features.index import Bools, Index, Ints
from stepsieve.data.features.registry import Feature, Values, count, flag, share

FEATURES: tuple[Feature, ...] = (
    count("repeat.same_call_before", "earlier calls with the same tool and arguments"),
    flag("repeat.same_answer_before", "the last identical call had the identical result"),
    flag("repeat.failed_before", "the last identical call failed"),
    count("repeat.same_call_after", "later calls with the same tool and arguments"),
    flag("repeat.succeeds_after", "the same call succeeds later"),
    count("repeat.gap_after", "calls from it to the next identical one"),
    count("repeat.gap_before", "calls from the last identical one to it"),
    count("repeat.same_tool_before", "earlier calls of the same tool"),
    count("repeat.same_tool_after", "later calls of the same tool"),
    count("repeat.same_tool_turn_before", "earlier calls of the same tool in this turn"),
    count("repeat.same_tool_turn_after", "later calls of the same tool in this turn"),
    flag("repeat.answer_seen", "an earlier call of any tool had the identical, not empty, result"),
    flag("repeat.previous_same_tool", "the call just before on its side is of the same tool"),
    flag("repeat.next_same_tool", "the call just after on its side is of the same tool"),
    share("repeat.arguments_like_previous", "share of its argument values that the last call of the tool had too"),
    share("repeat.arguments_like_next", "share of its argument values that the next call of the tool has too"),
)


def compute(index: Index) -> Values:
    """The features of every call of the batch; each value has shape (n_calls,)."""
    calls = index.calls
    identical, tool = Grouping(calls.key), Grouping(calls.tool)
    answer, side = Grouping(calls.answer), Grouping(2 * calls.run + calls.assistant)
    place = np.arange(len(calls))
    # Within a turn each tool is one group; turns are numbered throughout the batch.
    in_turn = Grouping(np.unique(np.stack([calls.turn, calls.tool], 1), axis=0, return_inverse=True)[1].reshape(-1))
    last, following = identical.previous, identical.next
    return {
        "repeat.same_call_before": identical.before,
        "repeat.same_answer_before": (last >= 0) & (calls.answer[last] == calls.answer),
        "repeat.failed_before": np.where(last >= 0, calls.error[last], np.nan),
        "repeat.same_call_after": identical.after,
        "repeat.succeeds_after": identical.any_after(~calls.error),
        "repeat.gap_after": np.where(following >= 0, following - place, np.nan),
        "repeat.gap_before": np.where(last >= 0, place - last, np.nan),
        "repeat.same_tool_before": tool.before,
        "repeat.same_tool_after": tool.after,
        "repeat.same_tool_turn_before": in_turn.before,
        "repeat.same_tool_turn_after": in_turn.after,
        "repeat.answer_seen": (answer.before > 0) & (index.size[calls.output] > 0),
        "repeat.previous_same_tool": _same_tool(calls.tool, side.previous),
        "repeat.next_same_tool": _same_tool(calls.tool, side.next),
        "repeat.arguments_like_previous": _alike(index, tool.previous),
        "repeat.arguments_like_next": _alike(index, tool.next),
    }


def _same_tool(tool: Ints, other: Ints) -> Bools:
    same: Bools = (other >= 0) & (tool[other] == tool)
    return same


def _alike(index: Index, other: Ints) -> np.ndarray:
    """Share of each call's argument values that another call has too; NaN where there is no other, or no argument."""
    arguments = index.calls.arguments
    size = index.size[arguments]
    both = index.shared(arguments, np.where(other >= 0, arguments[other], -1))
    return np.where((other >= 0) & (size > 0), both / np.maximum(size, 1.0), np.nan)

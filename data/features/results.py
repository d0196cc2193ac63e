"""The result of a step: how much of it was known, and what became of what was new."""

from __future__ import annotations

import numpy as np

from stepsieve.data.features.groups import Grouping
from stepsieve.data.features.index import ARGUMENTS, ASSISTANT, RESULT, USER, Index, Ints, Part
from stepsieve.data.features.registry import Feature, Values, count, flag, ratio, share

FEATURES: tuple[Feature, ...] = (
    count("result.size", "weighted number of values in the result"),
    flag("result.empty", "the result holds no value"),
    share("result.known", "share of the result that stood somewhere before"),
    share("result.known_from_one", "largest share of the result that one earlier result holds"),
    share("result.known_from_turn", "share of the result whose values came up in earlier results of this turn"),
    share("result.known_from_results", "share of the result that earlier results hold together"),
    count("result.new", "weighted number of values that the result brings first"),
    share("result.new_in_arguments", "share of its new values used in arguments of later calls"),
    share("result.new_in_text", "share of its new values in later texts of the assistant"),
    share("result.new_in_next_text", "share of its new values in the next text of the assistant"),
    share("result.new_in_user", "share of its new values that the user says later"),
    share("result.new_in_results", "share of its new values that later results hold"),
    share("result.in_next_text", "share of the result in the next text of the assistant"),
    share("result.in_arguments", "share of the result in arguments of later calls"),
    share("result.codes_in_next_text", "share of its new numbers and codes in the next text of the assistant"),
    share("result.meets_user", "share of what the user had said that the result holds"),
    share("result.meets_user_codes", "share of the numbers and codes the user had said that the result holds"),
    count("result.first_use", "calls from it to the first that takes a new value of it as an argument"),
)


def compute(index: Index) -> Values:
    """The features of every call of the batch; each value has shape (n_calls,)."""
    calls = index.calls
    own = index.part(calls.output)
    size, document, token = own.size, own.document, own.token
    new = index.first[token] == document
    new_size = own.total(new)
    codes = index.specific[token]
    in_arguments = index.last_in(ARGUMENTS)[token] > document
    in_next_text = index.stands_in_next(ASSISTANT)[own.entry]
    first_user = index.first_in(USER)
    said = first_user[token] < document
    before = index.previous_in(RESULT)[own.entry]
    turn = np.full(len(index.kind), -1)
    turn[calls.output] = calls.turn

    # An identical call that got an identical answer knew all of it, an empty answer too.
    identical = Grouping(calls.key).previous
    seen = (identical >= 0) & (calls.answer[identical] == calls.answer)

    def part(condition: np.ndarray) -> np.ndarray:
        return ratio(own.total(condition), size)

    def part_of_new(condition: np.ndarray) -> np.ndarray:
        return ratio(own.total(new & condition), new_size)

    return {
        "result.size": size,
        "result.empty": size == 0,
        "result.known": np.where(seen, 1.0, ratio(size - new_size, size)),
        "result.known_from_one": np.where(seen, 1.0, ratio(_largest_overlap(index), size)),
        "result.known_from_turn": part((before >= 0) & (turn[before] == turn[document])),
        "result.known_from_results": np.where(seen, 1.0, part(before >= 0)),
        "result.new": new_size,
        "result.new_in_arguments": part_of_new(in_arguments),
        "result.new_in_text": part_of_new(index.last_in(ASSISTANT)[token] > document),
        "result.new_in_next_text": part_of_new(in_next_text),
        "result.new_in_user": part_of_new(index.last_in(USER)[token] > document),
        "result.new_in_results": part_of_new(index.last_in(RESULT)[token] > document),
        "result.in_next_text": part(in_next_text),
        "result.in_arguments": part(in_arguments),
        "result.codes_in_next_text": ratio(own.total(new & codes & in_next_text), own.total(new & codes)),
        "result.meets_user": ratio(own.total(said), index.weight_seen(first_user, calls.output)),
        "result.meets_user_codes": ratio(
            own.total(said & codes), index.weight_seen(first_user, calls.output, index.specific)
        ),
        "result.first_use": _first_use(index, own, new),
    }


def _largest_overlap(index: Index) -> np.ndarray:
    """(n_calls,) weighted number of values that each result shares with the earlier one it shares most with."""
    table = index.result_overlap.tocoo()
    largest = np.zeros(len(index.calls))
    earlier = table.col < table.row
    np.maximum.at(largest, table.row[earlier], table.data[earlier])
    return largest


def _first_use(index: Index, own: Part, new: np.ndarray) -> np.ndarray:
    """(n_calls,) calls until one takes a new value as an argument; NaN where none does."""
    calls: Ints = np.full(len(index.kind), -1)
    calls[index.calls.arguments] = np.arange(len(index.calls))
    use = index.next_in(ARGUMENTS)[own.entry]
    rows = np.flatnonzero(new & (use >= 0))
    nearest = np.full(len(index.kind), len(index.calls))
    np.minimum.at(nearest, own.document[rows], calls[use[rows]])
    found = nearest[index.calls.output]
    return np.where(found < len(index.calls), found - np.arange(len(index.calls)), np.nan)

"""Arguments of a step: who had said them, and whether they are used again."""

from __future__ import annotations

import numpy as np

from stepsieve.data.features.index import ARGUMENTS, ASSISTANT, NARRATION, RESULT, USER, Index
from stepsieve.data.features.registry import Feature, Values, count, flag, ratio, share

FEATURES: tuple[Feature, ...] = (
    count("arguments.size", "weighted number of values in the arguments"),
    flag("arguments.none", "the call has no arguments"),
    share("arguments.from_user", "share of the argument values that the user had said"),
    share("arguments.from_result", "share of the argument values found in earlier results"),
    share("arguments.from_assistant", "share found only in the assistant's own earlier texts and calls"),
    share("arguments.from_nowhere", "share of the argument values that nothing before held"),
    share("arguments.codes_from_nowhere", "share of the numbers and codes in the arguments that nothing before held"),
    share("arguments.proposed", "share that stood in the assistant's last text"),
    share("arguments.in_last_user", "share that stood in the user's last message"),
    share("arguments.in_last_result", "share that stood in the result just before"),
    share("arguments.words", "share of words, against numbers and codes, in the arguments"),
    share("arguments.used_later", "share of the argument values that stand in arguments of later calls"),
    share("arguments.said_later", "share of the argument values in later texts of the assistant"),
    share("arguments.in_user_later", "share of the argument values in later texts of the user"),
)


def compute(index: Index) -> Values:
    """The features of every call of the batch; each value has shape (n_calls,)."""
    own = index.part(index.calls.arguments)
    size, document, token, entry = own.size, own.document, own.token, own.entry
    by_user = index.first_in(USER)[token] < document
    by_result = index.first_in(RESULT)[token] < document
    by_assistant = index.first_in(ASSISTANT, NARRATION, ARGUMENTS)[token] < document
    unknown = ~(by_user | by_result | by_assistant)
    codes = index.specific[token]

    def part(condition: np.ndarray) -> np.ndarray:
        return ratio(own.total(condition), size)

    return {
        "arguments.size": size,
        "arguments.none": size == 0,
        "arguments.from_user": part(by_user),
        "arguments.from_result": part(by_result),
        "arguments.from_assistant": part(by_assistant & ~by_user & ~by_result),
        "arguments.from_nowhere": part(unknown),
        "arguments.codes_from_nowhere": ratio(own.total(unknown & codes), own.total(codes)),
        "arguments.proposed": part(index.stands_in_previous(ASSISTANT)[entry]),
        "arguments.in_last_user": part(index.stands_in_previous(USER)[entry]),
        "arguments.in_last_result": part(index.stands_in_previous(RESULT)[entry]),
        "arguments.words": part(~codes),
        "arguments.used_later": part(index.last_in(ARGUMENTS)[token] > document),
        "arguments.said_later": part(index.last_in(ASSISTANT)[token] > document),
        "arguments.in_user_later": part(index.last_in(USER)[token] > document),
    }

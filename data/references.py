"""Step and evidence references: parse, normalise, validate, enumerate.

A reference is a tuple of message indices. ``(c, r)`` names one interaction by its call and its result, ``(i,)`` one
message, ``(-1,)`` a fixed rule of the policy or the tools that no message states, and ``(c1, r1, c2, r2, ...)``
several interactions whose results are needed together. A few released labels hold two result indices of one parallel
batch; they are legal and kept as they stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import orjson

from stepsieve.data.errors import DataError
from stepsieve.data.trajectory import Reference, Trajectory

POLICY: Reference = (-1,)
"""The reference to a fixed policy or tool rule."""

_BRACKETED = re.compile(r"\s*\[[\s\d,-]*\]\s*")


def parse(value: object) -> Reference:
    """A reference from a list of integers, a tuple, or text such as ``"[4, 5]"``.

    Raises:
        DataError: anything else: an empty list, a number that is not an integer, an odd number of indices above one,
            a negative index other than ``[-1]`` alone.
    """
    if isinstance(value, str):
        if not _BRACKETED.fullmatch(value):
            raise DataError(f"expected message indices in brackets such as [4, 5], found {value[:60]!r}")
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise DataError(f"expected message indices in brackets such as [4, 5], found {str(value)[:60]!r}") from None
    if not isinstance(value, (list, tuple)) or not value:
        raise DataError(f"expected a list of message indices such as [4, 5], [3] or [-1], found {_short(value)}")
    for index in value:
        if isinstance(index, bool) or not isinstance(index, int):
            raise DataError(f"expected integer message indices, found {_short(value)}")
    if tuple(value) == POLICY:
        return POLICY
    if min(value) < 0:
        raise DataError(f"expected message indices from 0, or [-1] alone, found {_short(value)}")
    if len(value) > 1 and len(value) % 2:
        raise DataError(f"expected one index, or pairs [call, result], found {_short(value)}")
    return tuple(value)


def pairs(reference: Reference) -> tuple[tuple[int, int], ...]:
    """The interactions that a reference names: ``((c1, r1), (c2, r2), ...)``; empty for a message or ``[-1]``."""
    if len(reference) < 2:
        return ()
    return tuple(zip(reference[::2], reference[1::2], strict=True))


def normalise(reference: Reference) -> Reference:
    """The same reference with its interactions in order and each once: what two references are compared by."""
    if len(reference) <= 2:
        return reference
    return tuple(index for pair in sorted(set(pairs(reference))) for index in pair)


def validate_step(reference: Reference, trajectory: Trajectory) -> None:
    """Raises DataError unless the reference is one answered assistant interaction of the trajectory."""
    interaction = trajectory.by_reference.get(reference)
    if interaction is None or interaction.call.requestor != "assistant":
        raise DataError(
            f"expected [call, result] of an answered assistant call in messages 0 to {len(trajectory.messages) - 1}, "
            f"found {list(reference)}",
            trajectory=trajectory.id,
        )


def validate_evidence(reference: Reference, trajectory: Trajectory) -> None:
    """Raises DataError unless every index exists and every pair is an interaction, or two results of one batch."""
    if reference == POLICY:
        return
    last = len(trajectory.messages) - 1
    if max(reference) > last:
        raise DataError(f"expected message indices from 0 to {last}, found {list(reference)}", trajectory=trajectory.id)
    for pair in pairs(reference):
        if pair not in trajectory.by_reference and not _two_results(pair, trajectory):
            raise DataError(
                f"expected pairs [call, result] of one interaction each, found {list(reference)}",
                trajectory=trajectory.id,
            )


def candidates(trajectory: Trajectory) -> Iterator[Reference]:
    """All single references that evidence can be: each answered interaction, each message with text, the policy."""
    yield from trajectory.by_reference
    for index, message in enumerate(trajectory.messages):
        if message.role in ("user", "assistant") and message.content:
            yield (index,)
    yield POLICY


def _two_results(pair: tuple[int, int], trajectory: Trajectory) -> bool:
    return pair[0] != pair[1] and all(trajectory.messages[index].role == "tool" for index in pair)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

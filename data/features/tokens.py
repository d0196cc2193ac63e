"""Tokens of texts: cut, told apart and counted for a whole batch at once.

A token is never built as a string of its own. The texts of a batch become one array of bytes; tokens are spans in it,
each with a 64-bit hash, and equal hashes get one number. That is several times faster than lists and sets of strings.

Dates, times, decimals, phone numbers, e-mail addresses and ids stay whole. Text that is mostly ASCII loses its other
characters, the same way everywhere; text in other scripts is cut into single characters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_Bytes = npt.NDArray[np.uint8]
_Hashes = npt.NDArray[np.uint64]

_KEY = 1
"""The byte that ends a JSON key, so that it never equals a value or a word."""
_SPACE, _NEWLINE, _QUOTE, _DOT, _COLON = b' \n".:'
_BETWEEN = b","
"""Stands between two texts: it ends a token, and completes none of the pairs of characters that ``_cut`` looks for."""

_CHARACTERS = re.compile(r"\w")
_WINDOW = 8
_LONG = 64
"""Tokens of more bytes than this are hashed one by one."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(_WINDOW + 1)], dtype=np.uint64)
"""For each size the bits of a window's first bytes."""


def _byte_map() -> bytes:
    """Letters to lower case; digits, ``_-.:@`` and bytes of other scripts stay; the rest becomes a space."""
    stay = frozenset(b"_-.:@") | {_KEY} | frozenset(range(128, 256))
    return bytes(b if b in stay else ord(chr(b).lower()) if chr(b).isalnum() else _SPACE for b in range(256))


_MAP = _byte_map()


@dataclass(frozen=True)
class Tokens:
    """Which tokens stand in which text.

    Attributes:
        starts: (n_texts + 1,) where each text begins in ``token``.
        token: (n_entries,) the distinct tokens of the texts, one text after another, ascending in each.
        specific: (n_tokens,) the token holds a digit and is no JSON key: a number, a code, a date or an id.
        key: (n_tokens,) the token is a JSON key.
        spelling: (n_tokens,) the token itself, lower case; a JSON key ends in the byte 1.
    """

    starts: Ints
    token: Ints
    specific: Bools
    key: Bools
    _bytes: bytes
    _spans: tuple[Ints, Ints]

    @property
    def spelling(self) -> list[bytes]:
        begin, end = self._spans
        return [self._bytes[a:b] for a, b in zip(begin.tolist(), end.tolist(), strict=True)]


def tokenize(texts: Sequence[str]) -> Tokens:
    """The distinct tokens of each text, numbered over all texts."""
    raw = [_encode(text) for text in texts]
    lengths = np.fromiter(map(len, raw), dtype=np.int64, count=len(raw))
    cut = _cut(_BETWEEN.join(raw))
    code: _Bytes = np.frombuffer(cut, dtype=np.uint8)
    inside = np.zeros(len(code) + 2, dtype=bool)
    np.not_equal(code, _SPACE, out=inside[1:-1])
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    begin, end = edges[::2], edges[1::2]

    same = _equals(_hashes(cut, code, begin, end))
    chosen = np.zeros(len(begin), dtype=bool)
    chosen[same] = True
    number = (np.cumsum(chosen) - 1)[same]
    spans = begin[chosen], end[chosen]
    digits = np.concatenate([[0], np.cumsum((code >= ord("0")) & (code <= ord("9")), dtype=np.int32)])
    key = code[spans[1] - 1] == _KEY

    count = max(1, len(key))
    ends = np.searchsorted(begin, np.cumsum(lengths + len(_BETWEEN)))
    text = np.repeat(np.arange(len(raw)), np.diff(ends, prepend=0))
    entries = np.sort(text * count + number)
    entries = entries[np.diff(entries, prepend=-1) > 0]
    starts = np.searchsorted(entries, np.arange(len(raw) + 1) * count)
    return Tokens(starts, entries % count, (digits[spans[1]] > digits[spans[0]]) & ~key, key, cut, spans)


def leaves(value: Any) -> list[str]:
    """The scalar values in a JSON value as text, without its keys."""
    found: list[str] = []
    _collect(value, found)
    return found


def _collect(value: Any, found: list[str]) -> None:
    if isinstance(value, str):
        found.append(value)
    elif isinstance(value, Mapping):
        for item in value.values():
            _collect(item, found)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, found)
    else:
        found.append(str(value))


def _encode(text: str) -> bytes:
    if text.isascii():
        return text.encode()
    if len(text.encode("utf-8", "replace")) <= 1.25 * len(text):
        return text.encode("ascii", "replace")
    return " ".join(_CHARACTERS.findall(text.lower())).encode("utf-8", "replace")


def _cut(raw: bytes) -> bytes:
    """The bytes in lower case, with a space for each that belongs to no token.

    A dot or colon at the end of a word is no part of it; the quote that closes a JSON key becomes the key's mark.
    """
    code = np.append(np.frombuffer(raw, dtype=np.uint8), np.uint8(_BETWEEN[0]))
    closing = _followed(code, _QUOTE, _COLON)
    code[closing], code[closing + 1] = _KEY, _SPACE
    code[_followed(code, _DOT, _SPACE, _NEWLINE)] = _SPACE
    code[_followed(code, _COLON, _SPACE)] = _SPACE
    return code[:-1].tobytes().translate(_MAP)


def _followed(code: _Bytes, character: int, *following: int) -> Ints:
    """Where a character is followed by one of others."""
    places = np.flatnonzero(code[:-1] == character)
    after = code[places + 1]
    return places[np.logical_or.reduce([after == character for character in following])]


def _hashes(cut: bytes, code: _Bytes, begin: Ints, end: Ints) -> _Hashes:
    """(n,) a hash of each span: its bytes, taken eight at a time as one number and mixed."""
    padded = np.append(code, np.zeros(_WINDOW, dtype=np.uint8))
    windows: _Hashes = np.ndarray(len(code) + 1, dtype="<u8", buffer=padded, strides=(1,))
    size = end - begin
    hashes: _Hashes = (windows[begin] & _MASKS[np.minimum(size, _WINDOW)]) * _FACTOR
    rows = np.flatnonzero((size > _WINDOW) & (size <= _LONG))
    at, left = begin[rows], size[rows]
    while len(rows):
        at, left = at + _WINDOW, left - _WINDOW
        hashes[rows] = (hashes[rows] ^ windows[at] & _MASKS[np.minimum(left, _WINDOW)]) * _FACTOR
        longer = left > _WINDOW
        rows, at, left = rows[longer], at[longer], left[longer]
    for row in np.flatnonzero(size > _LONG):
        hashes[row] = hash(cut[begin[row] : end[row]]) & 0xFFFFFFFFFFFFFFFF
    return hashes


def _equals(hashes: _Hashes) -> Ints:
    """(n,) for each hash the position of one equal to it, the same for all that are equal.

    A hash table filled by all at once: who finds another hash in its slot tries again in the next round.
    """
    found = np.empty(len(hashes), dtype=np.int64)
    waiting = np.arange(len(hashes))
    bits = max(4, len(hashes).bit_length())
    slots = np.zeros(1 << bits, dtype=np.int64)
    factor = int(_FACTOR)
    while len(waiting):
        own = hashes[waiting]
        slot = ((own * np.uint64(factor)) >> np.uint64(64 - bits)).astype(np.int64)
        slots[slot] = waiting
        owner = slots[slot]
        settled = hashes[owner] == own
        found[waiting[settled]] = owner[settled]
        waiting = waiting[~settled]
        factor = (factor * factor + 2) % 2**64
    return found

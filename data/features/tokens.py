"""Tokens of a text, and the vocabulary of a batch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

_KEY = 1
"""The byte that ends a JSON key, so that it never equals a value or a word."""


def _byte_map() -> bytes:
    """Letters to lower case; digits and ``_-.:@`` stay; every other ASCII character becomes a space."""
    stay = frozenset(b"_-.:@") | {_KEY}
    return bytes(ord(chr(b).lower()) if b > 127 or chr(b).isalnum() else b if b in stay else 32 for b in range(256))


_MAP = _byte_map()
_CHARACTERS = re.compile(r"\w")
_DIGITS = frozenset(b"0123456789")


def tokenize(text: str) -> list[bytes]:
    """Tokens of a text, lower case, as bytes; a JSON key ends in the byte 1.

    Dates, times, decimals, phone numbers, e-mail addresses and ids stay whole. Text that is mostly ASCII loses its other
    characters, the same way everywhere; text in other scripts is cut into single characters.
    """
    if text.isascii():
        raw = text.encode()
    elif len(text.encode("utf-8", "replace")) > 1.25 * len(text):
        return [character.encode("utf-8", "replace") for character in _CHARACTERS.findall(text.lower())]
    else:
        raw = text.encode("ascii", "replace")
    raw = raw.replace(b'":', b"\x01 ").replace(b". ", b" ").replace(b".\n", b" ").replace(b": ", b" ")
    return raw.translate(_MAP).split()


def leaves(value: Any) -> list[str]:
    """The scalar values in a JSON value as text, without its keys."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    if isinstance(value, Mapping):
        return [leaf for item in value.values() for leaf in leaves(item)]
    return [str(value)]


class Vocabulary(dict[bytes, int]):
    """Token -> id, given out on first sight. ``specific`` and ``key`` say what kind of token each id is."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds = bytearray()
        self._texts: dict[tuple[str, bool], npt.NDArray[np.int32]] = {}

    def __missing__(self, token: bytes) -> int:
        number = self[token] = len(self._kinds)
        key = token[-1] == _KEY
        self._kinds.append(2 if key else 0 if token.isalpha() or _DIGITS.isdisjoint(token) else 1)
        return number

    def ids(self, text: str, codes_only: bool = False) -> npt.NDArray[np.int32]:
        """The ids of the distinct tokens of a text; with ``codes_only`` those of numbers, codes, dates and ids alone."""
        found = self._texts.get((text, codes_only))
        if found is None:
            tokens = set(tokenize(text))
            found = np.fromiter(map(self.__getitem__, tokens), dtype=np.int32, count=len(tokens))
            if codes_only:
                kinds = self._kinds
                found = np.array([token for token in found.tolist() if kinds[token] == 1], dtype=np.int32)
            self._texts[text, codes_only] = found
        return found

    @property
    def specific(self) -> npt.NDArray[np.bool_]:
        """(n,) the token holds a digit and is no JSON key: a number, a code, a date or an id."""
        return np.frombuffer(bytes(self._kinds), dtype=np.uint8) == 1

    @property
    def key(self) -> npt.NDArray[np.bool_]:
        """(n,) the token is a JSON key."""
        return np.frombuffer(bytes(self._kinds), dtype=np.uint8) == 2

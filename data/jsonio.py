"""JSON in and out: bytes to values with one kind of error, records back without loss, files replaced atomically."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from stepsieve.data.errors import DataError

ABSENT = ...
"""In an ``extra`` mapping: the file did not have this key, where Stepsieve would write one."""

JSON_NAMES = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
_BOM = b"\xef\xbb\xbf"


def loads(data: bytes) -> Any:
    """The JSON value that the bytes hold. An integer beyond 64 bits becomes a float.

    Raises:
        DataError: not JSON; also NaN, infinities, lone surrogates and nesting deeper than 1,024 levels.
    """
    try:
        return orjson.loads(data.removeprefix(_BOM))
    except orjson.JSONDecodeError as error:
        raise DataError(f"expected JSON in UTF-8, found an error: {error}") from None


def dumps(value: object, option: int = 0) -> bytes:
    """The value as one line of JSON, or as the ``orjson.OPT_*`` flags say.

    Raises:
        DataError: it holds what JSON can't: lone surrogates, integers beyond 64 bits, nesting deeper than 254 levels.
    """
    try:
        return orjson.dumps(value, option=option | orjson.OPT_APPEND_NEWLINE)
    except TypeError as error:
        raise DataError(f"expected a value that JSON can hold, found an error: {error}") from None


def found(value: object) -> str:
    """What a JSON value is, for the end of an error: "a list", "null", "text 'abc'"."""
    if value is None:
        return "null"
    if isinstance(value, (str, bool, int, float)):
        text = repr(value)
        return text if len(text) <= 60 else text[:57] + "..."
    return JSON_NAMES.get(type(value), type(value).__name__)


def expect(value: object, kind: type | tuple[type, ...], what: str, field: str) -> Any:
    """The value, if it is of that kind; else DataError: ``field: expected <what>, found ...``."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise DataError(f"expected {what}, found {found(value)}", field=field)
    return value


def leftover(record: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """What a record held beyond what Stepsieve would write for it: :func:`restore` puts it back."""
    if record == written:
        return {}
    extra = {key: value for key, value in record.items() if key not in written or written[key] != value}
    extra.update((key, ABSENT) for key in written if key not in record)
    return extra


def restore(written: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """The record as it was read, from what Stepsieve writes for it and its :func:`leftover`."""
    return {key: value for key, value in {**written, **extra}.items() if value is not ABSENT}


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Write each file whole or not at all: all go to temporary files beside their place first, then are renamed."""
    waiting = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in contents}
    try:
        for path, data in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            waiting[path].write_bytes(data)
        for path, temporary in waiting.items():
            os.replace(temporary, path)
    finally:
        for temporary in waiting.values():
            temporary.unlink(missing_ok=True)

"""The JSON documents of a file, one at a time: JSON or JSON Lines, plain, gzip or zstd, a path or standard input."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, cast

from stepsieve.data.errors import DataError, require
from stepsieve.data.jsonio import loads

MAX_DOCUMENT = 1 << 30
"""Limit on one JSON document that is not a line of JSON Lines, in bytes after decompression: it is held in memory."""

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@contextmanager
def opened(path: Path | None) -> Iterator[BinaryIO]:
    """The bytes of a file (None: standard input), decompressed where they begin as gzip or zstd do.

    Raises:
        DataError: no such file, no permission, damaged or cut compressed data, zstd without the ``zstandard`` package.
    """
    try:
        with nullcontext(sys.stdin.buffer) if path is None else path.open("rb") as raw:
            yield _inflated(cast(BinaryIO, raw))
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"expected a file that can be read, found an error: {reason}") from None


def _inflated(raw: BinaryIO) -> BinaryIO:
    buffered = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, raw))
    head = buffered.peek(4)
    if head.startswith(_GZIP):
        return cast(BinaryIO, gzip.GzipFile(fileobj=buffered))
    if not head.startswith(_ZSTD):
        return buffered
    zstandard = require("zstandard", "zstd")
    return cast(BinaryIO, io.BufferedReader(_Zstd(zstandard, buffered)))


class _Zstd(io.RawIOBase):
    """A zstd stream whose errors are OSErrors, as those of gzip are."""

    def __init__(self, zstandard: Any, source: BinaryIO):
        self.source = source
        self._reader = zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True)
        self._error = zstandard.ZstdError

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return int(self._reader.readinto(buffer))
        except self._error as error:
            raise OSError(str(error)) from None


def documents(file: BinaryIO, max_line: int) -> Iterator[tuple[int, object]]:
    """The JSON values of a file with their line numbers: one per line of JSON Lines, or the whole file with line 0.

    A line that is not JSON, or longer than ``max_line`` bytes, comes as the DataError that says so, and the next line
    follows. At most one line of JSON Lines is in memory.

    Raises:
        DataError: an empty file.
    """
    return ((number, parsed(document)) for number, document in raw_documents(file, max_line))


def raw_documents(file: BinaryIO, max_line: int) -> Iterator[tuple[int, bytes | DataError]]:
    """As :func:`documents`, but not parsed: :func:`parsed` does that, in this process or another.

    In place of a line longer than ``max_line`` bytes comes the DataError that says so, and the next line follows. At
    most one line of JSON Lines is in memory.

    Raises:
        DataError: an empty file.
    """
    head = _lines(file, MAX_DOCUMENT)
    first = next(head, None)
    if first is None:
        raise DataError("expected JSON, found an empty file")
    second = next(head, None)
    if second is None:
        yield 0, first[1]
        return
    if isinstance(parsed(first[1]), DataError) and not _is_damaged_line(first[1], second[1]):
        yield 0, _whole(file, first[1], second[1])
        return
    yield first
    yield second
    start = second[0]
    del first, second
    yield from _lines(file, max_line, start)


def parsed(document: object) -> object:
    """The JSON value of a document; of one that is no JSON the DataError that says so. What is no bytes stays."""
    if not isinstance(document, bytes):
        return document
    try:
        return loads(document)
    except DataError as error:
        return error


def consumed(file: BinaryIO) -> int:
    """How many bytes of the file behind an :func:`opened` one have been read: of a compressed file, compressed ones."""
    if isinstance(file, gzip.GzipFile):
        return int(file.fileobj.tell()) if file.fileobj else 0
    inner = getattr(file, "raw", None)
    try:
        return inner.source.tell() if isinstance(inner, _Zstd) else file.tell()
    except OSError:
        return 0


def _lines(file: BinaryIO, limit: int, start: int = 0) -> Iterator[tuple[int, bytes | DataError]]:
    """The lines that are not blank, with their numbers from 1; a DataError in place of a line that is too long."""
    number = start
    while line := file.readline(limit + 1):
        number += 1
        if len(line) > limit:
            while line and not line.endswith(b"\n"):
                line = file.readline(1 << 20)
            yield number, DataError(f"expected at most {limit:,} bytes in one line of JSON Lines or one document")
        elif not line.isspace():
            yield number, line


def _is_damaged_line(first: bytes | DataError, second: bytes | DataError) -> bool:
    """Whether a first line that is not JSON is a bad line of JSON Lines, rather than the head of one long document."""
    return isinstance(first, DataError) or (
        not first.lstrip().startswith(b"[") and first.rstrip() != b"{" and isinstance(parsed(second), dict)
    )


def _whole(file: BinaryIO, first: bytes | DataError, second: bytes | DataError) -> bytes | DataError:
    if isinstance(first, DataError) or isinstance(second, DataError):
        return first if isinstance(first, DataError) else second
    data = b"".join((first, second, file.read(MAX_DOCUMENT)))
    if len(data) > MAX_DOCUMENT:
        return DataError(f"expected at most {MAX_DOCUMENT:,} bytes in one JSON document; JSON Lines has no such limit")
    return data

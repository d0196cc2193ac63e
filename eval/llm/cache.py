"""Replies on disk, by request: what was answered once is never asked again, whatever kills the process in between."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from stepsieve.data.errors import DataError

_WAIT = 30.0
"""Seconds that a writer waits for another process with the same file."""


def key(request: Mapping[str, Any]) -> str:
    """The name of a request: a digest of where it goes and all that it says. No key of an account is part of it."""
    return sha256(orjson.dumps(request, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)).hexdigest()


class Cache:
    """A SQLite file of replies. A reply is on its way to the disk before anyone is told of it; processes can share one.

    Attributes:
        path: the file, made where there is none.
    """

    def __init__(self, path: Path) -> None:
        """Raises DataError: the file can't be written, or is something else."""
        self.path = path
        with self._told():
            self._db = sqlite3.connect(path, timeout=_WAIT, isolation_level=None)
            self._db.execute("CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, reply BLOB NOT NULL)")

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._db.close()

    def __len__(self) -> int:
        with self._told():
            return int(self._db.execute("SELECT count(*) FROM replies").fetchone()[0])

    def get(self, name: str) -> Any:
        """The reply to the request of this name, as it was put; None where there is none."""
        with self._told():
            row = self._db.execute("SELECT reply FROM replies WHERE key = ?", (name,)).fetchone()
        return None if row is None else orjson.loads(row[0])

    def put(self, name: str, reply: Any) -> None:
        """Keep a reply, any JSON value."""
        with self._told():
            self._db.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", (name, orjson.dumps(reply)))

    @contextmanager
    def _told(self) -> Any:
        try:
            yield
        except sqlite3.Error as error:
            raise DataError(f"expected a cache that can be read and written: {error}", file=self.path) from None

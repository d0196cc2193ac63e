"""The output file: written piece by piece beside its place, continued after a kill, put in its place when complete.

While a job runs, ``OUT.part`` holds the rows so far as JSON Lines, and ``OUT.part.job`` says what the job is and, one
line per piece, how far it got. A kill can cut only what was written after the last such line, which is then done again.
"""

from __future__ import annotations

import fcntl
import gzip
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from stepsieve.data.errors import DataError, require
from stepsieve.data.jsonio import dumps

ROW_GROUP_BYTES = 16 << 20
"""Rows of about so many bytes of JSON Lines make a row group of a Parquet file."""


@dataclass(frozen=True)
class Progress:
    """How far a job is: pieces done, bytes of ``OUT.part`` that hold their rows, and counts for the summary."""

    pieces: int = 0
    bytes: int = 0
    trajectories: int = 0
    predictions: int = 0
    skipped: int = 0
    complete: bool = False


class Output:
    """Rows on their way to a file.

    Attributes:
        progress: what is done; of an earlier run of the same job that was cut short, to begin with.
        restarted: another job's rows were found and dropped.
    """

    def __init__(self, target: Path, job: Mapping[str, Any], resumable: bool = True) -> None:
        """Opens the file for writing.

        Args:
            job: what decides every byte of the output; JSON.
            resumable: the job can be done again from where it was cut.

        Raises:
            DataError: a name of no known kind, no such folder, no permission, or another run that writes this file.
        """
        self.target, self.resumable = target, resumable
        self._finish = check(target)
        self._part = target.with_name(f"{target.name}.part")
        self._log = target.with_name(f"{target.name}.part.job")
        try:
            self._journal = open(self._log, "a+b", buffering=0)  # noqa: SIM115
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._rows = open(self._part, "ab", buffering=0)  # noqa: SIM115
        except BlockingIOError:
            raise DataError("expected a file that no other run is writing", file=target) from None
        except OSError as error:
            raise DataError(f"expected a file that can be written: {error.strerror}", file=target) from None
        header = dumps({"job": dict(job)})
        self.restarted = False
        self.progress = self._continued(header) if resumable else Progress()
        if not self.progress.pieces:
            self.restarted = self._rows.tell() > 0
            self._journal.truncate(0)
            self._journal.write(header)
        self._rows.truncate(self.progress.bytes)

    def _continued(self, header: bytes) -> Progress:
        """How far the same job had got; none of it where the job is another."""
        self._journal.seek(0)
        known = self._journal.read()
        found, end = Progress(), len(header)
        if known.startswith(header):
            size = self._rows.seek(0, os.SEEK_END)
            for line in known[end:].splitlines(keepends=True):
                progress = _entry(line)
                # After a power cut the journal can be ahead of the rows.
                if progress is None or progress.bytes > size:
                    break
                found, end = progress, end + len(line)
            self._journal.truncate(end)
        return found

    def written(self) -> Iterator[bytes]:
        """The rows so far."""
        with self._part.open("rb") as file:
            yield from file

    def add(self, rows: bytes, trajectories: int, predictions: int, skipped: int) -> None:
        """The rows of the next piece, as JSON Lines."""
        self._write(self._rows, rows)
        done = self.progress
        self._log_progress(
            Progress(
                done.pieces + 1,
                done.bytes + len(rows),
                done.trajectories + trajectories,
                done.predictions + predictions,
                done.skipped + skipped,
            )
        )

    def finish(self) -> None:
        """Put the file in its place, in the form that its name asks for."""
        if not self.progress.complete:
            self._log_progress(Progress(**{**asdict(self.progress), "complete": True}))
        fresh = self.target.with_name(f"{self.target.name}.new")
        try:
            if self._finish:
                self._finish(self._part, fresh)
            os.replace(fresh if self._finish else self._part, self.target)
        except OSError as error:
            raise DataError(f"expected a file that can be written: {error.strerror}", file=self.target) from None
        finally:
            fresh.unlink(missing_ok=True)
        self.discard()

    def close(self) -> None:
        """Leave what a later run can continue; nothing where there is nothing to continue."""
        if not self.resumable or not self.progress.trajectories:
            self.discard()
        self._rows.close()
        self._journal.close()

    def discard(self) -> None:
        """Leave nothing but what is in its place."""
        self._part.unlink(missing_ok=True)
        self._log.unlink(missing_ok=True)

    def _log_progress(self, progress: Progress) -> None:
        self._write(self._journal, dumps(asdict(progress)))
        self.progress = progress

    def _write(self, file: Any, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[file.write(view) :]
        except OSError as error:
            raise DataError(f"expected a file that can be written: {error.strerror}", file=self.target) from None


def _entry(line: bytes) -> Progress | None:
    """A line of the journal; None for one that was cut."""
    try:
        return Progress(**orjson.loads(line)) if line.endswith(b"\n") else None
    except (orjson.JSONDecodeError, TypeError):
        return None


# --- what becomes of the rows ----------------------------------------------------------------------------------------

Finish = Callable[[Path, Path], None]


def check(target: Path) -> Finish | None:
    """What turns JSON Lines into the form that a name asks for, from one file into another; None for JSON Lines.

    Raises:
        DataError: an unknown ending, a library that is not installed, or a place where no file can be written.
    """
    ending = next((ending for ending in _FORMS if target.name.endswith(ending) and target.name != ending), None)
    if ending is None:
        raise DataError(f"expected a name that ends in {', '.join(_FORMS)}", file=target)
    if target.is_dir():
        raise DataError("expected a file to write, found a folder", file=target)
    if not target.parent.is_dir():
        raise DataError("expected a folder to write into, found none", file=target.parent)
    if not os.access(target.parent, os.W_OK):
        raise DataError("expected a folder that can be written", file=target.parent)
    finish, module, extra = _FORMS[ending]
    if module:
        require(module, extra)
    return finish


def _gzip(rows: Path, fresh: Path) -> None:
    # Without a name and a time the bytes depend on the rows alone.
    with rows.open("rb") as source, fresh.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
        shutil.copyfileobj(source, packed, 1 << 20)


def _zstd(rows: Path, fresh: Path) -> None:
    zstandard = require("zstandard", "zstd")
    with rows.open("rb") as source, fresh.open("wb") as raw:
        zstandard.ZstdCompressor(level=6).copy_stream(source, raw)


def _parquet(rows: Path, fresh: Path) -> None:
    pyarrow, parquet = require("pyarrow", "parquet"), require("pyarrow.parquet", "parquet")
    schema = parquet_schema(pyarrow)
    with rows.open("rb") as source, parquet.ParquetWriter(fresh, schema, compression="zstd") as writer:
        for lines in _groups(source):
            writer.write_table(pyarrow.Table.from_pylist([orjson.loads(line) for line in lines], schema=schema))


def parquet_schema(pyarrow: Any) -> Any:
    """The columns of a Parquet file; ``because`` is null without ``--explain``."""
    reason = pyarrow.struct([("feature", pyarrow.string()), ("says", pyarrow.string()), ("effect", pyarrow.float64())])
    prediction = pyarrow.struct(
        [
            ("redundant_step_idx", pyarrow.list_(pyarrow.int32())),
            ("redundant_step_type", pyarrow.string()),
            ("evidence_step_idx", pyarrow.list_(pyarrow.int32())),
            ("confidence", pyarrow.float64()),
            ("because", pyarrow.list_(reason)),
        ]
    )
    return pyarrow.schema([("trajectory_id", pyarrow.string()), ("predictions", pyarrow.list_(prediction))])


def _groups(source: BinaryIO) -> Iterator[list[bytes]]:
    while lines := source.readlines(ROW_GROUP_BYTES):
        yield lines


_FORMS: Mapping[str, tuple[Finish | None, str, str]] = {
    ".jsonl": (None, "", ""),
    ".jsonl.gz": (_gzip, "", ""),
    ".jsonl.zst": (_zstd, "zstandard", "zstd"),
    ".parquet": (_parquet, "pyarrow", "parquet"),
}
"""Ending of a name -> what makes it, the module that this takes, and the extra that brings the module."""

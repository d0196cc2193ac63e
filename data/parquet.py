"""Records in the rows of a Parquet file, as the JSON objects that they stand for.

A null counts as absent: columns and structs have their fields in all rows. What differs from call to call, the
arguments above all, is best kept as JSON text; so may be ``messages`` as a whole.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, BinaryIO

from stepsieve.data.errors import DataError, require
from stepsieve.data.jsonio import dumps, loads

MAGIC = b"PAR1"
ROWS = 64
"""So many rows are in memory at once, beside what is read of their row group."""


def is_parquet(file: BinaryIO) -> bool:
    """Whether a file that was just opened begins as Parquet does."""
    return isinstance(file, io.BufferedReader) and file.peek(len(MAGIC)).startswith(MAGIC)


def rows(file: BinaryIO, longest: int) -> Iterator[tuple[bytes | DataError, float]]:
    """The rows of a file as JSON, and the share of all rows that is done with each.

    In place of a row that JSON can't hold, or that takes more than ``longest`` bytes, comes the DataError that says so.

    Raises:
        DataError: no pyarrow, no rows, or a file that it can't read.
    """
    parquet = require("pyarrow.parquet", "parquet")
    number = 0
    try:
        if not file.seekable():
            raise ValueError("it can't be read from its end, as Parquet has to be")
        with parquet.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=ROWS, use_threads=False):
                for row in batch.to_pylist():
                    number += 1
                    yield _record(row, longest), number / table.metadata.num_rows
    except Exception as error:
        # Whatever damaged bytes make of the library's own checks is bad input.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"expected a Parquet file that can be read, found an error: {reason}") from None
    if not number:
        raise DataError("expected at least one row of Parquet, found none")


def _record(row: dict[str, Any], longest: int) -> bytes | DataError:
    if isinstance(row.get("messages"), str):
        row["messages"] = _json(row["messages"])
    try:
        data = dumps(_known(row))
    except DataError as error:
        return error
    if len(data) > longest:
        return DataError(f"expected at most {longest:,} bytes in one row of Parquet")
    return data


def _json(text: str) -> Any:
    try:
        return loads(text.encode())
    except DataError:
        return text


def _known(value: Any) -> Any:
    """A value without the nulls of its structs."""
    if isinstance(value, dict):
        return {name: _known(inner) for name, inner in value.items() if inner is not None}
    return [_known(inner) for inner in value] if isinstance(value, list) else value

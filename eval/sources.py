"""Where trajectories come from, cut into pieces of bounded size that can be read and scored anywhere, in a fixed order.

A *piece* is what crosses to another process. It is the cheapest form that can be read there: lines of JSON Lines as
bytes, small files as their paths, and trajectories only where one big document had to be parsed here.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stepsieve.data import ingest, redundancybench
from stepsieve.data.errors import DataError
from stepsieve.data.trajectory import Trajectory

STDIN = ingest.STDIN
SUFFIXES = (
    *(f"{name}{packed}" for name in (".json", ".jsonl", ".ndjson") for packed in ("", ".gz", ".zst")),
    ".parquet",
)
"""What is read of a folder in no known layout."""

PIECE_ITEMS, PIECE_BYTES = 128, 4 << 20
"""A piece holds at most so many trajectories, lines or files, and about so many bytes."""
SMALL_FILE = 1 << 20
"""A file of at most so many bytes is read whole by whoever scores it."""

Report = Callable[[DataError], None]
Content = ingest.Document | Path | Trajectory | DataError


@dataclass(frozen=True)
class Piece:
    """What is read and scored together.

    Attributes:
        content: lines, paths of small files, trajectories, and errors met on the way, in order.
        weight: about how many bytes it holds.
        progress: how many bytes of the input it takes the reading further.
    """

    content: tuple[Content, ...]
    weight: int
    progress: int

    def read(self, report: Report) -> Iterator[Trajectory]:
        """The trajectories in it; what is wrong with those that are left out goes to ``report``."""
        for item in self.content:
            if isinstance(item, Trajectory):
                yield item
            elif isinstance(item, DataError):
                report(item)
            elif isinstance(item, Path):
                yield from ingest.load(item, report=report)
            else:
                yield from item.read(report)


# --- which files -----------------------------------------------------------------------------------------------------


def find(patterns: Iterable[str]) -> list[Path]:
    """The files, RedundancyBench folders and "-" that paths, globs and folders name; each once, in order.

    Raises:
        DataError: no such file, a glob without a match, a folder without a file of a known kind.
    """
    return list(dict.fromkeys(path for pattern in patterns for path in _matches(pattern)))


def _matches(pattern: str) -> list[Path]:
    if pattern == STDIN:
        return [Path(STDIN)]
    if os.path.exists(pattern):
        return _in_folder(Path(pattern)) if Path(pattern).is_dir() else [Path(pattern)]
    if not glob.has_magic(pattern):
        raise DataError("expected a file or a folder, found none", file=pattern)
    found = sorted(Path(match) for match in glob.glob(pattern, recursive=True))
    files = [file for path in found for file in (_in_folder(path) if path.is_dir() else [path])]
    if not files:
        raise DataError("expected a match of the pattern, found none", file=pattern)
    return [path for path in files if not _is_annotation(path)]


def _in_folder(folder: Path) -> list[Path]:
    if redundancybench.domain_folders(folder):
        return [folder]
    found = sorted(path for path in folder.rglob("*") if path.name.endswith(SUFFIXES) and path.is_file())
    # The sessions of subagents are read with the session that they belong to.
    files = [path for path in found if "subagents" not in path.parts and not _is_annotation(path)]
    if not files:
        raise DataError(f"expected files that end in {', '.join(SUFFIXES)}, found none", file=folder)
    return files


def _is_annotation(path: Path) -> bool:
    """Whether the file belongs to a released corpus and holds only its labels."""
    return path.name == redundancybench.ANNOTATION and (path.parent / redundancybench.TRACES).exists()


def files_of(paths: Iterable[Path]) -> Iterator[Path]:
    """The files that hold the bytes of what ``find`` gave; standard input has none."""
    for path in paths:
        if path.is_dir():
            for folder in redundancybench.domain_folders(path):
                yield from (folder / name for name in (redundancybench.TRACES, redundancybench.ANNOTATION))
        elif str(path) != STDIN:
            yield path


# --- pieces ----------------------------------------------------------------------------------------------------------


def pieces(paths: Sequence[Path]) -> Iterator[Piece]:
    """All that the paths hold, in order. The cuts depend on nothing but the files."""
    content: list[Content] = []
    weight = progress = 0
    for item, size, read in _contents(paths):
        if content and (len(content) == PIECE_ITEMS or weight + size > PIECE_BYTES):
            yield Piece(tuple(content), weight, progress)
            content, weight, progress = [], 0, 0
        content.append(item)
        weight += size
        progress += read
    if content:
        yield Piece(tuple(content), weight, progress)


def _contents(paths: Sequence[Path]) -> Iterator[tuple[Content, int, int]]:
    """Each item with about how many bytes it holds, and how many bytes of its file it takes the reading further."""
    for path in paths:
        try:
            if path.is_dir() or path.name == redundancybench.TRACES:
                yield from _read_here(path)
            elif _is_small(path):
                size = path.stat().st_size
                yield path, size, size
            else:
                yield from _scanned(path)
        except (DataError, OSError) as error:
            yield error if isinstance(error, DataError) else DataError(str(error), file=path), 0, 0


def _is_small(path: Path) -> bool:
    """Whether whoever scores the file may read it whole; of a compressed one nobody knows what it becomes."""
    packed = path.name.endswith((".gz", ".zst", ".parquet"))
    return str(path) != STDIN and not packed and path.stat().st_size <= SMALL_FILE


def _scanned(path: Path) -> Iterator[tuple[Content, int, int]]:
    done = 0
    for document in ingest.scan(path):
        if document.is_line:
            size = len(document.data) if isinstance(document.data, bytes) else document.end - done
            yield document, size, document.end - done
        else:
            yield from _expanded(document.read, document.end - done)
        done = document.end


def _read_here(path: Path) -> Iterator[tuple[Content, int, int]]:
    """A corpus in the released layout: two files that have to be joined."""
    size = sum(file.stat().st_size for file in files_of([path]) if file.exists())
    yield from _expanded(lambda report: ingest.load(path, report=report), size)


def _expanded(read: Callable[[Report], Iterator[Trajectory]], size: int) -> Iterator[tuple[Content, int, int]]:
    """The trajectories of what was read here; the first of them counts for the progress."""
    problems: list[DataError] = []
    for trajectory in read(problems.append):
        for problem in problems:
            yield problem, 0, 0
        problems.clear()
        yield _light(trajectory), _weight(trajectory), size
        size = 0
    for problem in problems:
        yield problem, 0, size
        size = 0


def _light(trajectory: Trajectory) -> Trajectory:
    """The trajectory without what no score depends on."""
    return replace(trajectory, labels=None, task=None, extra={})


def _weight(trajectory: Trajectory) -> int:
    return 500 * len(trajectory.messages) + sum(len(message.content or "") for message in trajectory.messages)

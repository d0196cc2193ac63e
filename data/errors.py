"""The one error that bad input raises: it says where, and what was expected, in one line."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import NoReturn


class DataError(ValueError):
    """Input that can't be used.

    Args:
        expected: what should have stood there, as a full phrase ("expected a JSON object, found a list").
        file: the file it came from, where known.
        trajectory: the id of the trajectory, where known.
        field: the path of the field inside the trajectory, such as ``messages[4].tool_calls[0].name``.

    ``str(error)`` is one line: ``file: trajectory 'id': field: expected``.
    """

    def __init__(self, expected: str, *, file: object = None, trajectory: str | None = None, field: str | None = None):
        self.expected = expected
        self.file = None if file is None else str(file)
        self.trajectory = trajectory
        self.field = field
        super().__init__(expected)

    def at(self, *, file: object = None, trajectory: str | None = None, field: str | None = None) -> DataError:
        """The same error with what a caller further out knows; what is already known stays."""
        return DataError(
            self.expected,
            file=self.file if self.file is not None else file,
            trajectory=self.trajectory if self.trajectory is not None else trajectory,
            field=self.field if self.field is not None else field,
        )

    def __str__(self) -> str:
        parts = []
        if self.file is not None:
            parts.append(self.file)
        if self.trajectory is not None:
            parts.append(f"trajectory {self.trajectory!r}")
        if self.field is not None:
            parts.append(self.field)
        line = ": ".join([*parts, self.expected])
        return " ".join(line.encode("utf-8", "backslashreplace").decode().split())


class Parser(argparse.ArgumentParser):
    """An argument parser whose bad flag is a ``DataError``: one line, as every other bad input."""

    def error(self, message: str) -> NoReturn:
        raise DataError(f"{message} (see {self.prog} --help)")


def run_cli(main: Callable[[], None]) -> NoReturn:
    """Run a command: bad input ends with one line on stderr and exit code 2, Ctrl-C with 130, never a traceback."""
    try:
        main()
        sys.stdout.flush()
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        # Whoever read the output has seen enough; Python's own flush at exit must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        print(f"error: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(0)


def require(module: str, extra: str) -> ModuleType:
    """Import an optional module.

    Raises:
        DataError: it is not installed; the message names the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise DataError(f"{module} is not installed: pip install 'stepsieve[{extra}]'") from None

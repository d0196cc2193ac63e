"""AgentProcessBench (arXiv 2603.14465): runs whose assistant messages people judged, and what LLM judges said of them.

A record holds chat ``messages``, ``step_labels`` (message index -> 1 effective, 0 neutral, -1 harmful), a
``final_label`` and what names it: ``data_source``, ``query_index`` (the task) and ``sample_index``. A judge's file has
a line for each run: ``record_id``, ``step_labels`` and ``final_label``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepsieve.data.errors import DataError
from stepsieve.data.jsonio import expect, found, loads
from stepsieve.data.quality import CORRECTNESS
from stepsieve.data.trajectory import Quality, Trajectory

NAME = "agentprocessbench"
SCORES: Mapping[int, float] = {-1: 0.0, 0: 0.5, 1: 1.0}
"""A label as a score in [0, 1]."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What a judge said of one run: message index -> label, and the final label; None where it gave none."""

    steps: Mapping[int, int]
    final: int | None


def record_id(record: Mapping[str, Any]) -> str:
    """``data_source:query_index:sample_index``, by which judges name a run. Raises DataError."""
    names = [record.get(name) for name in ("data_source", "query_index", "sample_index")]
    for name, value in zip(("data_source", "query_index", "sample_index"), names, strict=True):
        if not isinstance(value, (str, int)) or isinstance(value, bool):
            raise DataError(f"expected text or a whole number, found {found(value)}", field=name)
    return ":".join(map(str, names))


def judged(record: Mapping[str, Any], run: Trajectory) -> Trajectory:
    """The run with what a record says of its messages and its outcome.

    Raises:
        DataError: labels that are none, or of what is no message of the assistant.
    """
    labels = _labels(record)
    for message in labels:
        if not 0 <= message < len(run.messages) or run.messages[message].role != "assistant":
            raise DataError("expected the index of a message of the assistant", field=f"step_labels.{message}")
    qualities = tuple(Quality(message, CORRECTNESS, SCORES[label]) for message, label in sorted(labels.items()))
    final = _label(record.get("final_label"), "final_label")
    return replace(run, qualities=qualities, outcome=None if final is None else SCORES[final])


def read_judge(path: Path) -> dict[str, Judged]:
    """What a judge said, by record id.

    Raises:
        DataError: a file that can't be read, or a line that is none of a judge's.
    """
    answers: dict[str, Judged] = {}
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"expected a file that can be read: {error.strerror}", file=path) from None
    for number, line in enumerate(lines, 1):
        try:
            record = expect(loads(line), dict, "an object", "record")
            name = expect(record.get("record_id"), str, "text", "record_id")
            answers[name] = Judged(_labels(record), _label(record.get("final_label"), "final_label"))
        except DataError as error:
            raise error.at(file=f"{path}:{number}") from None
    return answers


def _labels(record: Mapping[str, Any]) -> dict[int, int]:
    given = expect(record.get("step_labels"), dict, "an object of labels by message index", "step_labels")
    labels = {}
    for key, value in given.items():
        field = f"step_labels.{key}"
        if not key.isdecimal():
            raise DataError("expected a message index", field=field)
        label = _label(value, field)
        if label is not None:
            labels[int(key)] = label
    return labels


def _label(value: object, field: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value not in SCORES:
        raise DataError(f"expected -1, 0 or 1, found {found(value)}", field=field)
    return value

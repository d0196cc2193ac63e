"""Predictions from files: result files of the released benchmark runner, and the JSON Lines of ``eval/predict.py``.

A *result file* is one JSON object: ``metadata`` and ``results``, one record per unit asked. A record names its unit
(``trajectory_id`` and ``redundant_step_idx``, or ``identity`` alone) and holds the answer: ``predicted_type``
(StepCls), ``predicted_type`` and ``predicted_evidence_idx`` (EvidenceRet), or ``predictions`` (StepDet). Which task it
is follows from these fields. *JSON Lines* have one line per trajectory: ``{"trajectory_id", "predictions"}``, StepDet.

What a model can get wrong is no bad input: a null, a type or a reference that does not exist count as wrong answers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from stepsieve.data import references
from stepsieve.data.documents import documents, opened
from stepsieve.data.errors import DataError
from stepsieve.data.jsonio import expect, found
from stepsieve.data.messages import MAX_TEXT
from stepsieve.data.trajectory import Reference
from stepsieve.eval.detection import Detection, usable

CLS, RET, DET = "cls", "ret", "det"
TITLES = {CLS: "StepCls", RET: "EvidenceRet", DET: "StepDet"}
"""The tasks, in the order in which they are reported."""
RUNNER_TASKS = {CLS: "classify", RET: "retrieve", DET: "detect"}
"""What the benchmark's runner calls them, in the ``metadata`` of a result file."""

_STEP, _TYPE, _EVIDENCE, _CONFIDENCE = (
    "redundant_step_idx",
    "redundant_step_type",
    "evidence_step_idx",
    "confidence",
)
_UNIT = re.compile(r"(?P<trajectory>.+):(?P<call>\d+)-(?P<result>\d+)", re.DOTALL)
"""The identity of a step in a result file: ``<trajectory id>:<call>-<result>``."""


class Answer(NamedTuple):
    """What was predicted for a given step; None where nothing usable was. ``evidence`` is None in StepCls."""

    type: str | None
    evidence: Reference | None = None
    confidence: float | None = None


@dataclass(frozen=True)
class Predictions:
    """One set of predictions for one task.

    Attributes:
        task: CLS, RET or DET.
        name: what tables call it.
        file: where it came from, for errors.
        steps: answers by (trajectory id, step), in the order of the file where a step was asked several times.
        trajectories: predicted triples by trajectory id; None for a failed reply.
        metadata: what a result file says of itself.
    """

    task: str
    name: str
    file: str = ""
    steps: Mapping[tuple[str, Reference], Sequence[Answer]] = field(default_factory=dict)
    trajectories: Mapping[str, Sequence[Detection] | None] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


def read(path: Path | str) -> Predictions:
    """The predictions of a file (JSON or JSON Lines, plain, gzip or zstd).

    Raises:
        DataError: the file can't be read, is of another form, names a trajectory twice, or misses a field.
    """
    path = Path(path)
    try:
        with opened(path) as stream:
            lines = documents(stream, 2 * MAX_TEXT)
            number, head = next(lines)
            if isinstance(head, dict) and "results" in head:
                return _result_file(head, path)
            return _detections(path, _numbered(number, head, lines))
    except DataError as error:
        raise error.at(file=path) from None


def distinct(made: Sequence[Predictions]) -> list[Predictions]:
    """The same under names that differ within a task: a name that occurs again becomes its file's, or is numbered."""
    taken: Counter[tuple[str, str]] = Counter()
    renamed = []
    for predictions in made:
        name = predictions.name
        if taken[predictions.task, name]:
            name = Path(predictions.file).stem
        taken[predictions.task, name] += 1
        if taken[predictions.task, name] > 1:
            name = f"{name} ({taken[predictions.task, name]})"
        renamed.append(replace(predictions, name=name))
    return renamed


# --- result files of the released runner -----------------------------------------------------------------------------


def _result_file(content: Mapping[str, Any], path: Path) -> Predictions:
    records = expect(content["results"], list, "a list of results", "results")
    metadata = expect(content.get("metadata") or {}, dict, "an object", "metadata")
    for index, record in enumerate(records):
        expect(record, dict, "a result object", f"results[{index}]")
    task = _task_of(records)
    model = metadata.get("model")
    name = model if isinstance(model, str) and model else path.stem
    if task == DET:
        triples = _by_trajectory((f"results[{index}]", record) for index, record in enumerate(records))
        return Predictions(DET, name, str(path), trajectories=triples, metadata=metadata)
    steps: dict[tuple[str, Reference], list[Answer]] = {}
    for index, record in enumerate(records):
        place = f"results[{index}]"
        trajectory, step = _unit(record, place)
        try:
            steps.setdefault((trajectory, step), []).append(_answer(record, task, place))
        except DataError as error:
            raise error.at(trajectory=trajectory) from None
    return Predictions(task, name, str(path), steps=steps, metadata=metadata)


def _task_of(records: Sequence[Mapping[str, Any]]) -> str:
    """The task, from the fields of the records; a record of a failed reply need not have any of them."""
    for name, task in (("predictions", DET), ("predicted_evidence_idx", RET), ("predicted_type", CLS)):
        if any(name in record for record in records):
            return task
    raise DataError("expected results with predicted_type, predicted_evidence_idx or predictions", field="results")


def _unit(record: Mapping[str, Any], place: str) -> tuple[str, Reference]:
    """The trajectory and the step that a record answers for."""
    identity = record.get("identity")
    match = _UNIT.fullmatch(identity) if isinstance(identity, str) else None
    trajectory = record.get("trajectory_id", match["trajectory"] if match else None)
    expect(trajectory, str, "a trajectory id, or an identity <trajectory id>:<call>-<result>", f"{place}.trajectory_id")
    step: object = record.get(_STEP)
    if step is None and match:
        step = [int(match["call"]), int(match["result"])]
    try:
        reference = references.parse(step)
    except DataError as error:
        raise error.at(trajectory=trajectory, field=f"{place}.{_STEP}") from None
    return trajectory, reference


def _answer(record: Mapping[str, Any], task: str, place: str) -> Answer:
    if record.get("error"):
        return Answer(None)
    kind = _text(record, "predicted_type", place)
    level = record.get(_CONFIDENCE)
    confidence = float(level) if isinstance(level, Real) and usable(level) else None
    evidence = _reference(record, "predicted_evidence_idx", place) if task == RET else None
    return Answer(kind, evidence, confidence)


# --- predicted triples -----------------------------------------------------------------------------------------------


def _numbered(number: int, head: object, rest: Iterable[tuple[int, object]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for line, value in ((number, head), *rest):
        place = f"line {line}" if line else "line 1"
        if isinstance(value, DataError):
            raise value.at(field=place)
        yield place, expect(value, dict, "a result file, or lines with trajectory_id and predictions", place)


def _detections(path: Path, lines: Iterable[tuple[str, Mapping[str, Any]]]) -> Predictions:
    return Predictions(DET, path.name.split(".")[0], str(path), trajectories=_by_trajectory(lines))


def _by_trajectory(records: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, list[Detection] | None]:
    triples: dict[str, list[Detection] | None] = {}
    for place, record in records:
        trajectory = record.get("trajectory_id", record.get("identity"))
        expect(trajectory, str, "a trajectory id", f"{place}.trajectory_id")
        if trajectory in triples:
            raise DataError("expected one result of this trajectory, found two", trajectory=trajectory, field=place)
        try:
            triples[trajectory] = _triples(record, place)
        except DataError as error:
            raise error.at(trajectory=trajectory) from None
    return triples


def _triples(record: Mapping[str, Any], place: str) -> list[Detection] | None:
    predictions = record.get("predictions")
    if record.get("error") or ("error" in record and predictions is None):
        return None
    rows = expect(predictions, list, "a list of predictions", f"{place}.predictions")
    triples = []
    for index, row in enumerate(rows):
        where = f"{place}.predictions[{index}]"
        expect(row, dict, "a prediction object", where)
        step, kind, evidence = (
            _reference(row, _STEP, where),
            _text(row, _TYPE, where),
            _reference(row, _EVIDENCE, where),
        )
        triples.append(Detection(step, kind, evidence, row.get(_CONFIDENCE)))
    return triples


def _text(record: Mapping[str, Any], name: str, place: str) -> str | None:
    if name not in record:
        raise DataError("expected text or null, found nothing", field=f"{place}.{name}")
    value = record[name]
    if value is not None and not isinstance(value, str):
        raise DataError(f"expected text or null, found {found(value)}", field=f"{place}.{name}")
    return value


def _reference(record: Mapping[str, Any], name: str, place: str) -> Reference | None:
    """A reference; None for null and for a list or a text that names nothing, which a model can well write."""
    if name not in record:
        raise DataError("expected message indices or null, found nothing", field=f"{place}.{name}")
    value = record[name]
    if value is not None and not isinstance(value, (list, str)):
        raise DataError(f"expected message indices or null, found {found(value)}", field=f"{place}.{name}")
    try:
        return references.parse(value)
    except DataError:
        return None

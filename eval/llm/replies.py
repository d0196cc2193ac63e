"""Replies of language models, read strictly: exactly the JSON that was asked for, or it is unusable."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from stepsieve.data import references
from stepsieve.data.errors import DataError
from stepsieve.data.jsonio import expect, found, loads
from stepsieve.data.trajectory import REDUNDANCY_TYPES, Reference, Trajectory
from stepsieve.eval.detection import Detection, usable
from stepsieve.eval.results import CLS, DET, RET, Answer

STEP, TYPE, EVIDENCE, CONFIDENCE = (
    "redundant_step_idx",
    "redundant_step_type",
    "evidence_step_idx",
    "confidence",
)
_FIELDS = {CLS: {TYPE}, RET: {TYPE, EVIDENCE}, DET: {STEP, TYPE, EVIDENCE, CONFIDENCE}}
_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)\n?\s*```", re.DOTALL)


def read(task: str, text: str, run: Trajectory) -> Answer | list[Detection]:
    """What a reply answers about a run: an :class:`Answer` (CLS, RET) or triples (DET).

    A fence of backticks around the whole of it is passed over, and nothing else.

    Raises:
        DataError: it is not the JSON that was asked for, or names what the run doesn't have.
    """
    inner = _FENCE.fullmatch(text.strip())
    value = loads((inner[1] if inner else text).encode("utf-8", "surrogatepass"))
    if task == DET:
        items = expect(value, list, "a JSON list", "reply")
        triples = [_detection(item, f"[{n}]", run) for n, item in enumerate(items)]
        _each_once([triple.step for triple in triples])
        return triples
    record = _record(value, "reply", task)
    return Answer(_type(record, "reply"), _evidence(record, "reply", run) if task == RET else None)


def _detection(value: object, place: str, run: Trajectory) -> Detection:
    record = _record(value, place, DET)
    step = _reference(record, STEP, place)
    try:
        references.validate_step(step, run)
    except DataError as error:
        raise DataError(error.expected, field=f"{place}.{STEP}") from None
    level = record[CONFIDENCE]
    if not usable(level):
        raise DataError(f"expected a number from 0 to 1, found {found(level)}", field=f"{place}.{CONFIDENCE}")
    return Detection(step, _type(record, place), _evidence(record, place, run), level)


def _each_once(steps: Sequence[Reference | None]) -> None:
    again = next((step for n, step in enumerate(steps) if step in steps[:n]), None)
    if again is not None:
        raise DataError(f"expected each step once, found {list(again)} again")


def _record(value: object, place: str, task: str) -> Mapping[str, object]:
    record: Mapping[str, object] = expect(value, dict, "a JSON object", place)
    if record.keys() != _FIELDS[task]:
        wanted, has = (", ".join(sorted(names)) or "none" for names in (_FIELDS[task], map(str, record)))
        raise DataError(f"expected the fields {wanted}, found {has[:100]}", field=place)
    return record


def _type(record: Mapping[str, object], place: str) -> str:
    kind = record[TYPE]
    if not isinstance(kind, str) or kind not in REDUNDANCY_TYPES:
        raise DataError(f"expected one of {', '.join(REDUNDANCY_TYPES)}, found {found(kind)}", field=f"{place}.{TYPE}")
    return kind


def _evidence(record: Mapping[str, object], place: str, run: Trajectory) -> Reference:
    evidence = _reference(record, EVIDENCE, place)
    try:
        references.validate_evidence(evidence, run)
    except DataError as error:
        raise DataError(error.expected, field=f"{place}.{EVIDENCE}") from None
    return evidence


def _reference(record: Mapping[str, object], name: str, place: str) -> Reference:
    try:
        return references.parse(expect(record[name], list, "a list of message indices", name))
    except DataError as error:
        raise DataError(error.expected, field=f"{place}.{name}") from None

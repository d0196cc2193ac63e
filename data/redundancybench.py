"""The released layout of RedundancyBench: read, verify, write back without loss.

::

    root/human_annotation/<domain>/final_traces.json      {"tasks": [...], "simulations": [...]}
    root/human_annotation/<domain>/annotation.json        one row per annotated simulation, joined by task_id
    root/automated_annotation/<domain>/...                the same, joined by trajectory_id

Stepsieve adds two optional fields to a simulation: ``outcome`` (or ``reward``; absent means 1, since every released run
succeeded) and ``subset`` (for what is neither "human" nor "automated", such as a simulated corpus, which is kept in the
automated layout).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from sys import intern
from typing import Any

import orjson

from stepsieve.data import references
from stepsieve.data.errors import DataError
from stepsieve.data.jsonio import dumps, expect, found, leftover, loads, restore, write_files
from stepsieve.data.messages import MAX_TEXT, read_messages, write_message
from stepsieve.data.trajectory import REDUNDANCY_TYPES, Label, Reference, Trajectory

HUMAN, AUTOMATED = "human_annotation", "automated_annotation"
TRACES, ANNOTATION = "final_traces.json", "annotation.json"
INJECTED = "人工合成"
"""The ``reason`` of a label whose step was injected."""

FILE, ROW = "@file", "@annotation"
"""Keys of ``Trajectory.extra``: what the two files held beyond the simulation itself. FILE is on a file's first run."""
_ROW_ORDER = "@rows"

Report = Callable[[DataError], None]
_STEPS, _TYPES, _EVIDENCE, _REASONS, _CONFIDENCE = (
    "redundant_step_idx",
    "redundant_step_type",
    "evidence_step_idx",
    "reason",
    "confidence",
)
LABEL_FIELDS = (_STEPS, _TYPES, _EVIDENCE)
"""The parallel lists that an annotation row must have."""


def read(root: Path | str, report: Report | None = None, max_text: int = MAX_TEXT) -> list[Trajectory]:
    """All trajectories under a root, a subset folder or a domain folder, human subset first, in the order of the files.

    Args:
        root: a folder that holds ``human_annotation/`` or ``automated_annotation/``, or one of these, or one domain.
        report: called with what is wrong with each trajectory that is then left out (``problems.append`` will do);
            without it the first problem is raised.
        max_text: limit on the text of one trajectory, in characters.

    Raises:
        DataError: no such files, a broken file, or a trajectory or label that can't be used.
    """
    fail = report or _raise
    root = Path(root)
    folders = domain_folders(root)
    if not folders:
        fail(DataError(f"expected {HUMAN}/<domain>/{TRACES} or {AUTOMATED}/<domain>/{TRACES}", file=root))
    seen: set[str] = set()
    trajectories = []
    for folder in folders:
        for trajectory in _read_domain(folder, fail, max_text):
            if trajectory.id in seen:
                fail(DataError("expected one trajectory of this id", file=folder / TRACES, trajectory=trajectory.id))
            else:
                seen.add(trajectory.id)
                trajectories.append(trajectory)
    return trajectories


def verify(root: Path | str) -> list[DataError]:
    """Everything that is wrong under a root, one error per trajectory or file; empty where all can be used."""
    problems: list[DataError] = []
    read(root, report=problems.append)
    return problems


def _raise(error: DataError) -> None:
    raise error


def domain_folders(root: Path) -> list[Path]:
    folders = [root, *sorted(root.glob("*/")), *sorted(root.glob(f"{HUMAN}/*/")), *sorted(root.glob(f"{AUTOMATED}/*/"))]
    return [folder for folder in folders if (folder / TRACES).is_file() or (folder / ANNOTATION).is_file()]


def _read_domain(folder: Path, fail: Report, max_text: int) -> Iterator[Trajectory]:
    """The trajectories of one folder that can be used; what is wrong with the others goes to ``fail``."""
    try:
        traces = _load(folder / TRACES, dict, "an object with tasks and simulations")
        simulations: list[Any] = expect(traces.get("simulations"), list, "a list of simulations", "simulations")
        task_records: list[Any] = expect(traces.get("tasks", []), list, "a list of tasks", "tasks")
        if not simulations:
            raise DataError("expected at least one simulation, found an empty list", field="simulations")
    except DataError as error:
        fail(error.at(file=folder / TRACES))
        return
    try:
        annotated = (folder / ANNOTATION).exists()
        rows = _load(folder / ANNOTATION, list, "a list of annotations") if annotated else []
    except DataError as error:
        fail(error.at(file=folder / ANNOTATION))
        return

    human, domain = _is_human(folder, simulations), folder.resolve().name
    by_key = _rows_by_key(rows, human, folder, fail)
    tasks = {str(task["id"]): task for task in reversed(task_records) if isinstance(task, dict) and "id" in task}
    keys = [_key(simulation, human) for simulation in simulations]
    repeated = Counter(keys)
    read_from = {}
    for index, simulation in enumerate(simulations):
        key = keys[index]
        try:
            if key is not None and repeated[key] > 1:
                raise DataError(f"expected one trajectory of this id, found {repeated[key]}", trajectory=key)
            trajectory = _trajectory(simulation, f"simulations[{index}]", human, domain, tasks, max_text)
        except DataError as error:
            fail(error.at(file=folder / TRACES, trajectory=key))
            continue
        try:
            found_rows = by_key.get(key or "", [])
            if len(found_rows) > 1:
                raise DataError(f"expected one annotation of this trajectory, found {len(found_rows)}")
            read_from[key] = _annotated(trajectory, found_rows[0], human) if found_rows else trajectory
        except DataError as error:
            fail(error.at(file=folder / ANNOTATION, trajectory=trajectory.id))
    for key in by_key:
        if key not in repeated:
            orphan = DataError("expected a simulation for this annotation, found none", trajectory=key)
            fail(orphan.at(file=folder / ANNOTATION))

    trajectories = list(read_from.values())
    order = [key for row in rows if (key := _key(row, human)) is not None]
    if trajectories and (extra := _file_extra(traces, order, trajectories, human)):
        trajectories[0] = replace(trajectories[0], extra={**trajectories[0].extra, FILE: extra})
    yield from trajectories


def _load(path: Path, kind: type, what: str) -> Any:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"expected a file that can be read: {error.strerror}") from None
    value = loads(data)
    if not isinstance(value, kind):
        raise DataError(f"expected {what}, found {found(value)}")
    return value


def _is_human(folder: Path, simulations: Sequence[Any]) -> bool:
    name = folder.resolve().parent.name
    if name in (HUMAN, AUTOMATED):
        return name == HUMAN
    first = simulations[0] if simulations else None
    return not (isinstance(first, dict) and "trajectory_id" in first)


def _key(record: Any, human: bool) -> str | None:
    """What joins a simulation with its annotation: the task in the human subset, else the trajectory."""
    value = record.get("task_id" if human else "trajectory_id") if isinstance(record, dict) else None
    return str(value) if isinstance(value, (str, int)) and value != "" else None


def _rows_by_key(rows: Sequence[Any], human: bool, folder: Path, fail: Report) -> dict[str, list[Any]]:
    by_key: dict[str, list[Any]] = {}
    for index, row in enumerate(rows):
        key = _key(row, human)
        if key is None:
            name = "task_id" if human else "trajectory_id"
            fail(DataError(f"expected an object with {name}", file=folder / ANNOTATION, field=f"[{index}]"))
        else:
            by_key.setdefault(key, []).append(row)
    return by_key


def _trajectory(
    record: Any, field: str, human: bool, domain: str, tasks: Mapping[str, Any], max_text: int
) -> Trajectory:
    expect(record, dict, "a simulation object", field)
    if _key(record, human) is None:
        name = "task_id" if human else "trajectory_id"
        raise DataError(f"expected text, found {found(record.get(name))}", field=f"{field}.{name}")
    task_id = str(expect(record.get("task_id", ""), (str, int), "text", "task_id"))
    agent = record.get("source_id")
    outcome = record.get("outcome", record.get("reward", 1.0))
    if outcome is not None and (isinstance(outcome, bool) or not isinstance(outcome, (int, float))):
        raise DataError(f"expected a number or null, found {found(outcome)}", field="outcome")
    trajectory = Trajectory(
        id=f"{HUMAN}:{domain}:{task_id}" if human else str(record["trajectory_id"]),
        messages=read_messages(record.get("messages"), max_text),
        policy=intern(expect(record.get("policy") or "", str, "text", "policy")),
        domain=domain,
        task_id=task_id,
        subset=expect(record.get("subset", "human" if human else "automated"), str, "text", "subset"),
        agent=None if agent is None else expect(agent, str, "text", "source_id"),
        outcome=None if outcome is None else float(outcome),
        task=tasks.get(task_id),
    )
    rest = {key: value for key, value in record.items() if key != "messages"}
    extra = leftover(rest, _simulation_fields(trajectory, human))
    return replace(trajectory, extra=extra) if extra else trajectory


def _annotated(trajectory: Trajectory, row: Mapping[str, Any], human: bool) -> Trajectory:
    labels = tuple(read_labels(row, trajectory))
    annotated = replace(trajectory, labels=labels)
    extra = leftover(row, _annotation_fields(annotated, human))
    return replace(annotated, extra={**annotated.extra, ROW: extra}) if extra else annotated


def read_labels(row: Mapping[str, Any], trajectory: Trajectory) -> Iterator[Label]:
    """The labels of one annotation row, each checked against its trajectory. Raises DataError with the field."""
    steps, types, evidence = (expect(row.get(name), list, "a list", name) for name in (_STEPS, _TYPES, _EVIDENCE))
    reasons, confidence = (
        [None] * len(steps) if row.get(name) is None else expect(row[name], list, "a list", name)
        for name in (_REASONS, _CONFIDENCE)
    )
    parallel = {_TYPES: types, _EVIDENCE: evidence, _REASONS: reasons, _CONFIDENCE: confidence}
    for name, values in parallel.items():
        if len(values) != len(steps):
            raise DataError(f"expected {len(steps)} items, as in {_STEPS}, found {len(values)}", field=name)
    for i in range(len(steps)):
        if types[i] not in REDUNDANCY_TYPES:
            expected = ", ".join(REDUNDANCY_TYPES)
            raise DataError(f"expected one of {expected}, found {found(types[i])}", field=f"{_TYPES}[{i}]")
        reason = "" if reasons[i] is None else expect(reasons[i], str, "text or null", f"{_REASONS}[{i}]")
        certainty = confidence[i]
        if certainty is not None:
            certainty = str(expect(certainty, (str, int, float), "text, a number or null", f"{_CONFIDENCE}[{i}]"))
        yield Label(
            step=_reference(steps[i], trajectory, f"{_STEPS}[{i}]", references.validate_step),
            type=types[i],
            evidence=_reference(evidence[i], trajectory, f"{_EVIDENCE}[{i}]", references.validate_evidence),
            synthetic=reason == INJECTED,
            confidence=certainty,
            reason="" if reason == INJECTED else reason,
        )


def _reference(
    value: object, trajectory: Trajectory, field: str, validate: Callable[[Reference, Trajectory], None]
) -> Reference:
    try:
        reference = references.parse(value)
        validate(reference, trajectory)
    except DataError as error:
        raise error.at(field=field) from None
    return reference


def write(trajectories: Iterable[Trajectory], root: Path | str) -> None:
    """Write trajectories in the released layout: ``read`` gives them back, and released files as they were.

    The subset "human" goes to ``human_annotation/<domain>``, every other one to ``automated_annotation/<domain>``. Each
    file is replaced whole; where anything can't be written, no file is touched. ``extra`` of a trajectory and of its
    messages wins over their fields.

    Raises:
        DataError: two trajectories with one id, a domain that can't name a folder, an id that its subset can't have,
            a value that JSON can't hold.
    """
    groups: dict[tuple[bool, str], list[Trajectory]] = {}
    for trajectory in trajectories:
        _check_writable(trajectory)
        groups.setdefault((trajectory.subset == "human", trajectory.domain), []).append(trajectory)
    contents: dict[Path, bytes] = {}
    for (human, domain), group in groups.items():
        folder = Path(root) / (HUMAN if human else AUTOMATED) / domain
        try:
            contents[folder / TRACES] = dumps(_traces(group, human))
            contents[folder / ANNOTATION] = dumps(_annotations(group, human), orjson.OPT_INDENT_2)
        except DataError as error:
            raise error.at(file=folder) from None
    duplicates = [key for key, n in Counter(t.id for group in groups.values() for t in group).items() if n > 1]
    if duplicates:
        raise DataError("expected one trajectory of this id", file=root, trajectory=duplicates[0])
    write_files(contents)


def _check_writable(trajectory: Trajectory) -> None:
    domain = trajectory.domain
    if domain in ("", ".", "..") or "/" in domain or "\\" in domain or "\0" in domain:
        raise DataError(f"expected a domain that can name a folder, found {domain!r}", trajectory=trajectory.id)
    released = f"{HUMAN}:{domain}:{trajectory.task_id}"
    if trajectory.subset == "human" and trajectory.id != released:
        raise DataError(f"expected the id {released!r} in the human subset", trajectory=trajectory.id)


def _traces(group: Sequence[Trajectory], human: bool) -> dict[str, Any]:
    files = [t.extra[FILE] for t in group if FILE in t.extra]
    tasks = {_task_key(task): task for file in files for task in file.get("tasks", ())}
    for trajectory in group:
        task = trajectory.task
        if task is not None and tasks.setdefault(_task_key(task), task) != task:
            raise DataError("expected one task record of this id", trajectory=trajectory.id, field="task")
    simulations = []
    for trajectory in group:
        fields = _simulation_fields(trajectory, human)
        fields["messages"] = [write_message(message) for message in trajectory.messages]
        extra = {key: value for key, value in trajectory.extra.items() if key not in (FILE, ROW)}
        simulations.append(restore(fields, extra))
    merged = {key: value for file in files for key, value in file.items() if key not in ("tasks", _ROW_ORDER)}
    return restore({"tasks": list(tasks.values()), "simulations": simulations}, merged)


def _annotations(group: Sequence[Trajectory], human: bool) -> list[dict[str, Any]]:
    rows = [
        restore(_annotation_fields(trajectory, human), trajectory.extra.get(ROW, {}))
        for trajectory in group
        if trajectory.labels is not None
    ]
    order = [key for t in group for key in t.extra.get(FILE, {}).get(_ROW_ORDER, ())]
    place = {key: index for index, key in enumerate(order)}
    return sorted(rows, key=lambda row: place.get(_key(row, human) or "", len(order)))


def _simulation_fields(trajectory: Trajectory, human: bool) -> dict[str, Any]:
    """What a simulation record always holds, apart from its messages."""
    fields: dict[str, Any] = {} if human else {"trajectory_id": trajectory.id}
    if trajectory.agent is not None:
        fields["source_id"] = trajectory.agent
    if trajectory.subset != ("human" if human else "automated"):
        fields["subset"] = trajectory.subset
    fields["task_id"] = trajectory.task_id
    if trajectory.outcome != 1.0:
        fields["outcome"] = trajectory.outcome
    fields["policy"] = trajectory.policy
    return fields


def _annotation_fields(trajectory: Trajectory, human: bool) -> dict[str, Any]:
    labels = trajectory.labels or ()
    fields: dict[str, Any] = {} if human else {"trajectory_id": trajectory.id}
    if trajectory.agent is not None:
        fields["source_id"] = trajectory.agent
    fields["task_id"] = trajectory.task_id
    fields[_STEPS] = [list(label.step) for label in labels]
    fields[_TYPES] = [label.type for label in labels]
    fields[_EVIDENCE] = [list(label.evidence) for label in labels]
    fields[_REASONS] = [INJECTED if label.synthetic else label.reason for label in labels]
    fields[_CONFIDENCE] = [label.confidence for label in labels]
    return fields


def _file_extra(
    traces: Mapping[str, Any], order: list[str], trajectories: Sequence[Trajectory], human: bool
) -> dict[str, Any]:
    """What only the file as a whole says: further keys, tasks in another order or without a run, the order of rows."""
    tasks = list({_task_key(t.task): t.task for t in trajectories if t.task is not None}.values())
    extra = leftover({"tasks": [], **traces}, {"tasks": tasks, "simulations": traces["simulations"]})
    if order != [t.task_id if human else t.id for t in trajectories if t.labels is not None]:
        extra[_ROW_ORDER] = order
    return extra


def _task_key(task: Any) -> str:
    return str(task.get("id")) if isinstance(task, Mapping) else repr(task)

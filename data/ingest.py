"""Trajectories from any format that Stepsieve knows, as a stream.

====================  ==================================================================  ===========================
format                what is read                                                        message indices
====================  ==================================================================  ===========================
``redundancybench``   a folder in the released layout, or one of its final_traces.json    as released
``stepsieve``         ``{"trajectory_id", "messages", "policy", ...}``, JSON or JSONL     positions in ``messages``
``openai``            a list of chat messages, or ``{"messages", "tools", ...}``          positions in the list
``tau-bench``         result files: rows with ``traj``, ``reward``, ``task_id``           positions in ``traj``
``tau2-bench``        result files: ``simulations``, ``tasks``, ``info``                  positions in ``messages``
``agentprocessbench`` chat messages with ``step_labels`` and ``final_label``, JSONL       positions in ``messages``
``atif``              ATIF trajectories, JSON or JSONL                                    recorded order, see below
``otlp``              OpenTelemetry traces as OTLP JSON                                   recorded order, see below
``claude-code``       Claude Code sessions (JSONL), with their subagents' files           recorded order, see below
====================  ==================================================================  ===========================

The last three are read by agentpile, and have steps instead of messages. Their messages are numbered from 0 in recorded
order (``agentpile.Run.events``): one message for each system, user or agent step, which holds the text and all calls of
the step, and one tool message for each result. A subagent's run follows its parent's as ``<parent id>/<subagent id>``.

The format is detected from the content, never from a name alone, unless it is given. The rows of a Parquet file are
records like the lines of JSON Lines (see parquet.py). An id that a file does not hold is
made from the file's name and the position in it: ``chats:17``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from stepsieve.data import agentpile_runs, agentprocessbench, redundancybench
from stepsieve.data.documents import consumed, opened, parsed, raw_documents
from stepsieve.data.errors import DataError
from stepsieve.data.jsonio import dumps, found, loads
from stepsieve.data.messages import MAX_TEXT, read_chat
from stepsieve.data.parquet import is_parquet, rows
from stepsieve.data.shapes import FORMATS, detect, is_message, shape
from stepsieve.data.trajectory import Trajectory

STDIN = "-"
Report = Callable[[DataError], None]
Make = Callable[[], Iterable[Trajectory]]

_WHOLE_FILE = ("otlp", "claude-code")
"""Formats in which one run can be spread over all lines of a JSON Lines file."""
_SUFFIXES = re.compile(r"(\.jsonl?|\.ndjson|\.parquet)?(\.gz|\.zst)?$")
_SESSION_HEAD = 50
"""A Claude Code session opens with bookkeeping lines: so many are read before its format is given up."""


@dataclass(frozen=True)
class _Context:
    """What a reader has to know beside the record: a name to make ids from, the place in the file, the limits."""

    name: str
    max_text: int
    path: Path | None = None
    position: str = ""

    @property
    def id(self) -> str:
        return f"{self.name}:{self.position}" if self.position else self.name

    def at(self, position: int) -> _Context:
        return replace(self, position=f"{self.position}:{position}" if self.position else str(position))


@dataclass(frozen=True)
class Document:
    """A part of a file that is read on its own, not parsed yet: a line of JSON Lines, or else the whole file.

    Attributes:
        place: where it stands, for errors.
        data: its bytes, or its JSON value where that is known already; of a whole session all its values.
        is_line: it is one line among others.
        end: how many bytes of the file were read with it; compressed ones of a compressed file.
    """

    place: str
    data: object
    format: str | None
    context: _Context
    is_line: bool
    end: int

    def makers(self) -> Iterator[Make]:
        """What makes each of its trajectories, or fails."""
        if self.format in _WHOLE_FILE and isinstance(self.data, list):
            return _whole_file(self.format, self.data, self.context)
        return _expanded(self.format, parsed(self.data), self.context)

    def read(self, report: Report) -> Iterator[Trajectory]:
        """Its trajectories; what is wrong with those that are left out goes to ``report``."""
        for make in self.makers():
            try:
                yield from make()
            except DataError as error:
                report(error.at(file=self.place))


def load(
    path: Path | str, format: str | None = None, *, report: Report | None = None, max_text: int = MAX_TEXT
) -> Iterator[Trajectory]:
    """The trajectories of a file, a RedundancyBench folder, or standard input ("-"), one at a time.

    JSON Lines are read line by line, so a file of any size takes the memory of its longest line, and Parquet row group
    by row group; other files are held whole. Files that begin as gzip or zstd are decompressed.

    Args:
        path: what to read.
        format: one of ``FORMATS``; None detects it.
        report: called with what is wrong with each trajectory, line or file that is then left out
            (``problems.append`` will do); without it the first problem is raised.
        max_text: limit on the text of one trajectory, in characters.

    Raises:
        DataError: an unknown ``format`` (at once, as any wrong argument); while iterating, without ``report``: whatever
            can't be used. No other exception comes from bad input.
    """
    _check_format(format)
    return _load(Path(path), format, report or _raise, max_text)


def scan(path: Path | str, max_text: int = MAX_TEXT) -> Iterator[Document]:
    """The parts of a file, or of standard input ("-"), in order, for :meth:`Document.read` here or in another process.

    Raises:
        DataError: while iterating, a file that can't be read at all.
    """
    try:
        yield from _documents(Path(path), None, max_text)
    except DataError as error:
        raise error.at(file=path) from None


def from_object(
    value: object, *, id: str = "trajectory", format: str | None = None, max_text: int = MAX_TEXT
) -> Trajectory:
    """One trajectory from a JSON value in memory: a list of messages or an object, in any format but a folder.

    Args:
        value: as ``json.loads`` gives it (NaN is taken as null).
        id: the trajectory's id where the value has none.
        format: one of ``FORMATS``; None detects it.
        max_text: limit on the text, in characters.

    Raises:
        DataError: a value that can't be used, or that holds more than one trajectory.
    """
    _check_format(format)
    context = _Context(id, max_text)
    value = loads(dumps(value))
    name = format or _detect_session(value) or detect(value)
    records = value if name in _WHOLE_FILE and isinstance(value, list) else [value]
    made = _whole_file(name, records, context) if name in _WHOLE_FILE else _expand(name, value, context)
    trajectories = [trajectory for make in made for trajectory in make()]
    if len(trajectories) != 1:
        raise DataError(f"expected one trajectory, found {len(trajectories)}")
    return trajectories[0]


def _raise(error: DataError) -> None:
    raise error


def _check_format(format: str | None) -> None:
    if format is not None and format not in FORMATS:
        raise DataError(f"expected one of the formats {', '.join(FORMATS)}, found {format!r}")


def _load(path: Path, format: str | None, fail: Report, max_text: int) -> Iterator[Trajectory]:
    seen: set[str] = set()
    try:
        folder = _benchmark_folder(path, format)
        if folder is not None:
            yield from redundancybench.read(folder, fail, max_text)
            return
        for place, make in _makers(path, format, max_text):
            try:
                for trajectory in make():
                    if trajectory.id in seen:
                        raise DataError("expected one trajectory of this id, found another", trajectory=trajectory.id)
                    seen.add(trajectory.id)
                    yield trajectory
            except DataError as error:
                fail(error.at(file=place))
    except DataError as error:
        fail(error.at(file=path))


def _benchmark_folder(path: Path, format: str | None) -> Path | None:
    """The folder to read in the released layout, or None where the path is a file of another format."""
    if path.is_dir():
        if format not in (None, "redundancybench"):
            raise DataError(f"expected a file of the format {format}, found a folder")
        return path
    if path.name == redundancybench.TRACES and format in (None, "redundancybench") and path.is_file():
        return path.parent
    if format == "redundancybench":
        raise DataError(f"expected a folder in the released layout, or its {redundancybench.TRACES}")
    return None


def _makers(path: Path, format: str | None, max_text: int) -> Iterator[tuple[str, Make]]:
    """What makes each trajectory of a file, and the place in the file to name where it fails."""
    for document in _documents(path, format, max_text):
        for make in document.makers():
            yield document.place, make


def _documents(path: Path, format: str | None, max_text: int) -> Iterator[Document]:
    """What a file holds, each part to be read on its own."""
    stdin = str(path) == STDIN
    place = "stdin" if stdin else str(path)
    context = _Context("stdin" if stdin else _SUFFIXES.sub("", path.name), max_text, None if stdin else path)
    # A line twice as long as the text may be is not worth parsing: that would take several times its size in memory.
    with opened(context.path) as file:
        if is_parquet(file):
            size = context.path.stat().st_size if context.path else 0
            for number, (row, done) in enumerate(rows(file, 2 * max_text), 1):
                yield Document(f"{place}:{number}", row, format, context.at(number), True, int(size * done))
            return
        raw = raw_documents(file, 2 * max_text)
        head: list[tuple[int, object]] = []
        if format is None:
            head, format = _detected((number, parsed(data)) for number, data in raw)
        lines = chain(head, raw)
        if format in _WHOLE_FILE:
            values = [parsed(data) for _, data in lines]
            yield Document(place, values, format, context, False, consumed(file))
            return
        for number, data in lines:
            where = f"{place}:{number}" if number else place
            yield Document(where, data, format, context.at(number) if number else context, number > 0, consumed(file))


def _detected(lines: Iterator[tuple[int, object]]) -> tuple[list[tuple[int, object]], str | None]:
    """The first documents and the format they show; None where each line has to show its own."""
    head = []
    for number, value in lines:
        head.append((number, value))
        if isinstance(value, dict) and isinstance(value.get("type"), str) and len(head) < _SESSION_HEAD:
            if agentpile_runs.is_session_line(value):
                return head, "claude-code"
        elif isinstance(value, dict) and ("resourceSpans" in value or "resource_spans" in value):
            return head, "otlp"
        else:
            break
    return head, None


def _detect_session(value: object) -> str | None:
    if isinstance(value, list) and any(agentpile_runs.is_session_line(record) for record in value[:_SESSION_HEAD]):
        return "claude-code"
    return None


def _usable(value: object) -> Any:
    if isinstance(value, DataError):
        raise value
    return value


def _expanded(format: str | None, value: object, context: _Context) -> Iterator[Make]:
    """As :func:`_expand`, but what is wrong with the document as a whole is raised by what is yielded."""
    try:
        yield from _expand(format or detect(_usable(value)), _usable(value), context)
    except DataError as error:
        yield partial(_failed, error)


def _failed(error: DataError) -> Iterable[Trajectory]:
    raise error


def _expand(format: str, value: Any, context: _Context) -> Iterator[Make]:
    """What makes each trajectory of one JSON document."""
    if format == "tau2-bench":
        yield from _tau2(value, context)
        return
    single = format in ("openai", "stepsieve") and isinstance(value, list) and is_message(value[:1])
    if isinstance(value, list) and not single:
        if not value:
            raise DataError("expected at least one trajectory, found an empty list")
        for index, record in enumerate(value):
            yield partial(_one, format, record, context.at(index))
    else:
        yield partial(_one, format, value, context)


def _one(format: str, record: Any, context: _Context) -> Iterable[Trajectory]:
    if format == "atif":
        return agentpile_runs.from_atif(record, context.id, context.max_text)
    try:
        return [_READERS.get(format, _chat)(record, context)]
    except DataError as error:
        raise error.at(trajectory=context.id) from None


def _whole_file(format: str, values: list[object], context: _Context) -> Iterator[Make]:
    try:
        # A session that is still being written can end in half a line.
        records = [_usable(value) for value in values if format == "otlp" or not isinstance(value, DataError)]
    except DataError as error:
        yield partial(_failed, error)
        return
    read = agentpile_runs.from_otlp if format == "otlp" else partial(agentpile_runs.from_session, path=context.path)
    yield partial(read, records, name=context.name, max_text=context.max_text)


def _chat(record: Any, context: _Context) -> Trajectory:
    """OpenAI chat or our own JSON: the same fields, and messages that say themselves which form they have."""
    if isinstance(record, list):
        record = {"messages": record}
    if not isinstance(record, dict):
        raise DataError(f"expected an object with messages, or a list of messages, found {found(record)}")
    details = record.get("metadata")
    fields = {**(details if isinstance(details, dict) else {}), **record}
    trajectory = _build(
        context,
        id=_text(fields, "trajectory_id", "id") or context.id,
        messages=record.get("messages"),
        policy=record.get("policy"),
        domain=_text(fields, "domain"),
        task_id=_text(fields, "task_id"),
        subset=_text(fields, "subset"),
        agent=_text(fields, "agent", "source_id", "model"),
        outcome=fields.get("outcome", fields.get("reward")),
        extra={key: record[key] for key in ("tools", "metadata") if key in record},
    )
    if any(name in record for name in redundancybench.LABEL_FIELDS):
        return replace(trajectory, labels=tuple(redundancybench.read_labels(record, trajectory)))
    return trajectory


def _tau(record: Any, context: _Context) -> Trajectory:
    """One row of a tau-bench result file. The domain is read from the policy's title, since no field has it."""
    if not isinstance(record, dict):
        raise DataError(f"expected a result object with traj, found {found(record)}")
    task, trial = _text(record, "task_id"), _text(record, "trial")
    info = record.get("info")
    trajectory = _build(
        context,
        id=f"{context.name}:{task}:{trial}" if task and trial else context.id,
        messages=record.get("traj"),
        task_id=task,
        outcome=record.get("reward"),
        task=info.get("task") if isinstance(info, dict) else None,
        extra={"trial": record["trial"]} if trial else {},
    )
    title = re.match(r"\W*(\w+) agent policy", trajectory.policy, re.IGNORECASE)
    return replace(trajectory, domain=title[1].lower() if title else "")


def _process(record: Any, context: _Context) -> Trajectory:
    """A run of AgentProcessBench: a chat whose assistant messages and outcome were judged by people."""
    if not isinstance(record, dict):
        raise DataError(f"expected an object with messages and step_labels, found {found(record)}")
    names = {"trajectory_id": agentprocessbench.record_id(record), "task_id": record.get("query_index")}
    chat = {"messages": record.get("messages"), "domain": record.get("data_source"), **names}
    return agentprocessbench.judged(record, replace(_chat(chat, context), subset=agentprocessbench.NAME))


_READERS = {"tau-bench": _tau, "agentprocessbench": _process}
"""Formats whose records are read by a function of their own; all others are chats."""


def _tau2(value: Any, context: _Context) -> Iterator[Make]:
    """The simulations of a tau2-bench result file, or of a final_traces.json on its own."""
    if not isinstance(value, dict) or not isinstance(value.get("simulations"), list):
        raise DataError(f"expected an object with simulations, found {shape(value)}")
    if not value["simulations"]:
        raise DataError("expected at least one simulation, found an empty list", field="simulations")
    info = _at(value, "info")
    environment = _at(info, "environment_info")
    shared = {
        "domain": _text(environment, "domain_name"),
        "policy": environment.get("policy"),
        "agent": _text(_at(info, "agent_info"), "llm", "implementation"),
    }
    records = value.get("tasks") if isinstance(value.get("tasks"), list) else []
    tasks = {str(task.get("id")): task for task in records or () if isinstance(task, dict)}
    for index, record in enumerate(value["simulations"]):
        yield partial(_simulation, record, shared, tasks, context.at(index))


def _simulation(
    record: Any, shared: Mapping[str, Any], tasks: Mapping[str, Any], context: _Context
) -> Iterable[Trajectory]:
    if not isinstance(record, dict):
        raise DataError(f"expected a simulation object, found {found(record)}")
    task = _text(record, "task_id")
    yield _build(
        context,
        id=_text(record, "trajectory_id", "id") or context.id,
        messages=record.get("messages"),
        policy=record.get("policy", shared["policy"]),
        domain=shared["domain"],
        task_id=task,
        agent=_text(record, "source_id") or shared["agent"],
        outcome=_at(record, "reward_info").get("reward"),
        task=tasks.get(task),
        extra={"trial": record["trial"]} if "trial" in record else {},
    )


def _build(
    context: _Context,
    *,
    id: str,
    messages: object,
    policy: object = None,
    agent: str = "",
    outcome: object = None,
    **fields: Any,
) -> Trajectory:
    """A trajectory; without a policy, the system messages that open the run are its policy."""
    try:
        if outcome is not None and not isinstance(outcome, (bool, int, float)):
            raise DataError(f"expected a number or null, found {found(outcome)}", field="outcome")
        if policy is not None and not isinstance(policy, str):
            raise DataError(f"expected text or null, found {found(policy)}", field="policy")
        read = read_chat(messages, context.max_text)
    except DataError as error:
        raise error.at(trajectory=id) from None
    if policy is None:
        policy = agentpile_runs.opening_policy(read)
    score = None if outcome is None else float(outcome)
    return Trajectory(id=id, messages=read, policy=policy, agent=agent or None, outcome=score, **fields)


def _text(record: Mapping[str, Any], *names: str) -> str:
    """The first of these fields that holds text or a whole number, as text; "" where none does."""
    for name in names:
        value = record.get(name)
        if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "":
            return str(value)
    return ""


def _at(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = record.get(name)
    return value if isinstance(value, dict) else {}

"""ATIF, OTLP JSON and Claude Code sessions, read by agentpile and turned into trajectories."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import orjson

from stepsieve.data.errors import DataError
from stepsieve.data.jsonio import dumps, found
from stepsieve.data.messages import MAX_TEXT, read_chat
from stepsieve.data.trajectory import Message, Trajectory

_ROLES = {"agent": "assistant", "system": "system", "user": "user"}


def from_atif(record: object, name: str, max_text: int = MAX_TEXT) -> Iterator[Trajectory]:
    """The trajectory of one ATIF object and those of its subagents; ``name`` is its id where it has none."""
    version = record.get("schema_version") if isinstance(record, dict) else None
    if not isinstance(record, dict) or not isinstance(record.get("steps"), list):
        raise DataError(f"expected an ATIF object with steps, found {found(record)}")
    if not isinstance(version, str) or not version.startswith("ATIF-v1."):
        raise DataError(f"expected ATIF-v1, found {found(version)}", field="schema_version")
    with _reading("ATIF"):
        from agentpile import Run

        yield from _trajectories(Run(record), name, max_text)


def from_otlp(records: list[Any], name: str, max_text: int = MAX_TEXT) -> Iterator[Trajectory]:
    """One trajectory per trace of the OTLP documents.

    Traces of instrumentation versions that agentpile was not tested with are read all the same.
    """
    with _reading("OTLP"):
        for run in _reader("otlp-json").read(records, allow_untested_version=True):
            yield from _trajectories(run, name, max_text)


def from_session(
    records: list[Any], name: str, max_text: int = MAX_TEXT, path: Path | None = None
) -> Iterator[Trajectory]:
    """The trajectory of a Claude Code session and those of its subagents, whose files lie beside ``path``."""
    with _reading("Claude Code"), _session_file(records, path) as file:
        for run in _reader("claude-code-jsonl").read(file):
            yield from _trajectories(run, name, max_text)


def is_session_line(value: object) -> bool:
    """Whether a JSON value is a message line of a Claude Code session."""
    return (
        isinstance(value, dict)
        and value.get("type") in ("user", "assistant", "system")
        and all(isinstance(value.get(key), str) for key in ("sessionId", "uuid", "version"))
    )


def opening_policy(messages: tuple[Message, ...]) -> str:
    """The text of the system messages that open a run."""
    texts = []
    for message in messages:
        if message.role != "system":
            break
        texts.append(message.content or "")
    return "\n\n".join(texts)


def _reader(name: str) -> Any:
    from agentpile import readers

    return readers.get(name)


@contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except (DataError, GeneratorExit):
        raise
    except Exception as error:
        # A reader that meets a shape it was not made for fails in its own ways; to the user it is one: bad input.
        raise DataError(
            f"expected {what} that agentpile can read, found an error: {error or type(error).__name__}"
        ) from error


def _session_file(records: list[Any], path: Path | None) -> Any:
    """The session as a plain file: its own, or a temporary copy where it came compressed or from a stream."""
    if path is not None and path.suffix == ".jsonl":
        with path.open("rb") as file:
            if file.read(1) == b"{":
                return nullcontext(path)
    return _copy(records)


@contextmanager
def _copy(records: list[Any]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "session.jsonl"
        file.write_bytes(b"".join(dumps(record) for record in records))
        yield file


def _trajectories(run: Any, name: str, max_text: int, parent: str = "") -> Iterator[Trajectory]:
    own = f"{parent}/{run.id or name}" if parent else str(run.id or name)
    try:
        messages = read_chat(_messages(run), max_text)
    except DataError as error:
        raise error.at(trajectory=own) from None
    agent = run.record.get("agent") or {}
    score = run.outcome.get("score")
    outcome = score if score is not None else run.outcome.get("success")
    yield Trajectory(
        id=own,
        messages=messages,
        policy=opening_policy(messages),
        task_id=str(run.task.get("id") or ""),
        agent=agent.get("model_name") or agent.get("name") or None,
        outcome=None if outcome is None else float(outcome),
    )
    for subagent in run.subagents:
        yield from _trajectories(subagent, name, max_text, own)


def _messages(run: Any) -> list[dict[str, Any]]:
    """One message per step with its text and calls, one per result, in recorded order."""
    users = {agent.get("id") for agent in run.agents if agent.get("name") == "user_simulator"}
    messages: list[dict[str, Any]] = []
    open_step: object = None
    requestors: dict[object, str] = {}
    for event in run.events():
        side = "user" if event.actor in users else "assistant"
        if event.kind == "result":
            messages.append(
                {
                    "role": "tool",
                    "id": event.call_id,
                    "content": _content(event.content),
                    "requestor": requestors.get(event.call_id, side),
                    "error": True if event.error else None,
                }
            )
            open_step = None
            continue
        step = event.address["step"]
        if event.kind == "message" or step != open_step:
            role = "user" if side == "user" else _ROLES.get(event.role, event.role)
            text = _content(event.content) if event.kind == "message" else None
            messages.append({"role": role, "content": text, "tool_calls": []})
            open_step = step
        if event.kind == "call":
            requestors[event.call_id] = side
            arguments = event.content if isinstance(event.content, (dict, str)) else None
            call = {"id": event.call_id, "name": event.name, "arguments": arguments, "requestor": side}
            messages[-1]["tool_calls"].append(call)
    return messages


def _content(value: Any) -> str | list[Any] | None:
    """Text, or parts that :func:`read_chat` joins; null for a value the source lacks; JSON text for any other value."""
    if isinstance(value, (str, list)) or value is None:
        return value
    if not isinstance(value, (dict, int, float, bool)):
        return None
    return orjson.dumps(value).decode()

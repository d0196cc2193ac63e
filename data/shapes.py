"""Which format a JSON document is in, by its shape."""

from __future__ import annotations

from stepsieve.data.errors import DataError
from stepsieve.data.jsonio import found

FORMATS = (
    "redundancybench",
    "stepsieve",
    "openai",
    "tau-bench",
    "tau2-bench",
    "agentprocessbench",
    "atif",
    "otlp",
    "claude-code",
)
"""The names that ``format`` can take."""


def detect(value: object) -> str:
    """The format of one JSON document. Raises DataError that lists the known ones where it is none of them."""
    record = value[0] if isinstance(value, list) and value else value
    if isinstance(record, dict):
        if isinstance(record.get("simulations"), list):
            return "tau2-bench"
        if "traj" in record:
            return "tau-bench"
        if "resourceSpans" in record or "resource_spans" in record:
            return "otlp"
        if str(record.get("schema_version", "")).startswith("ATIF-"):
            return "atif"
        if "messages" in record and "step_labels" in record:
            return "agentprocessbench"
        if "messages" in record:
            return "openai" if _is_openai(record["messages"]) else "stepsieve"
        if isinstance(value, list) and "role" in record:
            return "openai"
    raise DataError(f"expected one of the formats {', '.join(FORMATS)}, found {shape(value)}")


def is_message(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "role" in value[0]


def _is_openai(messages: object) -> bool:
    """Whether any message has what only the OpenAI form has; else the form is our own."""
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict):
            calls = message.get("tool_calls")
            if any(
                isinstance(call, dict) and "function" in call for call in (calls if isinstance(calls, list) else ())
            ):
                return True
            if "tool_call_id" in message or isinstance(message.get("content"), list) or "function_call" in message:
                return True
    return False


def shape(value: object) -> str:
    if isinstance(value, dict):
        keys = ", ".join(repr(key) for key in list(value)[:5])
        return f"an object with the keys {keys}" if keys else "an empty object"
    return f"a list of {found(value[0])}" if isinstance(value, list) and value else found(value)

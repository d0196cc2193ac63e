"""Messages as JSON: the RedundancyBench form, read and written without loss, and the OpenAI chat form, read only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import orjson

from stepsieve.data.errors import DataError
from stepsieve.data.jsonio import expect, found, leftover, restore
from stepsieve.data.trajectory import Message, ToolCall

ROLES = ("system", "user", "assistant", "tool")
REQUESTORS = ("assistant", "user")
MAX_TEXT = 64 << 20
"""Default limit on the text of one trajectory, in characters."""
MAX_DEPTH = 100
"""Limit on the nesting of a call's arguments: what reads them may recurse."""


def read_messages(value: object, max_text: int = MAX_TEXT) -> tuple[Message, ...]:
    """Messages in RedundancyBench form; positions in the list become message indices.

    Raises:
        DataError: not a list of messages, or more than ``max_text`` characters of text in all.
    """
    return _each(value, read_message, max_text)


def read_chat(value: object, max_text: int = MAX_TEXT) -> tuple[Message, ...]:
    """Messages in OpenAI chat form, RedundancyBench form or a mixture; positions become message indices.

    Only what Stepsieve reads is kept: of further fields ``extra`` holds the recorded ``usage`` alone. Raises DataError
    as :func:`read_messages` does.
    """
    return _each(value, read_chat_message, max_text)


def _each(value: object, read: Callable[[object, str], Message], max_text: int) -> tuple[Message, ...]:
    records = expect(value, list, "a list of messages", "messages")
    if not records:
        raise DataError("expected at least one message, found an empty list", field="messages")
    messages = tuple(read(record, f"messages[{index}]") for index, record in enumerate(records))
    size = sum(len(message.content) for message in messages if message.content)
    if size > max_text:
        raise DataError(f"expected at most {max_text:,} characters of text in one trajectory, found {size:,}")
    return messages


def read_message(record: object, field: str) -> Message:
    """One message; what it holds beyond the known fields goes to ``Message.extra``. Raises DataError."""
    message = _parsed(record, field)
    extra = leftover(cast("dict[str, Any]", record), _written(message))
    return replace(message, extra=extra) if extra else message


def read_chat_message(record: object, field: str) -> Message:
    """One message of an OpenAI chat: calls under ``function``, results under ``tool_call_id``, content as parts.

    A ``developer`` message is a system message, a legacy ``function_call`` a call without an id, and a part that is
    not text (an image, say) stands as ``[its type]``. Raises DataError.
    """
    if not isinstance(record, dict):
        return _parsed(record, field)
    role = _ROLE_NAMES.get(str(record.get("role")), record.get("role"))
    plain = {**record, "role": role, "content": _text_of(record.get("content"), f"{field}.content")}
    if role == "tool":
        error = record.get("error")
        plain["id"] = record.get("tool_call_id", record.get("id"))
        plain["error"] = None if error is None else bool(error)
    else:
        calls = record.get("tool_calls") or ([record["function_call"]] if record.get("function_call") else None)
        plain["tool_calls"] = [_plain_call(call) for call in calls] if isinstance(calls, list) else calls
    message = _parsed(plain, field)
    usage = record.get("usage")
    return replace(message, extra={"usage": usage}) if isinstance(usage, dict) else message


_ROLE_NAMES = {"developer": "system", "function": "tool"}


def _plain_call(call: object) -> object:
    function = call.get("function") if isinstance(call, dict) else None
    return {**call, **function} if isinstance(call, dict) and isinstance(function, dict) else call


def _text_of(content: object, field: str) -> object:
    """Text from a list of content parts, one per line; any other value as it is."""
    if not isinstance(content, list):
        return content
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, str):
            texts.append(part)
        elif not isinstance(part, dict) or not isinstance(kind, str):
            raise DataError(f"expected a content part with a type, found {found(part)}", field=f"{field}[{index}]")
        elif kind in ("tool_use", "tool_result"):
            # To drop these would lose the very steps that are judged; the OpenAI form has them as calls and messages.
            raise DataError(
                f"expected calls in tool_calls and results in tool messages, found a {kind} part",
                field=f"{field}[{index}]",
            )
        else:
            text = part.get("text", part.get("refusal"))
            texts.append(text if isinstance(text, str) else f"[{kind}]")
    return "\n".join(texts)


def _parsed(record: object, field: str) -> Message:
    if not isinstance(record, dict):
        raise DataError(f"expected a message object, found {found(record)}", field=field)
    role = record.get("role")
    if role not in ROLES:
        raise DataError(f"expected one of {', '.join(ROLES)}, found {found(role)}", field=f"{field}.role")
    content = record.get("content")
    if content is not None and not isinstance(content, str):
        raise DataError(f"expected text or null, found {found(content)}", field=f"{field}.content")
    if role == "tool":
        error = record.get("error")
        if error is not None and not isinstance(error, bool):
            raise DataError(f"expected true, false or null, found {found(error)}", field=f"{field}.error")
        return Message("tool", content, (), _id(record, field), _requestor(record, "assistant", field), error)
    calls = record.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise DataError(f"expected a list of calls or null, found {found(calls)}", field=f"{field}.tool_calls")
    return Message(
        role,
        content,
        tuple(_call(call, role, f"{field}.tool_calls[{i}]") for i, call in enumerate(calls or ())),
    )


def _call(record: object, role: str, field: str) -> ToolCall:
    if not isinstance(record, dict):
        raise DataError(f"expected a call object, found {found(record)}", field=field)
    name = record.get("name")
    if not isinstance(name, str):
        raise DataError(f"expected the name of a tool, found {found(name)}", field=f"{field}.name")
    requestor = _requestor(record, "user" if role == "user" else "assistant", field)
    arguments = read_arguments(record.get("arguments"), f"{field}.arguments")
    return ToolCall(name, arguments, _id(record, field), requestor)


def read_arguments(value: object, field: str) -> Mapping[str, Any]:
    """A call's arguments: an object, or JSON text of one.

    What a model wrote that is no JSON object is kept as it stands under the empty key: ``{"": '{"id": '}``. The call
    was made, so it stays comparable with others, and no tool has a parameter of that name. null and "" give ``{}``.

    Raises:
        DataError: nested deeper than ``MAX_DEPTH``.
    """
    arguments = value
    if isinstance(value, str):
        try:
            arguments = orjson.loads(value)
        except orjson.JSONDecodeError:
            arguments = value
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, (dict, list)) and _deeper(arguments, MAX_DEPTH):
        raise DataError(f"expected at most {MAX_DEPTH} levels of nesting", field=field)
    return arguments if isinstance(arguments, dict) else {"": value}


def _id(record: Mapping[str, Any], field: str) -> str | None:
    value = record.get("id")
    if value is not None and not isinstance(value, str):
        raise DataError(f"expected text or null, found {found(value)}", field=f"{field}.id")
    return value


def _requestor(record: Mapping[str, Any], default: str, field: str) -> str:
    value = record.get("requestor", default)
    if value not in REQUESTORS:
        raise DataError(f"expected assistant or user, found {found(value)}", field=f"{field}.requestor")
    return str(value)


def write_message(message: Message) -> dict[str, Any]:
    """The message as JSON: the inverse of :func:`read_message`."""
    written = _written(message)
    return restore(written, message.extra) if message.extra else written


def _written(message: Message) -> dict[str, Any]:
    """The fields that a released message of this kind always has, and an error flag where one is known."""
    if message.role == "tool":
        record: dict[str, Any] = {
            "id": message.call_id,
            "role": "tool",
            "content": message.content,
            "requestor": message.requestor,
        }
        if message.error is not None:
            record["error"] = message.error
        return record
    calls = [
        {"id": call.id, "name": call.name, "arguments": call.arguments, "requestor": call.requestor}
        for call in message.tool_calls
    ]
    return {"role": message.role, "content": message.content, "tool_calls": calls or None}


def _deeper(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        inner = (item for outer in level for item in (outer.values() if isinstance(outer, dict) else outer))
        level = [item for item in inner if isinstance(item, (dict, list))]
        if not level:
            return False
    return True

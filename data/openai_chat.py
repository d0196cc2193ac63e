"""Runs as messages of the OpenAI chat API: what an agent's model was shown, and what it wrote.

The API's rules are stricter than a recording is. Each call has an id of its own, and the message with the calls is
followed at once by one tool message for each. Only the assistant calls tools: calls of the user's side, with their
results, are the user's own affair, which no agent sees, and are left out, as is a message without anything in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepsieve.data.errors import DataError
from stepsieve.data.jsonio import dumps
from stepsieve.data.pruning import Pruned
from stepsieve.data.trajectory import Interaction, Message, ToolCall, Trajectory

Chat = list[dict[str, Any]]


def chat(pruned: Pruned) -> tuple[Chat, list[int | None]]:
    """The messages of a pruned run (with nothing removed: of the run), and the original index of each.

    A policy that no system message states becomes the first message, which has no index.

    Raises:
        DataError: arguments that JSON can't hold.
    """
    run = pruned.trajectory
    answers: dict[int, list[Interaction]] = {}
    for it in run.interactions:
        answers.setdefault(it.call_index, []).append(it)
    messages: Chat = []
    sources: list[int | None] = []
    if run.policy and all(message.role != "system" for message in run.messages):
        messages.append({"role": "system", "content": run.policy})
        sources.append(None)
    for index, message in enumerate(run.messages):
        if message.role == "tool":
            continue
        if message.role == "assistant" and message.tool_calls:
            calls = [_call(call, run) for call in message.tool_calls]
            messages.append({"role": "assistant", "content": message.content, "tool_calls": calls})
            sources.append(pruned.kept[index])
            for it in answers[index]:
                assert it.result_index is not None, "a pruned run has no unanswered call"
                messages.append(_answer(run.messages[it.result_index]))
                sources.append(pruned.kept[it.result_index])
        elif message.content:
            messages.append({"role": message.role, "content": message.content})
            sources.append(pruned.kept[index])
    return messages, sources


def _call(call: ToolCall, run: Trajectory) -> dict[str, Any]:
    # What a model wrote that is no JSON object stands under the empty key.
    whole = call.arguments.get("") if len(call.arguments) == 1 else None
    try:
        arguments = whole if isinstance(whole, str) else dumps(call.arguments).decode().rstrip("\n")
    except DataError as error:
        raise error.at(trajectory=run.id, field=f"arguments of {call.name}") from None
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _answer(message: Message) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": message.call_id, "content": message.content or ""}


def check_chat(messages: Sequence[Mapping[str, Any]]) -> None:
    """The rules that the API refuses a conversation by.

    Raises:
        DataError: naming the message: a tool message that answers no open call of the assistant message before it,
            calls without an answer before the next message, an id that is missing or occurs twice, calls of another
            role, a message with nothing in it.
    """
    seen: set[str] = set()
    waiting: set[str] = set()
    for index, message in enumerate(messages):
        field, role = f"messages[{index}]", message.get("role")
        if role == "tool":
            if message.get("tool_call_id") not in waiting:
                raise DataError("expected an answer to an open call of the assistant message before it", field=field)
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            raise DataError(f"expected answers to {len(waiting)} calls first", field=field)
        calls = message.get("tool_calls")
        if calls and role != "assistant":
            raise DataError(f"expected calls from the assistant alone, found role {role}", field=field)
        if not calls and not message.get("content"):
            raise DataError("expected content or calls", field=field)
        for call in calls or ():
            id = call.get("id")
            if not id or id in seen:
                raise DataError("expected an id for each call that no other has", field=field)
            seen.add(id)
            waiting.add(id)
    if waiting:
        raise DataError(f"expected answers to {len(waiting)} calls at the end", field="messages")

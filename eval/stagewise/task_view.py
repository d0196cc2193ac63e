"""The public view of a task, V = (x, A, I0): all that the making of a milestone graph may see (DynSTEER, section 3.1).

A view has fields for what an agent is told and no other, so no reference, reward or hidden script can travel in one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import orjson
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from stepsieve.data.errors import DataError
from stepsieve.data.jsonio import expect, found
from stepsieve.data.trajectory import ToolCall, Trajectory

Effect = Literal["read", "write", "say"]
EFFECTS: tuple[Effect, ...] = get_args(Effect)
"""What a call does to the records of the environment: looks at them, may change them, or neither (words to someone)."""

ToolKey = tuple[str, str]
"""(requestor, canonical name)."""

_SCHEMA_WORDS = frozenset(
    ("type", "properties", "required", "items", "enum", "additionalProperties", "anyOf", "oneOf", "description")
)
_LOOKS = frozenset(
    ("calculate", "can", "check", "compute", "count", "describe", "estimate", "fetch", "find", "get", "has")
)
_LOOKS |= {"is", "list", "look", "lookup", "query", "read", "search", "show", "validate", "verify", "view"}
"""First words of names of tools that change nothing, where a catalogue does not say what a tool does."""
FREE_TEXT = 5
"""A parameter whose values have so many words on average holds prose, and names no record."""
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array"}


@dataclass(frozen=True)
class Tool:
    """A tool of the catalogue A.

    Attributes:
        name: as it is called.
        parameters: JSON schema of the arguments.
        outputs: declared fields of the result, path -> JSON type; ``items.*.id`` reaches into each item of a list.
        effect: whether it reads records, may write them, or only says something.
        requestor: who can call it, "assistant" or "user".
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    effect: Effect = "write"
    requestor: str = "assistant"

    @property
    def key(self) -> ToolKey:
        return (self.requestor, canonical(self.name))

    @property
    def destructive(self) -> bool:
        """Whether a call can change a record, and so can be a minefield."""
        return self.effect == "write"

    @cached_property
    def _validator(self) -> Draft202012Validator:
        return Draft202012Validator(self.parameters)

    def violation(self, arguments: Mapping[str, Any]) -> str | None:
        """What of its schema the arguments break, in a few words; None where they keep to it."""
        error = next(iter(self._validator.iter_errors(dict(arguments))), None)
        return None if error is None else f"{self.name}: {error.message[:120]}"

    def accepts(self, parameter: str, kind: str) -> bool:
        """Whether a parameter takes values of a JSON type; one without a declared type takes all."""
        schema = self.parameters.get("properties", {}).get(parameter, False)
        if isinstance(schema, bool):
            return schema
        taken = schema.get("type")
        kinds = {taken} if isinstance(taken, str) else set(taken or ())
        return not kinds or kind in kinds or (kind == "integer" and "number" in kinds)


@dataclass(frozen=True)
class TaskView:
    """V = (x, A, I0).

    Attributes:
        instruction: x, what the agent was asked for.
        tools: A, the catalogue.
        policy: the public rules of the domain.
        domain, task_id: which task it is.
    """

    instruction: str
    tools: tuple[Tool, ...]
    policy: str = ""
    domain: str = ""
    task_id: str = ""

    def __post_init__(self) -> None:
        keys = [tool.key for tool in self.tools]
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise DataError(f"expected tools of different names, found {twice[1]!r} twice", field="tools")

    @cached_property
    def by_key(self) -> dict[ToolKey, Tool]:
        return {tool.key: tool for tool in self.tools}

    def tool(self, name: str, requestor: str = "assistant") -> Tool | None:
        """The tool of that name, however it is spelt; None where the catalogue has none."""
        return self.by_key.get((requestor, canonical(name)))

    def violation(self, call: ToolCall) -> str | None:
        """Why a call is ill-formed (arguments that are no JSON object, no such tool, schema); None where it is not."""
        if "" in call.arguments:
            return f"{call.name}: the arguments are no JSON object"
        tool = self.tool(call.name, call.requestor)
        return f"{call.name}: no such tool" if tool is None else tool.violation(call.arguments)


def canonical(name: str) -> str:
    """One spelling of a tool's name: ``getUserDetails``, ``get-user-details`` and ``get_user_details`` are equal."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"[^0-9a-z]+", "_", parted.lower()).strip("_")


def view_of(run: Trajectory, tools: Sequence[Tool]) -> TaskView:
    """The view of a recorded run's task: what its user first said, and the catalogue. Its task record is not read."""
    said = (message.content for message in run.messages if message.role == "user" and message.content)
    return TaskView(next(said, None) or "", tuple(tools), run.policy, run.domain, run.task_id)


# --- the catalogue ---------------------------------------------------------------------------------------------------


def declared(tools: object, requestor: str = "assistant") -> tuple[Tool, ...]:
    """The catalogue that a run brings along: OpenAI or MCP tool definitions.

    ``outputSchema`` gives the fields of the result, ``annotations.readOnlyHint`` (or ``effect``) what a call does.

    Raises:
        DataError: no list of definitions, one without a name, a schema that is none.
    """
    return tuple(
        _declared(record, requestor, f"tools[{place}]")
        for place, record in enumerate(expect(tools, list, "a list of tool definitions", "tools"))
    )


def _declared(record: object, requestor: str, where: str) -> Tool:
    expect(record, dict, "a tool definition", where)
    assert isinstance(record, dict)
    own = expect(record.get("function", record), dict, "a function definition", where)
    name = expect(own.get("name"), str, "a name", f"{where}.name")
    parameters = expect(own.get("parameters", own.get("inputSchema", {})), dict, "a JSON schema", f"{where}.parameters")
    schema = _schema(parameters)
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise DataError(
            f"expected a JSON schema, found an error: {error.message}", field=f"{where}.parameters"
        ) from None
    effect = own.get("effect", record.get("effect"))
    if effect is None:
        hints = own.get("annotations") or record.get("annotations") or {}
        read_only = expect(hints, dict, "an object", f"{where}.annotations").get("readOnlyHint")
        effect = guessed_effect(name) if read_only is None else "read" if read_only else "write"
    if effect not in EFFECTS:
        raise DataError(f"expected one of {', '.join(EFFECTS)}, found {found(effect)}", field=f"{where}.effect")
    output = own.get("outputSchema") or record.get("outputSchema") or {}
    return Tool(name, schema, dict(_output_fields(output)), effect, requestor)


def _schema(value: Any) -> Any:
    """A JSON schema with the words that say what a call may hold, and none beside them."""
    if isinstance(value, list):
        return [_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for word, own in value.items():
        if word == "properties" and isinstance(own, dict):
            kept[word] = {name: _schema(schema) for name, schema in own.items()}
        elif word in _SCHEMA_WORDS:
            kept[word] = own if word in ("enum", "required", "description") else _schema(own)
    return kept


def _output_fields(schema: object, path: str = "") -> Iterable[tuple[str, str]]:
    if not isinstance(schema, dict):
        return
    kind = schema.get("type", "object")
    if path and isinstance(kind, str):
        yield path, kind
    properties = schema.get("properties")
    for name, own in (properties if isinstance(properties, dict) else {}).items():
        yield from _output_fields(own, f"{path}.{name}" if path else name)
    if kind == "array":
        yield from _output_fields(schema.get("items"), f"{path}.*" if path else "*")


def observed(runs: Iterable[Trajectory]) -> tuple[Tool, ...]:
    """A catalogue from what recorded calls show, where no run brings one.

    Names, types of arguments that were accepted, fields of results; a parameter is required that no accepted call
    leaves out. Nothing of a run's outcome, labels or task record is read.
    """
    calls: defaultdict[ToolKey, list[ToolCall]] = defaultdict(list)
    outputs: defaultdict[ToolKey, dict[str, str]] = defaultdict(dict)
    for run in runs:
        for interaction in run.interactions:
            key = (interaction.call.requestor, canonical(interaction.call.name))
            if interaction.result_index is not None and not interaction.error and "" not in interaction.call.arguments:
                calls[key].append(interaction.call)
                outputs[key].update(fields_of(interaction.result))
    return tuple(_observed(calls[key], outputs[key]) for key in sorted(calls))


def _observed(calls: Sequence[ToolCall], outputs: Mapping[str, str]) -> Tool:
    kinds: defaultdict[str, set[str]] = defaultdict(set)
    words: defaultdict[str, list[int]] = defaultdict(list)
    for call in calls:
        for name, value in call.arguments.items():
            kinds[name].add(json_type(value))
            words[name].append(len(value.split()) if isinstance(value, str) else 0)
    schema = {
        "type": "object",
        "properties": {name: {"type": sorted(own)} for name, own in sorted(kinds.items())},
        "required": sorted(name for name in kinds if all(name in call.arguments for call in calls)),
    }
    prose = bool(words) and all(sum(own) / len(own) >= FREE_TEXT for own in words.values())
    effect: Effect = "say" if prose else guessed_effect(calls[0].name)
    return Tool(calls[0].name, schema, dict(outputs), effect, calls[0].requestor)


def guessed_effect(name: str) -> Effect:
    """What a tool does by the first word of its name, for want of a better source; unknown words count as writes."""
    return "read" if canonical(name).partition("_")[0] in _LOOKS else "write"


# --- results ---------------------------------------------------------------------------------------------------------


def json_type(value: object) -> str:
    """The JSON schema type of a value."""
    return _TYPES.get(type(value), "null")


def fields_of(result: str) -> dict[str, str]:
    """The fields of a JSON result, path -> type, items of lists under ``*``; none in any other text."""
    return {path: json_type(value) for path, value in leaves_of(parse_result(result))}


def parse_result(result: str) -> Any:
    """The JSON object or list that a result holds; None for any other text."""
    if result.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return orjson.loads(result)
    except orjson.JSONDecodeError:
        return None


def leaves_of(value: Any, path: str = "") -> Iterable[tuple[str, Any]]:
    """Every field of a JSON value with its path, inner ones too."""
    if path:
        yield path, value
    if isinstance(value, dict):
        for name, own in value.items():
            yield from leaves_of(own, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list):
        for own in value:
            yield from leaves_of(own, f"{path}.*" if path else "*")

"""The milestone graph G = (M, E, K, M_fatal): what it holds, its contract, JSON in and out (DynSTEER, section 3.2).

M are milestones, E precedence, K bindings of a parameter to a field of an earlier milestone's result, M_fatal
minefields: calls that must not be made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

import networkx as nx

from stepsieve.data.errors import DataError
from stepsieve.data.jsonio import expect, found
from stepsieve.data.trajectory import ToolCall
from stepsieve.eval.stagewise.events import Closed
from stepsieve.eval.stagewise.task_view import EFFECTS, TaskView, ToolKey, canonical, json_type, leaves_of, parse_result

ENTRY, END = "s0", "end"
"""The nodes that stand for the beginning and the end of the run in the graph of stages; no milestone has their ids."""


@dataclass(frozen=True)
class Condition:
    """One part of a success condition: an argument or a field of the result holds a value, or is there at all.

    Attributes:
        on, field: where to look; a path as in ``Tool.outputs``.
        equals: the value; None asks only that there is one.
        hard: without it the milestone can't settle, whatever else holds.
        weight: of a soft condition, above 0.
    """

    on: Literal["argument", "output"]
    field: str
    equals: Any = None
    hard: bool = False
    weight: float = 1.0

    def holds(self, call: ToolCall, result: Any) -> bool:
        values = [
            value
            for path, value in leaves_of(call.arguments if self.on == "argument" else result)
            if path == self.field
        ]
        return bool(values) if self.equals is None else any(_same(value, self.equals) for value in values)


def _same(value: Any, other: Any) -> bool:
    """Equal as JSON; texts whatever their case, numbers whatever their spelling."""
    if isinstance(value, str) and isinstance(other, str):
        return value.strip().casefold() == other.strip().casefold()
    if isinstance(value, bool) or isinstance(other, bool) or json_type(value) == json_type(other):
        return bool(value == other)
    return str(value) == str(other)


@dataclass(frozen=True)
class Milestone:
    """A node of M: a call that has to succeed.

    Attributes:
        id: unique in the graph.
        tool: its tool's name; role: what the call is for, one of ``EFFECTS``. Nodes of two graphs are equal where the
            canonical tool and the role are.
        conditions: the success condition beside the call's own success, which is always a hard part of it.
        goal: in words, for a judge.
    """

    id: str
    tool: str
    role: str = "write"
    requestor: str = "assistant"
    conditions: tuple[Condition, ...] = ()
    goal: str = ""

    @property
    def tool_key(self) -> ToolKey:
        return (self.requestor, canonical(self.tool))

    def match(self, closed: Closed) -> float:
        """How well a closed call meets the success condition, in [0, 1]; 0 where a hard part does not hold.

        The weighted share of what holds, the call's own success counting as one condition of weight 1.
        """
        call = closed.call
        if (call.requestor, canonical(call.name)) != self.tool_key or closed.error:
            return 0.0
        result = parse_result(closed.text)
        held = [condition.holds(call, result) for condition in self.conditions]
        if any(condition.hard and not own for condition, own in zip(self.conditions, held, strict=True)):
            return 0.0
        total = 1.0 + sum(condition.weight for condition in self.conditions)
        return (1.0 + sum(c.weight for c, own in zip(self.conditions, held, strict=True) if own)) / total


@dataclass(frozen=True)
class Binding:
    """An element of K: ``parameter`` of ``target`` takes the value of ``field`` in the result of ``source``."""

    target: str
    parameter: str
    source: str
    field: str

    def holds(self, closed: Closed, source_result: str) -> bool:
        """Whether a value of the parameter is one of the field's."""
        given = {str(value) for path, value in leaves_of(closed.call.arguments) if path.split(".")[0] == self.parameter}
        return any(str(value) in given for path, value in leaves_of(parse_result(source_result)) if path == self.field)


@dataclass(frozen=True)
class Minefield:
    """An element of M_fatal: a destructive call that must not be made.

    Attributes:
        tool: its tool's name.
        arguments: values that make it one; empty: any call of the tool.
        severity: how sure it is that the call does harm, in [0, 1].
    """

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    severity: float = 1.0
    requestor: str = "assistant"

    @property
    def tool_key(self) -> ToolKey:
        return (self.requestor, canonical(self.tool))

    def hit(self, call: ToolCall) -> bool:
        """Whether a call steps on it; known before the call has a result."""
        if (call.requestor, canonical(call.name)) != self.tool_key:
            return False
        return all(name in call.arguments and _same(call.arguments[name], v) for name, v in self.arguments.items())


@dataclass(frozen=True)
class MilestoneGraph:
    """G. Make one with :func:`from_dict` or in code, then :meth:`check` it.

    Attributes:
        edges: (earlier, later) ids.
    """

    milestones: tuple[Milestone, ...]
    edges: tuple[tuple[str, str], ...] = ()
    bindings: tuple[Binding, ...] = ()
    minefields: tuple[Minefield, ...] = ()

    @cached_property
    def by_id(self) -> dict[str, Milestone]:
        return {milestone.id: milestone for milestone in self.milestones}

    @cached_property
    def precedence(self) -> nx.DiGraph:
        """E over M."""
        graph = nx.DiGraph()
        graph.add_nodes_from(self.by_id)
        graph.add_edges_from(self.edges)
        return graph

    @cached_property
    def dominators(self) -> dict[str, str]:
        """The immediate dominator of each milestone and of ``END``, from the entry s0 (Lengauer and Tarjan)."""
        flow = self.precedence.copy()
        flow.add_edges_from((ENTRY, node) for node, degree in self.precedence.in_degree() if not degree)
        flow.add_edges_from((node, END) for node, degree in self.precedence.out_degree() if not degree)
        if not self.milestones:
            flow.add_edge(ENTRY, END)
        found = nx.immediate_dominators(flow, ENTRY)
        return {node: found[node] for node in (*self.by_id, END)}

    def check(self, view: TaskView) -> None:
        """The contract. Raises DataError that names the part which breaks it.

        Unique ids, tools and parameters that the catalogue has, well-formed conditions, minefields on destructive
        tools, precedence without cycles and self-loops, bindings from an earlier milestone's declared field to a
        parameter that accepts its type. At least one milestone.
        """
        if not self.milestones:
            raise DataError("expected at least one milestone, found none", field="milestones")
        for place, milestone in enumerate(self.milestones):
            _check_milestone(milestone, view, f"milestones[{place}]")
        if len(self.by_id) < len(self.milestones):
            raise DataError("expected unique ids", field="milestones")
        for place, minefield in enumerate(self.minefields):
            _check_minefield(minefield, view, f"minefields[{place}]")
        self._check_edges()
        for place, binding in enumerate(self.bindings):
            self._check_binding(binding, view, f"bindings[{place}]")

    def _check_edges(self) -> None:
        for place, edge in enumerate(self.edges):
            for node in edge:
                if node not in self.by_id:
                    raise DataError(f"expected the id of a milestone, found {node!r}", field=f"edges[{place}]")
            if edge[0] == edge[1]:
                raise DataError(f"expected two milestones, found {edge[0]!r} before itself", field=f"edges[{place}]")
        if not nx.is_directed_acyclic_graph(self.precedence):
            cycle = " -> ".join(start for start, _ in nx.find_cycle(self.precedence))
            raise DataError(f"expected no cycle, found {cycle}", field="edges")

    def _check_binding(self, binding: Binding, view: TaskView, where: str) -> None:
        for name in (binding.source, binding.target):
            if name not in self.by_id:
                raise DataError(f"expected the id of a milestone, found {name!r}", field=where)
        if binding.source == binding.target or not nx.has_path(self.precedence, binding.source, binding.target):
            raise DataError(f"expected a milestone before {binding.target!r}, found {binding.source!r}", field=where)
        source = view.by_key[self.by_id[binding.source].tool_key]
        target = view.by_key[self.by_id[binding.target].tool_key]
        if binding.field not in source.outputs:
            raise DataError(f"expected a declared field of {source.name}, found {binding.field!r}", field=where)
        kind = source.outputs[binding.field]
        if not target.accepts(binding.parameter, kind) and not target.accepts(binding.parameter, "array"):
            expected = f"expected a parameter of {target.name} that accepts {kind}"
            raise DataError(f"{expected}, found {binding.parameter!r}", field=where)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; :func:`from_dict` gives the graph back."""
        record = asdict(self)
        record["edges"] = [list(edge) for edge in self.edges]
        return {name: list(own) for name, own in record.items()}


def _check_milestone(milestone: Milestone, view: TaskView, where: str) -> None:
    if milestone.id in ("", ENTRY, END):
        raise DataError(f"expected an id other than {milestone.id!r}", field=f"{where}.id")
    if milestone.role not in EFFECTS:
        raise DataError(f"expected one of {', '.join(EFFECTS)}, found {found(milestone.role)}", field=f"{where}.role")
    tool = view.by_key.get(milestone.tool_key)
    if tool is None:
        raise DataError(f"expected a tool of the catalogue, found {milestone.tool!r}", field=f"{where}.tool")
    for number, condition in enumerate(milestone.conditions):
        own = f"{where}.conditions[{number}]"
        if condition.on not in ("argument", "output") or not condition.field:
            raise DataError("expected an argument or an output field", field=own)
        if not condition.weight > 0:
            raise DataError(f"expected a weight above 0, found {condition.weight}", field=own)
        if condition.on == "argument" and condition.field.split(".")[0] not in tool.parameters.get("properties", {}):
            raise DataError(f"expected a parameter of {tool.name}, found {condition.field!r}", field=own)


def _check_minefield(minefield: Minefield, view: TaskView, where: str) -> None:
    tool = view.by_key.get(minefield.tool_key)
    if tool is None or not tool.destructive:
        raise DataError(f"expected an available destructive tool, found {minefield.tool!r}", field=f"{where}.tool")
    if not 0 <= minefield.severity <= 1:
        raise DataError(f"expected a number from 0 to 1, found {minefield.severity}", field=f"{where}.severity")
    for name in minefield.arguments:
        if name not in tool.parameters.get("properties", {}):
            raise DataError(f"expected a parameter of {tool.name}, found {name!r}", field=f"{where}.arguments")


# --- JSON in ---------------------------------------------------------------------------------------------------------

_FIELDS: Mapping[type, Mapping[str, tuple[type | tuple[type, ...], str]]] = {
    Condition: {
        "on": (str, "text"),
        "field": (str, "text"),
        "equals": (object, "a value"),
        "hard": (bool, "true or false"),
        "weight": ((int, float), "a number"),
    },
    Milestone: {
        "id": (str, "text"),
        "tool": (str, "text"),
        "role": (str, "text"),
        "requestor": (str, "text"),
        "conditions": (list, "a list"),
        "goal": (str, "text"),
    },
    Binding: dict.fromkeys(("target", "parameter", "source", "field"), (str, "text")),
    Minefield: {
        "tool": (str, "text"),
        "arguments": (dict, "an object"),
        "severity": ((int, float), "a number"),
        "requestor": (str, "text"),
    },
}
_REQUIRED = {
    Condition: ("on", "field"),
    Milestone: ("id", "tool"),
    Binding: tuple(_FIELDS[Binding]),
    Minefield: ("tool",),
}


def from_dict(record: object) -> MilestoneGraph:
    """A graph from its JSON. Its contract is not checked here: :meth:`MilestoneGraph.check`.

    Raises:
        DataError: another shape, an unknown field, one that is missing or of another type.
    """
    expect(record, dict, "a milestone graph", "graph")
    assert isinstance(record, dict)
    known = ("milestones", "edges", "bindings", "minefields")
    if unknown := [name for name in record if name not in known]:
        raise DataError(f"expected the fields {', '.join(known)}, found {unknown[0]!r}", field="graph")
    return MilestoneGraph(
        tuple(_milestone(own, where) for own, where in _items(record, "milestones")),
        tuple(_edge(own, where) for own, where in _items(record, "edges")),
        tuple(Binding(**_fields(Binding, own, where)) for own, where in _items(record, "bindings")),
        tuple(Minefield(**_fields(Minefield, own, where)) for own, where in _items(record, "minefields")),
    )


def _items(record: Mapping[str, Any], name: str) -> Iterator[tuple[object, str]]:
    for place, own in enumerate(expect(record.get(name, []), list, "a list", name)):
        yield own, f"{name}[{place}]"


def _milestone(record: object, where: str) -> Milestone:
    own = _fields(Milestone, record, where)
    parts = enumerate(own.get("conditions", ()))
    conditions = tuple(Condition(**_fields(Condition, part, f"{where}.conditions[{n}]")) for n, part in parts)
    return Milestone(**{**own, "conditions": conditions})


def _edge(record: object, where: str) -> tuple[str, str]:
    if not (isinstance(record, (list, tuple)) and len(record) == 2 and all(isinstance(node, str) for node in record)):
        raise DataError(f"expected two ids [earlier, later], found {found(record)}", field=where)
    return (record[0], record[1])


def _fields(kind: type, record: object, where: str) -> dict[str, Any]:
    expect(record, dict, "an object", where)
    assert isinstance(record, dict)
    for name, value in record.items():
        if name not in _FIELDS[kind]:
            raise DataError(f"expected the fields {', '.join(_FIELDS[kind])}, found {name!r}", field=where)
        wanted, words = _FIELDS[kind][name]
        if wanted is not object:
            expect(value, wanted, words, f"{where}.{name}")
    if missing := [name for name in _REQUIRED[kind] if name not in record]:
        raise DataError(f"expected the field {missing[0]!r}, found none", field=where)
    return record

"""One graph from several candidates: what a strict majority of the valid ones holds (DynSTEER, section 3.2)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import networkx as nx
import orjson

from stepsieve.data.errors import DataError
from stepsieve.eval.stagewise.graph import Binding, Condition, Milestone, MilestoneGraph, Minefield
from stepsieve.eval.stagewise.task_view import TaskView, ToolKey

NodeKey = tuple[ToolKey, str, int]
"""(canonical tool, role, which of the milestones that are equal in both: 0 for the first)."""
T = TypeVar("T", bound=Hashable)


def majority(count: int) -> int:
    """The least number that is a strict majority of ``count`` candidates: ceil((count + 1) / 2)."""
    return count // 2 + 1


def node_keys(graph: MilestoneGraph) -> dict[str, NodeKey]:
    """What each milestone is compared by, id -> key."""
    seen: Counter[tuple[ToolKey, str]] = Counter()
    keys = {}
    for milestone in graph.milestones:
        kind = (milestone.tool_key, milestone.role)
        keys[milestone.id] = (*kind, seen[kind])
        seen[kind] += 1
    return keys


def valid(candidates: Iterable[MilestoneGraph], view: TaskView) -> tuple[list[MilestoneGraph], list[DataError]]:
    """The candidates that keep the contract, and what is wrong with each other one."""
    kept, problems = [], []
    for place, candidate in enumerate(candidates):
        try:
            candidate.check(view)
            kept.append(candidate)
        except DataError as error:
            problems.append(error.at(field=f"candidates[{place}]"))
    return kept, problems


def consensus(candidates: Sequence[MilestoneGraph], view: TaskView) -> MilestoneGraph:
    """The graph of what ceil((C + 1) / 2) of the C valid candidates hold: nodes, conditions, edges, bindings,
    minefields. Of the precedence the edges stay that no others imply.

    Raises:
        DataError: no candidate is valid, or no milestone is held by a majority. There is no empty graph.
    """
    kept, problems = valid(candidates, view)
    if not kept:
        reason = f"; the first: {problems[0]}" if problems else ""
        raise DataError(f"expected a valid candidate among {len(candidates)}, found none{reason}", field="candidates")
    need = majority(len(kept))
    keys = [node_keys(candidate) for candidate in kept]
    support = Counter(key for own in keys for key in own.values())
    chosen = {key: f"m{place}" for place, key in enumerate(sorted(k for k, count in support.items() if count >= need))}
    if not chosen:
        raise DataError(
            f"expected a milestone that {need} of {len(kept)} candidates hold, found none", field="candidates"
        )

    examples: defaultdict[NodeKey, list[Milestone]] = defaultdict(list)
    for candidate, own in zip(kept, keys, strict=True):
        for milestone in candidate.milestones:
            examples[own[milestone.id]].append(milestone)
    edges = _held(need, [_edges(graph, own, chosen) for graph, own in zip(kept, keys, strict=True)])
    bindings = _held(need, [_bindings(graph, own, chosen) for graph, own in zip(kept, keys, strict=True)])
    precedence = _acyclic(chosen.values(), edges)
    made = MilestoneGraph(
        tuple(_merged(name, examples[key], need) for key, name in chosen.items()),
        tuple(sorted(nx.transitive_reduction(precedence).edges)),
        tuple(binding for binding in bindings if precedence.has_edge(binding.source, binding.target)),
        tuple(_minefields(kept, need)),
    )
    made.check(view)
    return made


def _held(need: int, sets: Sequence[set[T]]) -> list[T]:
    """What so many of the sets hold, in a fixed order."""
    support = Counter(item for own in sets for item in own)
    return sorted((item for item, count in support.items() if count >= need), key=repr)


def _edges(graph: MilestoneGraph, keys: Mapping[str, NodeKey], chosen: Mapping[NodeKey, str]) -> set[tuple[str, str]]:
    """What precedes what in a candidate, implied precedence too, so that a node it alone has does not cut an order."""
    pairs = ((keys[a], keys[b]) for a, b in nx.transitive_closure_dag(graph.precedence).edges)
    return {(chosen[a], chosen[b]) for a, b in pairs if a in chosen and b in chosen}


def _bindings(graph: MilestoneGraph, keys: Mapping[str, NodeKey], chosen: Mapping[NodeKey, str]) -> set[Binding]:
    ends = ((keys[b.target], keys[b.source], b) for b in graph.bindings)
    return {Binding(chosen[t], b.parameter, chosen[s], b.field) for t, s, b in ends if t in chosen and s in chosen}


def _merged(name: str, examples: Sequence[Milestone], need: int) -> Milestone:
    first = examples[0]
    by_key = [{_condition_key(condition): condition for condition in own.conditions} for own in examples]
    held = _held(need, [set(own) for own in by_key])
    conditions = tuple(next(own[key] for own in by_key if key in own) for key in held)
    return Milestone(name, first.tool, first.role, first.requestor, conditions, first.goal)


def _condition_key(condition: Condition) -> tuple[str, str, bytes]:
    return (condition.on, condition.field, orjson.dumps(condition.equals, option=orjson.OPT_SORT_KEYS))


def _minefields(kept: Sequence[MilestoneGraph], need: int) -> list[Minefield]:
    """Those that a majority names, each with the mean of its severities."""
    by_key = [
        {(own.tool_key, orjson.dumps(own.arguments, option=orjson.OPT_SORT_KEYS)): own for own in graph.minefields}
        for graph in kept
    ]
    merged = []
    for key in _held(need, [set(own) for own in by_key]):
        same = [own[key] for own in by_key if key in own]
        severity = sum(own.severity for own in same) / len(same)
        merged.append(Minefield(same[0].tool, same[0].arguments, severity, same[0].requestor))
    return merged


def _acyclic(nodes: Iterable[str], edges: Iterable[tuple[str, str]]) -> nx.DiGraph:
    """Majorities of different candidates can contradict each other: what goes round in a circle is no precedence."""
    graph = nx.DiGraph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(edges)
    for component in nx.strongly_connected_components(graph):
        graph.remove_edges_from([(a, b) for a in component for b in component])
    return graph

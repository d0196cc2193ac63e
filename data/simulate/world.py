"""The world that simulated agents act on: records, versions of every field, tools, and what a tool did.

A *fact* is one field of one record. A read says which facts it told; a write says which it changed, and raises their
version. Whether a look-up was redundant then follows from facts and versions alone (see derive.py).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Fact = tuple[str, str]
"""(record id, field name)."""

RULE = "rule"
"""A breach of a fixed rule of the policy or of a tool, which no message states."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool did.

    Attributes:
        payload: the result, JSON-like; its rendering is the surface's business.
        reads: the facts that the result tells.
        changed: the facts that the call changed; empty for a look-up and for a write that found nothing to change.
        failure: "" or "transient" (the same call can succeed later) or "permanent".
        breach: what made the call wrong: a fact that forbade it, RULE, or None where it was in order.
    """

    payload: Any
    reads: frozenset[Fact] = frozenset()
    changed: frozenset[Fact] = frozenset()
    failure: Literal["", "transient", "permanent"] = ""
    breach: Fact | str | None = None


class World:
    """Records by id. Every field has a version, which a write raises only where the value really changes.

    Where ``brief`` is set, a write answers that it was accepted, not with the record: what it made of the record then
    has to be read again.
    """

    def __init__(self, records: Mapping[str, Mapping[str, Any]], brief: bool = False):
        self.records: dict[str, dict[str, Any]] = {key: dict(record) for key, record in records.items()}
        self.brief = brief
        self.versions: dict[Fact, int] = {}

    def copy(self) -> World:
        """An independent world in the same state, for a replay."""
        other = World(copy.deepcopy(self.records), self.brief)
        other.versions = dict(self.versions)
        return other

    def facts(self, key: str, *names: str) -> frozenset[Fact]:
        """The facts of one record: of the named fields, or of all."""
        return frozenset((key, name) for name in (names or self.records[key]))

    def write(self, key: str, **fields: Any) -> frozenset[Fact]:
        """Set fields of a record, which is made where it is missing; returns the facts that changed."""
        record = self.records.setdefault(key, {})
        changed = frozenset((key, name) for name, value in fields.items() if record.get(name, RULE) != value)
        record.update(fields)
        for name, fact in ((name, (key, name)) for name in fields):
            if fact in changed:
                self.versions[fact] = self.versions[key, f"@{name}"] = self.versions.get(fact, 0) + 1
        return changed

    def seen(self, facts: frozenset[Fact]) -> dict[Fact, int]:
        """The version that each fact has now."""
        return {fact: self.versions.get(fact, 0) for fact in facts}

    def show(self, key: str, *names: str) -> Answer:
        """A look-up of one record, or of some of its fields; a permanent failure where there is no such record."""
        record = self.records.get(key)
        if record is None:
            return Answer(("missing", key), failure="permanent", breach=None)
        payload = {name: record[name] for name in names} if names else dict(record)
        return Answer(payload, self.facts(key, *names))

    def update(self, key: str, **fields: Any) -> Answer:
        """A write that answers with the whole record, or briefly. The same write again changes nothing."""
        changed = self.write(key, **fields)
        if self.brief:
            # Being accepted is a fact of its own: the same write again tells nothing new.
            return Answer({"id": key, "accepted": True}, frozenset((key, f"@{name}") for name in fields), changed)
        return Answer(dict(self.records[key]), self.facts(key), changed)


Tool = Callable[[World, Mapping[str, Any]], Answer]


@dataclass(frozen=True)
class Task:
    """What a user wants, and what of it is true and can be known.

    Attributes:
        id: unique in its domain.
        kind: the sort of task, such as "cancel"; a domain's own word.
        goal: (record id, field, value) triples that hold once the task is done.
        truth: per slot (a variable of the task, such as which object is meant) the right values.
        keys: facts that tell a right value to whoever reads them: fact -> (slot, value).
        refutes: facts that rule a wrong value out: fact -> pairs (slot, value).
        identifiers: slots whose value must never be guessed (a rule of the policy).
        facts: what the scripted user and agent need beside that; the domain's own.
    """

    id: str
    kind: str
    goal: tuple[tuple[str, str, Any], ...]
    truth: Mapping[str, frozenset[str]]
    keys: Mapping[Fact, tuple[str, str]] = field(default_factory=dict)
    refutes: Mapping[Fact, frozenset[tuple[str, str]]] = field(default_factory=dict)
    identifiers: frozenset[str] = frozenset()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def reached(self, world: World) -> bool:
        """Whether the goal state holds."""
        return all(world.records.get(key, {}).get(name) == value for key, name, value in self.goal)

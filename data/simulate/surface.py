"""How a run looks: names of tools and fields, ids, results, wording. Drawn per task or per run, never per label.

A model that learns words from one simulated run finds other words in the next, so that only relations carry over.
"""

from __future__ import annotations

import random
import string
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

_VERBS = {
    "get": ("get", "fetch", "read", "show", "load", "view"),
    "find": ("find", "lookup", "search", "locate", "resolve"),
    "list": ("list", "all", "enumerate"),
    "change": ("update", "set", "modify", "change", "edit"),
    "cancel": ("cancel", "void", "withdraw"),
    "make": ("create", "add", "open", "submit", "issue"),
    "run": ("run", "do", "perform", "exec"),
}
_NOUNS = {
    "account": ("account", "client", "member", "profile", "customer_file"),
    "trip": ("trip", "journey", "ticket", "itinerary", "passage"),
    "order": ("order", "purchase", "sale", "basket", "parcel"),
    "product": ("product", "article", "model", "catalogue_entry"),
    "unit": ("unit", "hub", "gateway", "installation", "site"),
    "tariff": ("tariff", "package", "scheme", "bundle"),
    "bill": ("bill", "invoice", "statement"),
    "usage": ("usage", "consumption", "traffic", "meter"),
    "offers": ("offers", "sailings", "departures", "connections"),
    "handoff": ("handoff", "escalation", "supervisor_ticket", "specialist"),
    "sum": ("sum", "calculator", "arithmetic"),
    "state": ("state", "progress", "tracking"),
}
_FIELDS = {
    "id": ("id", "ref", "key", "code"),
    "name": ("name", "full_name", "holder", "label"),
    "email": ("email", "mail", "e_mail", "contact"),
    "status": ("status", "state", "phase", "condition"),
    "date": ("date", "day", "on", "travel_day"),
    "from": ("from", "origin", "start", "dep"),
    "to": ("to", "destination", "end", "arr"),
    "pay": ("pay_with", "payment", "wallet_item", "charge_to"),
    "summary": ("summary", "note", "reason", "text"),
    "amount": ("amount", "total", "price", "sum_due"),
    "used": ("used", "consumed", "used_gb", "volume"),
    "cap": ("cap", "allowance", "limit_gb", "quota"),
    "extra": ("extra", "bonus_gb", "top_up", "added"),
}
_DETAILS = ("unit.get", "tariff.get", "bill.get")
"""Look-ups that some environments offer as one tool for every kind of record."""
_CASES = ("snake", "camel", "noun_first", "kebab", "dotted", "bare")

_FAULTS = (
    "network timeout, no answer from the server",
    "connection reset by peer",
    "service temporarily unavailable, try again later",
    "upstream busy (503)",
    "rate limit reached, retry in a moment",
    "request timed out after 30 s",
    "server not responding: connection failed",
    "temporary outage of the backend",
    "gateway timeout",
)
_RETRY = (
    "That didn't go through; once more.",
    "The system hiccuped. Trying again.",
    "Encore une fois, le serveur n'a pas répondu.",
    "请稍等，我再查一次。",
    "Einen Moment, ich versuche es noch einmal.",
)
_BESIDE = (
    "One moment.",
    "Let me have a look.",
    "I'll check that for you now.",
    "Checking the records.",
    "Un instant, je regarde cela.",
    "好的，我来看一下。",
    "Thanks. I'm opening the file to see what it says.",
    "Let me see what we have on this before I say more.",
)


class Surface:
    """The look of one run.

    Args:
        task_rng: decides what belongs to the environment, so that all runs of a task share names and formats.
        run_rng: decides what belongs to the run: verbosity, call ids, text beside calls.

    ``flagged`` says whether tool messages carry an error flag, ``silence`` is the content of a call without text.
    """

    def __init__(self, task_rng: random.Random, run_rng: random.Random):
        self.rng = run_rng
        self._case = task_rng.choice(_CASES)
        self._words = {key: task_rng.choice(words) for table in (_VERBS, _NOUNS) for key, words in table.items()}
        self._fields = {key: task_rng.choice(words) for key, words in _FIELDS.items()}
        self._fields_camel = self._case == "camel" and task_rng.random() < 0.7
        self._style = task_rng.choice(("json", "json", "json", "wrapped", "lines"))
        self.flagged = run_rng.random() < 0.7
        self._fault_json = task_rng.random() < 0.6
        self._ids = run_rng.choice(("unique", "unique", "by_call", "cycle", "none"))
        self.silence: str | None = run_rng.choice(("", "", None))
        self._beside = run_rng.choice((0.0, 0.0, 0.05, 0.1, 0.3, 0.8))
        self._counter = 0
        self._one_tool = task_rng.random() < 0.6
        self._tools: dict[str, str] = {}

    def tool(self, name: str) -> str:
        """The run's name of a canonical tool such as ``order.get`` or ``account.find.email``."""
        if self._one_tool and name in _DETAILS:
            name = "record.get.details"
        if name not in self._tools:
            noun, verb, *rest = name.split(".")
            by = [f"by_{part}" if verb == "find" else part for part in rest]
            self._tools[name] = self._join(self._words.get(verb, verb), self._words.get(noun, noun), by)
        return self._tools[name]

    def _join(self, verb: str, noun: str, rest: list[str]) -> str:
        if self._case == "dotted":
            return ".".join([noun, "_".join([verb, *rest])])
        if self._case == "bare":
            return "_".join([noun, *rest]) if verb in _VERBS["get"] and not rest else "_".join([verb, noun, *rest])
        parts = [noun, verb, *rest] if self._case == "noun_first" else [verb, noun, *rest]
        if self._case == "camel":
            return _camel("_".join(parts))
        return ("-" if self._case == "kebab" else "_").join(parts)

    def field(self, name: str) -> str:
        """The run's name of an argument or a result field."""
        name = self._fields.get(name, name)
        return _camel(name) if self._fields_camel else name

    def arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A call's arguments under the run's names."""
        return {self.field(key): self._rename(value) for key, value in arguments.items()}

    def _rename(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self.field(key): self._rename(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._rename(item) for item in value]
        return value

    def result(self, payload: Any) -> str:
        """A successful result as text."""
        value = self._rename(payload)
        if isinstance(value, str):
            return value
        if self._style == "wrapped":
            value = {"ok": True, "data": value}
        elif self._style == "lines":
            return _lines(value)
        return orjson.dumps(value).decode()

    def fault(self, rng: random.Random) -> str:
        """The text of a transient fault, readable as an error without a flag."""
        reason = rng.choice(_FAULTS)
        if self._fault_json:
            return orjson.dumps({"error": reason[0].upper() + reason[1:], "status": "failed"}).decode()
        return f"Error: {reason}"

    def refusal(self, reason: str) -> str:
        """The text of a permanent failure, in the same shape as a fault."""
        if self._fault_json and self._style != "lines":
            return orjson.dumps({"error": reason}).decode()
        return f"Error: {reason}"

    def call_id(self, key: str) -> str | None:
        """An id for the next call; ``key`` names the call, so that equal calls can share one."""
        self._counter += 1
        if self._ids == "none":
            return None
        if self._ids == "by_call":
            return f"tc_{abs(_hash(key)) % 10**8:08d}"
        if self._ids == "cycle":
            return f"call{self._counter % 5}"
        return f"call_{self._counter:03d}"

    def beside(self, again: bool = False) -> str:
        """Text beside a call, or "". ``again`` where the agent repeats a call that failed."""
        if self.rng.random() >= self._beside:
            return ""
        return self.rng.choice(_RETRY if again and self.rng.random() < 0.5 else _BESIDE)


def _lines(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key}: {_inline(item)}" for key, item in value.items())
    if isinstance(value, list):
        return "\n".join(f"- {_inline(item)}" for item in value) or "nothing found"
    return str(value)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}={_inline(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(_inline(item) for item in value) or "none"
    return "yes" if value is True else "no" if value is False else str(value)


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def _hash(text: str) -> int:
    """A hash that is the same in every process."""
    value = 5381
    for char in text:
        value = (value * 33 + ord(char)) & 0xFFFFFFFF
    return value


def make_id(rng: random.Random, style: int) -> str:
    """A fresh identifier: one of five formats by ``style``."""
    digits, letters = string.digits, string.ascii_uppercase
    if style == 0:
        return "".join(rng.choices(letters + digits, k=6))
    if style == 1:
        return "#" + rng.choice("KTV") + "".join(rng.choices(digits, k=7))
    if style == 2:
        return f"{rng.choice(letters)}{rng.choice(letters)}-{rng.randint(10000, 99999)}"
    if style == 3:
        return "".join(rng.choices(digits, k=10))
    return f"{rng.choice(('x', 'n', 'z'))}_{rng.randint(1000, 9999)}"


def fresh_ids(rng: random.Random, count: int, style: int | None = None) -> list[str]:
    """Distinct identifiers of one format."""
    style = rng.randrange(5) if style is None else style
    found: dict[str, None] = {}
    while len(found) < count:
        found[make_id(rng, style)] = None
    return list(found)


def phrase(rng: random.Random, options: Sequence[str], **values: object) -> str:
    """One of several wordings with its places filled."""
    return rng.choice(options).format(**values)

"""What judges take for 1,000 trajectories: tokens, seconds and dollars, as far as their files tell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

from stepsieve.data.errors import DataError
from stepsieve.data.jsonio import loads
from stepsieve.eval.results import Predictions
from stepsieve.eval.scores import Items

FILE = re.compile(r"(?P<task>cls|ret|det)-(?P<split>[a-z-]+)-(?P<backend>[a-z]+)")
"""The name of a file of held-out predictions of a training run."""
_THOUSAND = 1000.0


@dataclass(frozen=True)
class Cost:
    """What a judge takes for 1,000 trajectories; None where it isn't known.

    Attributes:
        tokens: of prompts and replies. seconds: of requests, or of a core. dollars: US dollars.
    """

    tokens: float | None = None
    seconds: float | None = None
    dollars: float | None = None

    def plus(self, other: Cost, share: float) -> Cost:
        """With a share of another's; what is not known of either is not known of both."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in ("tokens", "seconds", "dollars"))
        return Cost(*(None if a is None or b is None else a + share * b for a, b in pairs))


PUBLISHED_COSTS = {
    "Jev": Cost(None, 13 * 60 / 1.92, 0.81 / 1.92),
    "DeepSeek-V4.1-flash": Cost(None, 53 * 60 / 1.92, None),
    "Claude-Opus-5": Cost(None, (10 * 60 + 31) * 60 / 1.92, 212.82 / 1.92),
}
"""StepCls of all 1,920 trajectories, as published with RedundancyBench: minutes and dollars."""


def cost_of(predictions: Predictions, items: Items, hour: float) -> Cost:
    """What a judge takes, from what its file says, or what its training run wrote beside it.

    Args:
        items: all units that it answers. hour: dollars for an hour of the machine.
    """
    thousands = len({run.id for run in items.runs}) / _THOUSAND
    usage = predictions.metadata.get("usage")
    if isinstance(usage, Mapping):
        prompt, reply, seconds, dollars = (
            _number(usage, name) for name in ("prompt", "completion", "seconds", "dollars")
        )
        tokens = None if prompt is None or reply is None else prompt + reply
        return Cost(*(None if value is None else value / thousands for value in (tokens, seconds, dollars)))
    rate = _rate(Path(predictions.file))
    if rate is None:
        return Cost()
    answers = len(items) if items.labels else sum(len(run.steps) for run in items.runs)
    seconds = answers / rate / thousands
    return Cost(0, seconds, seconds / 3600 * hour)


def _rate(path: Path) -> float | None:
    """Answers per second of a model of ours, from ``costs.json`` of its training run."""
    named, costs = FILE.fullmatch(path.stem), path.parent.parent / "costs.json"
    if named is None or not costs.exists():
        return None
    try:
        return float(loads(costs.read_bytes())[named["split"]][named["backend"]]["answers_per_s"][named["task"]])
    except (DataError, KeyError, TypeError, ValueError):
        return None


def _number(usage: Mapping[str, object], name: str) -> float | None:
    value = usage.get(name)
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else None

"""Which tier judges which dimension of the next stage (DynSTEER, section 3.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from stepsieve.eval.stagewise.scoring import DIMENSIONS, Dimension, Verdicts
from stepsieve.eval.stagewise.settings import Settings


class Tier(IntEnum):
    """The judges, cheapest first."""

    CHEAP = 1
    STANDARD = 2
    EXPENSIVE = 3

    @property
    def above(self) -> Tier:
        return Tier(min(self + 1, Tier.EXPENSIVE))


@dataclass(frozen=True)
class Routing:
    """The base tier, and the tier of each dimension."""

    base: Tier
    tiers: Mapping[Dimension, Tier]


START = Routing(Tier.STANDARD, dict.fromkeys(DIMENSIONS, Tier.STANDARD))
"""Before anything is known of a run."""
CHEAP = Routing(Tier.CHEAP, dict.fromkeys(DIMENSIONS, Tier.CHEAP))


def route(score: float, verdicts: Verdicts, fatal_hit: bool, settings: Settings) -> Routing:
    """The tiers of the next stage, from the score S and the verdicts of the last one.

    Base: cheap where S >= pass + margin, no u_d above its limit and no fatal minefield was hit; else standard. A
    dimension: expensive where s_d < 0.40; one tier above the base where s_d < 0.60 or u_d >= 0.45; else the base.
    """
    own = settings.policy
    uncertainty = max((verdict.uncertainty for verdict in verdicts.values()), default=0.0)
    # Sums of decimal thresholds are off by rounding: 0.80 + 0.05 is less than 0.85 to a float, 1 - 0.55 more than 0.45.
    confident = (
        round(score - settings.pass_threshold - own.confident_margin, 9) >= 0
        and round(uncertainty - own.confident_uncertainty, 9) <= 0
        and not fatal_hit
    )
    base = Tier.CHEAP if confident else Tier.STANDARD
    tiers = dict.fromkeys(DIMENSIONS, base)
    for name, verdict in verdicts.items():
        if verdict.score < own.expensive_below:
            tiers[name] = Tier.EXPENSIVE
        elif verdict.score < own.raise_below or round(verdict.uncertainty - own.raise_uncertainty, 9) >= 0:
            tiers[name] = base.above
    return Routing(base, tiers)

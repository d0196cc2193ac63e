"""The score of a stage, the weights, the tiers of the next stage: numbers worked out by hand."""

import math

import pytest

from stepsieve.eval.stagewise.policy import Tier, route
from stepsieve.eval.stagewise.scoring import EQUAL, Verdict, as_released, run_score, stage_score, update_weights
from stepsieve.eval.stagewise.settings import Settings

NAMES = ("correctness", "efficiency", "safety", "compliance")


def verdicts(*scores, confidence=(1.0, 1.0, 1.0, 1.0)):
    return {name: Verdict(score, sure) for name, score, sure in zip(NAMES, scores, confidence, strict=True)}


def test_the_score_of_a_stage():
    weights = dict(zip(NAMES, (0.4, 0.3, 0.2, 0.1), strict=True))
    assert stage_score(verdicts(1.0, 0.5, 0.0, 1.0), weights) == pytest.approx(0.4 + 0.15 + 0.0 + 0.1)
    # Of two dimensions the weights count by their own sum: (0.4 * 1 + 0.2 * 0) / 0.6.
    assert stage_score({"correctness": Verdict(1, 1), "safety": Verdict(0, 1)}, weights) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="at least one dimension"):
        stage_score({}, weights)


def test_weights_grow_with_low_scores_and_uncertainty():
    # 1 - s + u: correctness 0, efficiency 1, safety ln 2 by its score, compliance ln 3 by its uncertainty.
    made = update_weights(
        EQUAL,
        verdicts(1.0, 0.5, 1 - math.log(2), 1.0, confidence=(1.0, 0.5, 1.0, 2 - math.log(3))),
    )
    # exp: 1, e, 2, and exp(ln 3 - 1) = 3 / e.
    total = 1 + math.e + 2 + 3 / math.e
    assert [made[name] for name in NAMES] == pytest.approx([1 / total, math.e / total, 2 / total, 3 / math.e / total])
    assert sum(made.values()) == pytest.approx(1)


def test_alpha_weighs_the_score_and_beta_the_uncertainty():
    own = verdicts(0.0, 1.0, 1.0, 1.0, confidence=(1.0, 0.0, 1.0, 1.0))
    grown = 0.25 * math.e**2
    made = update_weights(EQUAL, own, alpha=2.0, beta=0.0)
    assert made["correctness"] == pytest.approx(grown / (grown + 0.75))
    assert made["efficiency"] == made["safety"]
    made = update_weights(EQUAL, own, alpha=0.0, beta=2.0)
    assert made["efficiency"] == pytest.approx(grown / (grown + 0.75))
    assert made["correctness"] == made["safety"]


def test_what_was_not_judged_keeps_its_factor():
    made = update_weights(EQUAL, {"safety": Verdict(0.0, 1.0)})
    assert made["safety"] == pytest.approx(math.e / (math.e + 3))
    assert made["correctness"] == pytest.approx(1 / (math.e + 3))


def test_the_score_of_a_run():
    assert run_score([1.0, 0.5, 0.6]) == pytest.approx(0.7)
    assert run_score([1.0, 0.5, 0.6], fatal_severity=0.95) == pytest.approx(0.035)
    assert run_score([]) == 0.0


HIGH = (0.9, 0.9, 0.9, 0.9)
SURE = (0.8, 0.9, 1.0, 0.8)


@pytest.mark.parametrize(
    ("score", "confidence", "fatal", "base"),
    [
        (0.85, SURE, False, Tier.CHEAP),  # S >= 0.80 + 0.05, max u = 0.20
        (0.849, SURE, False, Tier.STANDARD),
        (0.85, (0.79, 1, 1, 1), False, Tier.STANDARD),  # max u = 0.21
        (1.0, (1, 1, 1, 1), True, Tier.STANDARD),
    ],
)
def test_the_base_tier(score, confidence, fatal, base):
    made = route(score, verdicts(*HIGH, confidence=confidence), fatal, Settings())
    assert made.base is base
    assert set(made.tiers.values()) == {base}


def test_the_tier_of_each_dimension_from_a_standard_base():
    own = verdicts(0.39, 0.40, 0.59, 0.60, confidence=(1.0, 1.0, 1.0, 1.0))
    made = route(0.5, own, False, Settings())
    assert [made.tiers[name] for name in NAMES] == [Tier.EXPENSIVE, Tier.EXPENSIVE, Tier.EXPENSIVE, Tier.STANDARD]
    own = verdicts(0.9, 0.9, 0.9, 0.9, confidence=(0.55, 0.56, 1.0, 1.0))
    made = route(0.9, own, False, Settings())
    assert [made.tiers[name] for name in NAMES] == [Tier.EXPENSIVE, Tier.STANDARD, Tier.STANDARD, Tier.STANDARD]


def test_the_tier_of_each_dimension_from_a_cheap_base():
    made = route(0.9, verdicts(0.39, 0.59, 0.60, 1.0), False, Settings())
    assert made.base is Tier.CHEAP
    assert [made.tiers[name] for name in NAMES] == [Tier.EXPENSIVE, Tier.STANDARD, Tier.CHEAP, Tier.CHEAP]


def test_a_dimension_that_was_not_judged_goes_to_the_base():
    made = route(0.5, {"safety": Verdict(0.1, 1.0)}, False, Settings())
    assert (made.tiers["safety"], made.tiers["correctness"]) == (Tier.EXPENSIVE, Tier.STANDARD)


def test_the_seven_dimensions_of_the_released_program():
    made = as_released(verdicts(0.1, 0.2, 0.3, 0.4, confidence=(0.9, 0.8, 0.7, 0.1)))
    assert {name: (own.score, own.confidence) for name, own in made.items()} == {
        "progress": (0.1, 0.9),
        "state_consistency": (0.1, 0.9),
        "tool_quality": (0.4, 0.1),
        "efficiency": (0.2, 0.8),
        "safety": (0.3, 0.7),
        "interaction_quality": (0.4, 0.1),
        "recovery": (0.2, 0.25),
    }
    assert set(as_released({"safety": Verdict(1, 1)})) == {"safety"}

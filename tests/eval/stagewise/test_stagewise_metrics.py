"""Metrics by hand."""

import math
from collections import Counter
from dataclasses import replace

import networkx as nx
import pytest

from stepsieve.eval.stagewise import metrics
from stepsieve.eval.stagewise.policy import Tier
from stepsieve.eval.stagewise.reviewer import Report, Scored
from stepsieve.eval.stagewise.scoring import Verdict
from stepsieve.eval.stagewise.stops import Saved, Stop

MEANS = {"a": 0.5, "b": 0.6, "c": 0.7}


def test_discriminability():
    # Mean 0.6, population deviation sqrt(0.02 / 3).
    spread = math.sqrt(0.02 / 3) / 0.6
    assert metrics.discriminability(MEANS, 0.05) == pytest.approx(spread)
    # 0.6 - 0.5 is no more than 0.1: one pair of three is left.
    assert metrics.separated(MEANS, 0.1) == [("a", "c")]
    assert metrics.discriminability(MEANS, 0.1) == pytest.approx(spread / 3)
    assert metrics.discriminability(MEANS, 0.2) == 0.0
    assert metrics.discriminability({"a": 1.0, "b": 1.0}, 0.0) == 0.0
    assert metrics.discriminability({"a": 0.0, "b": 0.0}, 0.0) == 0.0
    assert math.isnan(metrics.discriminability({"a": 1.0}, 0.0))


def test_paired_wilcoxon_takes_the_tasks_that_both_ran():
    a = {f"t{number}": 0.5 + 0.01 * number for number in range(6)}
    b = {**dict.fromkeys(a, 0.2), "other": 1.0}
    found = metrics.paired_wilcoxon(a, b)
    # All six differences are positive: p = 2 / 2^6.
    assert (found.tasks, found.p_value) == (6, pytest.approx(2 / 64))
    assert found.difference == pytest.approx(0.325)
    assert metrics.paired_wilcoxon(a, a).p_value == 1.0
    assert metrics.paired_wilcoxon(a, {"other": 1.0}).tasks == 0


def test_rank_agreement():
    assert metrics.rank_agreement(MEANS, {"a": 1, "b": 2, "c": 3}) == 1.0
    assert metrics.rank_agreement(MEANS, {"a": 3, "b": 2, "c": 1}) == -1.0
    assert metrics.rank_agreement(MEANS, {"a": 2, "b": 1, "c": 3}) == pytest.approx(1 / 3)
    assert math.isnan(metrics.rank_agreement(MEANS, dict.fromkeys(MEANS, 1.0)))


def scored(step, tier=Tier.CHEAP, **verdicts):
    return Scored("m", "s0", 1, step, 0.5, verdicts, {}, dict.fromkeys(verdicts, tier))


REPORT = Report(0.5, 0.5, (), None, 6, 20, ())
STOPPED = replace(REPORT, actions=4, stop=Stop("quality", 9, "s0", "safety", "low", Saved(6, 100)))


def test_stops_and_what_they_save():
    assert metrics.stop_rate([REPORT, STOPPED, REPORT, REPORT]) == 0.25
    assert metrics.saved([REPORT, STOPPED]) == (6, 100, 0.6)
    assert metrics.saved([REPORT]) == (0, 0, 0.0)
    assert math.isnan(metrics.stop_rate([]))


def test_the_first_error_is_the_first_step_a_low_verdict_rests_on():
    stages = (
        scored(8, safety=Verdict(0.9, 1, steps=(2,)), efficiency=Verdict(0.5, 1, steps=(6, 7))),
        scored(14, safety=Verdict(0.1, 1, steps=(4, 12)), correctness=Verdict(0.2, 1)),
    )
    report = replace(REPORT, stages=stages)
    assert metrics.first_error(report, 0.8) == 4
    assert metrics.first_error(report, 0.15) == 4
    assert metrics.first_error(replace(REPORT, stages=stages[:1]), 0.8) == 6
    assert metrics.first_error(replace(REPORT, stages=stages[:1]), 0.5) is None
    assert metrics.first_error(replace(REPORT, stages=(scored(14, correctness=Verdict(0.2, 1)),)), 0.5) == 14
    assert metrics.first_error_accuracy([4, 6, None, None, 3], [4, 8, None, 2, None]) == 0.4
    assert metrics.first_error_accuracy([4, 6, None, None, 3], [4, 8, None, 2, None], within=2) == 0.6


def test_overlaps_of_operations():
    a, b, c = (("assistant", name) for name in "abc")
    one = metrics.overlap(Counter({a: 2, b: 1}), Counter({a: 1, c: 1}))
    assert (one.precision, one.recall, one.f1) == (pytest.approx(1 / 3), 0.5, pytest.approx(0.4))
    two = metrics.overlap(Counter({a: 1}), Counter({a: 1}))
    together = metrics.micro([one, two])
    assert (together.common, together.precision, together.recall) == (2, 0.5, pytest.approx(2 / 3))
    assert metrics.macro_f1([one, two]) == pytest.approx(0.7)
    nothing = metrics.overlap(Counter(), Counter())
    assert (nothing.precision, nothing.recall, nothing.f1) == (1.0, 1.0, 1.0)
    assert metrics.overlap(Counter({a: 1}), Counter()).f1 == 0.0


def labelled(tools, edges=()):
    graph = nx.DiGraph()
    graph.add_nodes_from((place, {"tool": tool}) for place, tool in enumerate(tools))
    graph.add_edges_from(edges)
    return graph


def test_ged_similarity():
    chain = labelled("ab", [(0, 1)])
    assert metrics.ged_similarity(chain, chain) == 1.0
    # An edge of 3 + 2 parts is deleted.
    assert metrics.ged_similarity(chain, labelled("ab")) == pytest.approx(1 - 1 / 5)
    # A node is renamed.
    assert metrics.ged_similarity(chain, labelled("ac", [(0, 1)])) == pytest.approx(1 - 1 / 6)
    assert metrics.ged_similarity(labelled(""), labelled("ab")) == 0.0
    assert metrics.ged_similarity(labelled(""), labelled("")) == 1.0


def test_precedence_of_what_counts_goes_through_what_does_not(desk):
    graph = desk.chain("a", "x", "b", "c", edges=[("a", "x"), ("x", "b"), ("b", "c"), ("a", "c")])
    made = metrics.as_labelled(graph, lambda key: key[1] != "x")
    assert set(made.edges) == {("a", "b"), ("b", "c")}
    assert made.nodes["a"]["tool"] == ("assistant", "a")
    assert metrics.operations(graph, lambda key: key[1] in "ab").total() == 2

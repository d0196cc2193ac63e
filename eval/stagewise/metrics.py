"""Metrics of the evaluation itself: what it tells apart, what it saves, what it costs, how good its graphs are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import networkx as nx
import numpy as np
from scipy.stats import kendalltau, wilcoxon

from stepsieve.eval.stagewise.graph import MilestoneGraph
from stepsieve.eval.stagewise.reviewer import Report
from stepsieve.eval.stagewise.task_view import ToolKey

EPSILONS = (0.01, 0.02, 0.03, 0.05)
"""The margins at which the paper tells agents apart."""

# --- agents ----------------------------------------------------------------------------------------------------------


def separated(means: Mapping[str, float], epsilon: float) -> list[tuple[str, str]]:
    """The pairs of agents whose means differ by more than epsilon."""
    # A float's rounding is no difference.
    return [(a, b) for a, b in combinations(sorted(means), 2) if abs(means[a] - means[b]) - epsilon > 1e-12]


def discriminability(means: Mapping[str, float], epsilon: float) -> float:
    """DS(eps) = (sigma_pop / mu) x the share of pairs of agents whose means differ by more than eps.

    0 where all means are 0. NaN for fewer than two agents. (The released program takes the square root of the share.)
    """
    values = np.array(list(means.values()))
    if len(values) < 2:
        return math.nan
    mu = float(values.mean())
    pairs = len(values) * (len(values) - 1) / 2
    return float(values.std()) / mu * len(separated(means, epsilon)) / pairs if mu else 0.0


@dataclass(frozen=True)
class Paired:
    """Two agents on the tasks that both ran: how many, the mean difference, and Wilcoxon's two-sided p-value."""

    tasks: int
    difference: float
    p_value: float


def paired_wilcoxon(a: Mapping[str, float], b: Mapping[str, float]) -> Paired:
    """Wilcoxon's signed-rank test on the scores of two agents by task; exact for few tasks without ties.

    p is 1 where no task tells them apart, NaN in ``difference`` where they share none.
    """
    shared = sorted(a.keys() & b.keys())
    differences = np.array([a[task] - b[task] for task in shared])
    if not len(differences):
        return Paired(0, math.nan, 1.0)
    # Differences that only rounding makes are ties.
    differences[np.abs(differences) < 1e-12] = 0.0
    p_value = float(wilcoxon(differences).pvalue) if differences.any() else 1.0
    return Paired(len(shared), float(differences.mean()), p_value)


def rank_agreement(a: Mapping[str, float], b: Mapping[str, float]) -> float:
    """Kendall's tau-b of two orders of the same agents, in [-1, 1]; NaN where one of them orders nothing."""
    names = sorted(a.keys() & b.keys())
    return float(kendalltau([a[name] for name in names], [b[name] for name in names]).statistic)


# --- stops and costs -------------------------------------------------------------------------------------------------


def stop_rate(reports: Sequence[Report]) -> float:
    """The share of runs that were stopped; NaN of none."""
    return sum(report.stop is not None for report in reports) / len(reports) if reports else math.nan


def saved(reports: Sequence[Report]) -> tuple[int, int, float]:
    """Over all runs: closed actions and tokens that stops saved, and the share of the stopped runs' actions."""
    stopped = [(report.actions, report.stop.saved) for report in reports if report.stop and report.stop.saved]
    actions = sum(own.actions for _, own in stopped)
    total = actions + sum(done for done, _ in stopped)
    return actions, sum(own.tokens for _, own in stopped), actions / total if total else 0.0


def first_error(report: Report, below: float) -> int | None:
    """The first message index that a verdict below a score rests on, as the run went; None where all are above."""
    found = [
        min(verdict.steps, default=stage.step)
        for stage in report.stages
        for verdict in stage.verdicts.values()
        if verdict.score < below
    ]
    return min(found, default=None)


def first_error_accuracy(predicted: Sequence[int | None], reference: Sequence[int | None], within: int = 0) -> float:
    """The share of runs whose first error is found: none where there is none, else at most ``within`` messages off."""
    hits = [
        p is None if r is None else p is not None and abs(p - r) <= within
        for p, r in zip(predicted, reference, strict=True)
    ]
    return sum(hits) / len(hits) if hits else math.nan


# --- graphs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Overlap:
    """Precision, recall and F1 of sets or multisets, each in [0, 1]; of two empty ones all are 1."""

    common: int
    predicted: int
    expected: int

    @property
    def precision(self) -> float:
        return self.common / self.predicted if self.predicted else float(not self.expected)

    @property
    def recall(self) -> float:
        return self.common / self.expected if self.expected else float(not self.predicted)

    @property
    def f1(self) -> float:
        total = self.predicted + self.expected
        return 2 * self.common / total if total else 1.0

    def __add__(self, other: Overlap) -> Overlap:
        return Overlap(self.common + other.common, self.predicted + other.predicted, self.expected + other.expected)


def overlap(predicted: Counter[ToolKey], expected: Counter[ToolKey]) -> Overlap:
    """How much two multisets of operations share."""
    return Overlap((predicted & expected).total(), predicted.total(), expected.total())


def micro(overlaps: Sequence[Overlap]) -> Overlap:
    """All graphs as one: what their operations share together."""
    return sum(overlaps, Overlap(0, 0, 0))


def macro_f1(overlaps: Sequence[Overlap]) -> float:
    """The mean F1 of the graphs; NaN of none."""
    return float(np.mean([own.f1 for own in overlaps])) if overlaps else math.nan


def operations(graph: MilestoneGraph, counted: Callable[[ToolKey], bool]) -> Counter[ToolKey]:
    """The operations of a graph: how often each tool that counts is a milestone."""
    return Counter(own.tool_key for own in graph.milestones if counted(own.tool_key))


def ged_similarity(graph: nx.DiGraph, reference: nx.DiGraph, timeout: float = 1.0) -> float:
    """1 - GED / (what it takes to delete the one and insert the other), in [0, 1]; nodes equal by attribute ``tool``.

    The graph edit distance is exact where the search ends within the time limit, else the best bound by then.
    """
    size = sum(len(own) + own.number_of_edges() for own in (graph, reference))
    if not size:
        return 1.0
    distance = nx.graph_edit_distance(graph, reference, node_match=lambda a, b: a["tool"] == b["tool"], timeout=timeout)
    # No bound at all within the limit: nothing is known to be shared.
    return 1.0 - min(size, distance if distance is not None else size) / size


def as_labelled(graph: MilestoneGraph, counted: Callable[[ToolKey], bool]) -> nx.DiGraph:
    """The precedence of the milestones that count, through others too, reduced; nodes with attribute ``tool``."""
    kept = [own for own in graph.milestones if counted(own.tool_key)]
    closure = nx.transitive_closure_dag(graph.precedence).subgraph([own.id for own in kept])
    made = nx.transitive_reduction(closure)
    nx.set_node_attributes(made, {own.id: own.tool_key for own in kept}, "tool")
    return made

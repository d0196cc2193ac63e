"""The review of a corpus: reports, what they say of each agent, tables."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
from rich.table import Table

from stepsieve.eval.stagewise import metrics
from stepsieve.eval.stagewise.corpus import Case
from stepsieve.eval.stagewise.judges import Ladder
from stepsieve.eval.stagewise.reviewer import Report, replay
from stepsieve.eval.stagewise.scoring import DIMENSIONS
from stepsieve.eval.stagewise.settings import Settings

UNKNOWN = "(unknown)"
"""Where a run counts whose agent is not recorded: no agent of its own, and in no comparison of agents."""


@dataclass(frozen=True)
class Reviewed:
    """A case and its report; None where there was no graph."""

    case: Case
    report: Report | None

    def to_dict(self) -> dict[str, Any]:
        """A line of runs.jsonl."""
        run, graph = self.case.run, self.case.graph
        report = (
            {"report": None, "reason": self.case.reason} if self.report is None else {"report": self.report.to_dict()}
        )
        return {
            "trajectory_id": run.id,
            "domain": run.domain,
            "task_id": run.task_id,
            "agent": run.agent,
            "outcome": run.outcome,
            "graph": None if graph is None else graph.to_dict(),
            **report,
        }


def review(cases: Sequence[Case], judges: Ladder, settings: Settings) -> list[Reviewed]:
    """Each case that has a graph, replayed."""
    return [
        Reviewed(case, None if case.graph is None else replay(case.run, case.graph, judges, case.view, settings))
        for case in cases
    ]


def scores_by_task(reviewed: Sequence[Reviewed]) -> dict[str, dict[str, float]]:
    """Known agent -> task -> mean score of its runs of the task."""
    found: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for own in reviewed:
        if own.report is not None and own.case.run.agent:
            found[own.case.run.agent]["/".join(own.case.run.group)].append(own.report.score)
    return {agent: {task: float(np.mean(own)) for task, own in tasks.items()} for agent, tasks in found.items()}


def means(reviewed: Sequence[Reviewed]) -> dict[str, float]:
    """Known agent -> mean score over its runs."""
    return _by_agent((own.case.run.agent, own.report.score) for own in reviewed if own.report is not None)


def outcomes(reviewed: Sequence[Reviewed]) -> dict[str, float]:
    """Known agent -> mean outcome of the runs that were reviewed, where it is known."""
    return _by_agent((own.case.run.agent, own.case.run.outcome) for own in reviewed if own.report is not None)


def _by_agent(values: Iterable[tuple[str | None, float | None]]) -> dict[str, float]:
    found: defaultdict[str, list[float]] = defaultdict(list)
    for agent, value in values:
        if agent and value is not None:
            found[agent].append(value)
    return {agent: float(np.mean(own)) for agent, own in sorted(found.items())}


def summary(reviewed: Sequence[Reviewed], settings: Settings, calls: int = 0) -> dict[str, Any]:
    """What OUT/agents.json holds.

    Args:
        settings: those of the review.
        calls: requests that judges made to a model.
    """
    reports = [own.report for own in reviewed if own.report is not None]
    score, outcome = means(reviewed), outcomes(reviewed)
    actions, tokens, share = metrics.saved(reports)
    steps = sum(report.actions for report in reports)
    by_agent: defaultdict[str, list[Reviewed]] = defaultdict(list)
    for own in reviewed:
        by_agent[own.case.run.agent or UNKNOWN].append(own)
    missing = Counter(own.case.reason for own in reviewed if own.report is None)
    return {
        "runs": len(reviewed),
        "reviewed": len(reports),
        "without_graph": dict(missing.most_common()),
        "agents": {agent: _agent(own) for agent, own in sorted(by_agent.items())},
        "discriminability": {f"{eps:.2f}": metrics.discriminability(score, eps) for eps in metrics.EPSILONS},
        "outcome_discriminability": {f"{eps:.2f}": metrics.discriminability(outcome, eps) for eps in metrics.EPSILONS},
        "separated_pairs": {f"{eps:.2f}": len(metrics.separated(score, eps)) for eps in metrics.EPSILONS},
        "pairs": _pairs(reviewed),
        "kendall_tau": metrics.rank_agreement(score, outcome),
        "stop_rate": metrics.stop_rate(reports),
        "saved": {"actions": actions, "tokens": tokens, "share_of_stopped_runs": share},
        "judge_calls_per_action": calls / steps if steps else 0.0,
        "first_error": _first_error(reviewed, settings.pass_threshold),
    }


def _first_error(reviewed: Sequence[Reviewed], below: float) -> dict[str, float]:
    """How often the first step that a verdict below a score rests on is the first labelled one; of annotated runs."""
    predicted, reference = [], []
    for own in reviewed:
        if own.report is not None and own.case.run.labels is not None:
            predicted.append(metrics.first_error(own.report, below))
            reference.append(min((label.step[0] for label in own.case.run.labels), default=None))
    return {"runs": len(reference), "accuracy": metrics.first_error_accuracy(predicted, reference)}


def _agent(own: Sequence[Reviewed]) -> dict[str, Any]:
    reports = [reviewed.report for reviewed in own if reviewed.report is not None]
    stages = [stage for report in reports for stage in report.stages]
    return {
        "runs": len(own),
        "reviewed": len(reports),
        "score": _mean([report.score for report in reports]),
        "coverage": _mean([report.coverage for report in reports]),
        "dimensions": {
            name: float(np.mean(found))
            for name in DIMENSIONS
            if (found := [stage.verdicts[name].score for stage in stages if name in stage.verdicts])
        },
        "stops": dict(Counter(report.stop.criterion for report in reports if report.stop)),
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _pairs(reviewed: Sequence[Reviewed]) -> list[dict[str, Any]]:
    by_task, score = scores_by_task(reviewed), means(reviewed)
    return [
        {
            "agents": [a, b],
            "means_differ_by": abs(score[a] - score[b]),
            **asdict(metrics.paired_wilcoxon(by_task[a], by_task[b])),
        }
        for a, b in combinations(score, 2)
    ]


# --- tables ----------------------------------------------------------------------------------------------------------


def table(title: str, columns: Sequence[str]) -> Table:
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, column in enumerate(columns):
        made.add_column(column, justify="left" if place == 0 else "right", overflow="fold")
    return made


def number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def tables(found: Mapping[str, Any]) -> list[Table]:
    """The summary as tables."""
    agents = table("agents: mean over runs", ("agent", "runs", "score", "coverage", *DIMENSIONS, "stopped"))
    for agent, own in found["agents"].items():
        dims = [number(own["dimensions"].get(name)) for name in DIMENSIONS]
        counted = f"{own['reviewed']} of {own['runs']}"
        stopped = str(sum(own["stops"].values()))
        agents.add_row(agent, counted, number(own["score"]), number(own["coverage"]), *dims, stopped)
    told = table("discriminability DS(eps)", ("eps", "stage-wise", "pairs", "whole-run outcome"))
    for eps, value in found["discriminability"].items():
        pairs = f"{found['separated_pairs'][eps]} of {len(found['pairs'])}"
        told.add_row(eps, number(value, 4), pairs, number(found["outcome_discriminability"][eps], 4))
    tests = table("pairs of agents: Wilcoxon on the tasks that both ran", ("agents", "tasks", "difference", "p"))
    for pair in found["pairs"]:
        tests.add_row(
            " - ".join(pair["agents"]), str(pair["tasks"]), number(pair["difference"]), number(pair["p_value"])
        )
    return [agents, told, tests]


def lines(found: Mapping[str, Any]) -> list[str]:
    """What the tables leave out, a line each."""
    saved = found["saved"]
    made = [
        f"{found['reviewed']} of {found['runs']} runs reviewed",
        *(f"  {count} runs without a graph: {reason}" for reason, count in found["without_graph"].items()),
        f"stop rate {number(found['stop_rate'])}; saved {saved['actions']} actions and about {saved['tokens']} tokens "
        f"({saved['share_of_stopped_runs']:.1%} of the stopped runs)",
        f"judge calls to a model per action: {number(found['judge_calls_per_action'])}",
        f"Kendall tau against the order by outcome: {number(found['kendall_tau'])}",
    ]
    if found["first_error"]["runs"]:
        first = found["first_error"]
        made.append(f"first labelled step found in {first['accuracy']:.1%} of {first['runs']} annotated runs")
    return made

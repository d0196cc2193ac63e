"""Metrics as tables: on the terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from stepsieve.eval.intervals import Interval

PUBLISHED = {
    "GPT-5.4-mini": (16.44, 8.52, 6.14),
    "Qwen3.8-27B": (25.96, 60.12, 25.90),
    "GLM-5.3": (41.79, 46.44, 49.73),
    "DeepSeek-V4.1-flash": (42.21, 40.05, 67.53),
    "GPT-5.4": (50.15, 45.97, 56.45),
    "Jev": (79.41, None, None),
    "Claude-Opus-5": (84.39, 75.09, 71.25),
}
"""LLM judges as published (RedundancyBench, all 1,920 trajectories): StepCls, EvidenceRet, StepDet mean, in percent."""

COLUMNS = {"cls": ("accuracy", "accuracy[natural]", "macro_f1", "ece")}
"""The metrics that a table shows, by task."""


def metrics_table(task: str, results: Mapping[str, Mapping[str, Mapping[str, Interval]]]) -> Table:
    """One row per split and backend: the task's main metrics with their 95% intervals."""
    table = Table(title=f"{task}: mean over folds, 95% cluster bootstrap over tasks", title_justify="left")
    for column in ("split", "backend", *COLUMNS[task], "n"):
        table.add_column(column, justify="left" if column in ("split", "backend") else "right", no_wrap=True)
    for split, reports in results.items():
        for backend, report in reports.items():
            cells = [cell(report[name].to_dict()) if name in report else "" for name in COLUMNS[task]]
            table.add_row(split, backend, *cells, str(report[COLUMNS[task][0]].n))
        table.add_section()
    return table


def cell(record: Mapping[str, Any]) -> str:
    """``0.972 [0.951, 0.988]``, or a dash where the metric is undefined."""
    if record["value"] is None:
        return "-"
    return f"{record['value']:.3f} [{record['low']:.3f}, {record['high']:.3f}]"


def markdown_report(known: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """report.md of a training run: a table per task and split, slices, and the settings that made it.

    Args:
        known: ``{task: {split: {backend: {metric: {value, low, high, n}}}}}``, as in metrics.json.
        settings: the settings of the run.
    """
    lines = ["# Stepsieve training report", ""]
    for task, splits in known.items():
        for split, reports in splits.items():
            lines += [f"## {task}, {split}", "", "Mean over folds, 95% cluster bootstrap over tasks.", ""]
            names = [name for name in COLUMNS[task] if any(name in report for report in reports.values())]
            rows = [[backend, *(cell(report[n]) if n in report else "" for n in names)] for backend, report in reports.items()]
            lines += _table(["backend", *names], rows)
            others = sorted({name for report in reports.values() for name in report} - set(names))
            lines += [f"### {task}, {split}: everything else", ""]
            lines += _table(
                ["metric", *reports, "n"],
                [
                    [
                        name,
                        *(cell(report[name]) if name in report else "" for report in reports.values()),
                        str(next(report[name]["n"] for report in reports.values() if name in report)),
                    ]
                    for name in others
                ],
            )
    lines += ["## Published LLM judges", "", "On all 1,920 trajectories, in percent; ours above are on the data at hand.", ""]
    lines += _table(
        ["judge", "StepCls", "EvidenceRet", "StepDet mean"],
        [[name, *("" if v is None else f"{v:.2f}" for v in values)] for name, values in PUBLISHED.items()],
    )
    lines += ["## Settings", "", "```"]
    lines += [f"{key}: {value}" for key, value in settings.items() if key not in ("out", "data", "train")]
    return "\n".join([*lines, "```", ""])


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]

"""Metrics as tables: on the terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

COLUMNS = {
    "cls": ("accuracy", "accuracy[natural]", "macro_f1", "ece"),
    "ret": ("joint_accuracy", "joint_accuracy[natural]", "evidence_accuracy", "evidence_accuracy[natural]", "ece"),
    "det": ("avg_p@k", "avg_p@k/positives", "p@1", "p@5", "p@10", "auc", "prune_precision", "prune_recall", "ece"),
    "judge": ("accuracy", "error", "first_error", "final", "ece"),
    "stop": ("auc@50", "auc@25", "auc@75", "auc@100", "saved", "wrong_stops", "wrong_of_stopped", "mean_shift"),
}
"""The metrics that a table shows, by task."""


def metrics_table(task: str, results: Mapping[str, Mapping[str, Mapping[str, Interval]]]) -> Table:
    """One row per split and backend: the task's main metrics, the first with its interval; 80 columns are enough."""
    title = f"{task}: mean over folds, 95% cluster bootstrap over tasks"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    main, *others = COLUMNS[task]
    for column in ("split", "backend"):
        table.add_column(column, no_wrap=True)
    for column in (main, *others, "n"):
        # A slice stands for itself: brackets would be markup, and wide.
        table.add_column(column.partition("[")[2].rstrip("]") or column, justify="right", no_wrap=True)
    for split, reports in results.items():
        for backend, report in reports.items():
            plain = [_value(report[name].to_dict()) if name in report else "" for name in others]
            table.add_row(split, backend, cell(report[main].to_dict()), *plain, str(report[main].n))
        table.add_row()
    return table


def _value(record: Mapping[str, Any]) -> str:
    return "-" if record["value"] is None else f"{record['value']:.3f}"


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
            rows = [
                [backend, *(cell(report[n]) if n in report else "" for n in names)]
                for backend, report in reports.items()
            ]
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
    if settings["data"] != "simulated":
        # Beside simulated runs they would invite a comparison that means nothing.
        lines += _published()
    lines += ["## Settings", "", "```"]
    lines += [f"{key}: {value}" for key, value in settings.items() if key not in ("out", "data", "train")]
    return "\n".join([*lines, "```", ""])


def comparison(results: Mapping[str, Any], costs: Mapping[str, Any]) -> str:
    """costs.md of a training run: its backends side by side, in percent, and what each took.

    Args:
        results: ``{task: {split: {backend: {metric: {value, low, high, n}}}}}``.
        costs: ``{split: {backend: {training_s, megabytes, answers_per_s: {task: rate}}}}``, as in costs.json.
    """
    backends = list(next(iter(costs.values())))
    lines: list[str] = []
    for task, splits in results.items():
        rows = [
            [backend, *(_percent(reports[backend][COLUMNS[task][0]]) for reports in splits.values())]
            for backend in backends
        ]
        lines += [f"{task}, {COLUMNS[task][0]}", "", *_table(["model", *splits], rows)]
    head = ["model", "training, s", "checkpoint, MB", *(f"{task} answers/s" for task in results)]
    rows = []
    for backend in backends:
        own = [costs[split][backend] for split in costs]
        rates = [sum(one["answers_per_s"][task] for one in own) / len(own) for task in results]
        training = sum(one["training_s"] for one in own)
        rows.append([backend, f"{training:.0f}", f"{own[-1]['megabytes']:.1f}", *(f"{rate:,.0f}" for rate in rates)])
    lines += [
        "Training on every fold of all splits, calibration included; what a frozen encoder read is kept from fold to",
        "fold. Answers about some runs of each split's first fold, with features, windows and reading.",
        "",
    ]
    return "\n".join([*lines, *_table(head, rows)])


def _percent(record: Mapping[str, Any]) -> str:
    if record["value"] is None:
        return "-"
    return f"{100 * record['value']:.1f} [{100 * record['low']:.1f}, {100 * record['high']:.1f}]"


def _published() -> list[str]:
    return [
        "## Published LLM judges",
        "",
        "On all 1,920 trajectories, in percent; ours above are on the data at hand.",
        "",
        *_table(
            ["judge", "StepCls", "EvidenceRet", "StepDet mean"],
            [[name, *("" if v is None else f"{v:.2f}" for v in values)] for name, values in PUBLISHED.items()],
        ),
    ]


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]


# --- the benchmark ---------------------------------------------------------------------------------------------------

BENCH = {
    "cls": {"accuracy": "accuracy", "macro_f1": "macro F1", "ece": "ECE"},
    "ret": {"joint_accuracy": "type and evidence", "evidence_accuracy": "evidence", "type_accuracy": "type"},
    "det": {"p@1": "P@1", "p@5": "P@5", "p@10": "P@10", "avg_p@k": "mean P@K"},
    "compare": {
        "first": "first",
        "second": "second",
        "difference": "difference",
        "only_first": "only first",
        "only_second": "only second",
        "p_value": "McNemar p",
    },
}
"""What the tables of the benchmark show, by task: metric -> heading. ``compare`` is that of two sets of predictions."""

_HEADLINES = ("accuracy", "joint_accuracy", "avg_p@k", "difference")
"""The metrics that are shown with their interval; those of the others are in the JSON."""

_OFFICIAL = ("cls", "ret", "det")
_MARK = "published, all 1,920 trajectories"

Scores = Mapping[str, Mapping[str, Any]]
Standings = list[tuple[str, tuple[float | None, ...], str]]


def coverage(title: str, name: str, n: int, asked: int, foreign: int) -> str:
    """The heading of a table: what was scored, on how much of the data."""
    unit = "trajectories" if title == "StepDet" else "labelled steps"
    rest = f"; {foreign:,} trajectories of the predictions are not in the data" if foreign else ""
    return f"{title}, {name}: {n:,} of {asked:,} {unit}{rest}"


def bench_rows(task: str, scores: Scores) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: one per slice, in percent; counts and p-values as they are."""
    names = [name for name in BENCH[task] if any(name in values for values in scores.values())]
    head = ["slice", "n", *(BENCH[task][name] for name in names)]
    rows = [
        [where, f"{values['n']:,}", *(bench_cell(name, values) for name in names)] for where, values in scores.items()
    ]
    return head, rows


def bench_cell(name: str, values: Mapping[str, Any]) -> str:
    """A metric as tables show it, in percent, a main one with its interval; empty where there is none."""
    value = values.get(name)
    if value is None:
        return "-" if name in values else ""
    if name.startswith("only_"):
        return str(value)
    if name == "p_value":
        return f"{value:.3f}" if value >= 0.001 else "<0.001"
    low, high = values.get(f"{name}.low"), values.get(f"{name}.high")
    interval = (
        f" [{100 * low:.1f}, {100 * high:.1f}]" if name in _HEADLINES and low is not None and high is not None else ""
    )
    return f"{100 * value:.1f}{interval}"


def bench_table(task: str, title: str, scores: Scores) -> Table:
    """One row per slice of one set of predictions, or of a comparison."""
    head, rows = bench_rows(task, scores)
    return plain_table(f"{title}; percent, 95% bootstrap over tasks", head, rows)


def standings(ours: Mapping[tuple[str, str], float]) -> Standings:
    """Ours and the published judges: name, the three official metrics in percent, and on what they were measured.

    Args:
        ours: (name, task) -> the official metric, in [0, 1].
    """
    names = dict.fromkeys(name for name, _ in ours)
    own = [
        (name, tuple(100 * ours[name, task] if (name, task) in ours else None for task in _OFFICIAL)) for name in names
    ]
    return [(name, values, "the data at hand") for name, values in own] + [
        (name, values, _MARK) for name, values in reversed(PUBLISHED.items())
    ]


def _standing_rows(rows: Standings) -> tuple[list[str], list[list[str]]]:
    cells = [[name, *("-" if value is None else f"{value:.2f}" for value in values), on] for name, values, on in rows]
    return ["judge", "StepCls", "EvidenceRet", "StepDet mean", "measured on"], cells


def standings_table(rows: Standings) -> Table:
    """Ours beside the published judges, for the terminal."""
    return plain_table("Beside published LLM judges, percent", *_standing_rows(rows))


def bench_markdown(shown: Sequence[tuple[str, str, Scores]], rows: Standings, images: list[str]) -> str:
    """bench.md: the tables of the terminal, and the plots.

    Args:
        shown: (task or "compare", title, scores) of each table.
        rows: the standings.
        images: file names of plots in the same folder.
    """
    lines = ["# RedundancyBench", "", "In percent, with 95% bootstrap intervals over tasks.", ""]
    for task, title, scores in shown:
        lines += [f"## {title}", "", *_table(*bench_rows(task, scores))]
    lines += ["## Beside published LLM judges", "", *_table(*_standing_rows(rows))]
    return "\n".join([*lines, *_images(images)])


def sections_markdown(title: str, sections: Sequence[tuple[str, list[str], list[list[str]]]], images: list[str]) -> str:
    """A page of tables (title, heading, rows) and plots, which lie in the same folder."""
    lines = [f"# {title}", ""]
    for name, head, rows in sections:
        lines += [f"## {name}", "", *_table(head, rows)]
    return "\n".join([*lines, *_images(images)])


def _images(names: list[str]) -> list[str]:
    return [line for name in names for line in (f"![{name.removesuffix('.png')}]({name})", "")]


def plain_table(title: str, head: list[str], rows: list[list[str]]) -> Table:
    """A table for the terminal."""
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(head):
        text = number == 0 or column == "measured on"
        table.add_column(column, justify="left" if text else "right", no_wrap=number == 0)
    for row in rows:
        table.add_row(*row)
    return table

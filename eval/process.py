"""Judges of steps beside each other: ours and LLM judges on the runs of AgentProcessBench.

python eval/process.py --data hotpotqa.jsonl --predictions runs/judge/predictions/judge-cv-gbdt.json --judges DIR

Step accuracy over all labelled messages, first-error accuracy (the first harmful message, or that there is none) and
final-label accuracy over runs; 95% bootstrap over tasks, and ours less theirs on the same messages (paired).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table

from stepsieve.data.agentprocessbench import SCORES, Judged, read_judge
from stepsieve.data.errors import DataError, Parser, run_cli
from stepsieve.data.ingest import load
from stepsieve.data.jsonio import loads
from stepsieve.data.quality import CORRECTNESS
from stepsieve.data.trajectory import Trajectory
from stepsieve.eval.intervals import Interval, cluster_bootstrap, paired_bootstrap
from stepsieve.models.checkpoint import write_atomic

METRICS = {"steps": "step accuracy", "first_error": "first error", "final": "final label"}
Levels = Mapping[int, float]
"""Message index -> level: 0 harmful, 0.5 neutral, 1 effective."""


def first_error_right(said: Levels, gold: Levels) -> bool:
    """Whether the first harmful message of a run was found, or that it has none."""
    return _first(said, gold) == _first(gold, gold)


def final_right(said: Levels, gold: Levels, good: bool) -> bool:
    """Whether the level of the last judged message tells how the run ended: effective if well, else not."""
    return (said.get(max(gold)) == 1.0) == good


def _first(levels: Levels, among: Levels) -> int | None:
    return min((message for message in among if levels.get(message) == 0.0), default=None)


@dataclass(frozen=True)
class Scores:
    """What one judge got right: 1 or 0 for each message of each run, and for each run; and their tasks."""

    values: Mapping[str, list[float]]
    groups: Mapping[str, list[Hashable]]


def score(runs: Sequence[Trajectory], answers: Mapping[str, tuple[Levels, float | None]]) -> Scores:
    """A judge's answers against what people said.

    Args:
        runs: with qualities and outcome.
        answers: run id -> level by message, and final level, None where the last message's level stands for it. What
            is not answered is wrong.
    """
    values: dict[str, list[float]] = {name: [] for name in METRICS}
    groups: dict[str, list[Hashable]] = {name: [] for name in METRICS}
    for run in runs:
        gold = {own.message: own.score for own in run.qualities or () if own.dimension == CORRECTNESS}
        if not gold:
            continue
        said, final = answers.get(run.id, ({}, -1.0))
        right = {
            "steps": [said.get(message) == level for message, level in gold.items()],
            "first_error": [bool(said) and first_error_right(said, gold)],
            "final": [final_right(said, gold, run.outcome == 1) if final is None else final == run.outcome],
        }
        for name, own in right.items():
            values[name] += map(float, own)
            groups[name] += [run.group] * len(own)
    return Scores(values, groups)


def answers_of_judge(judged: Mapping[str, Judged]) -> dict[str, tuple[Levels, float | None]]:
    """An LLM judge's answers; a final label that it did not give is wrong."""
    return {
        name: (
            {message: SCORES[label] for message, label in own.steps.items()},
            -1.0 if own.final is None else SCORES[own.final],
        )
        for name, own in judged.items()
    }


def read_predictions(path: Path) -> dict[str, tuple[Levels, float | None]]:
    """Held-out levels of correctness as train/judge.py writes them.

    Raises:
        DataError: no such file, or none of that kind.
    """
    try:
        results = loads(path.read_bytes())["results"]
        return {
            record["trajectory_id"]: (
                {int(message): float(row[0]) for message, row in record["levels"].get(CORRECTNESS, {}).items()},
                None,
            )
            for record in results
        }
    except OSError as error:
        raise DataError(f"expected a file that can be read: {error.strerror}", file=path) from None
    except DataError as error:
        raise error.at(file=path) from None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        raise DataError("expected held-out levels as train/judge.py writes them", file=path) from None


def compare(ours: Scores, others: Mapping[str, Scores], seed: int = 0) -> dict[str, dict[str, Any]]:
    """Name -> metric -> value with interval, and under ``<metric>_gain`` ours less it; ours first, then the best."""
    table = {"ours": {name: _mean(ours, name, seed).to_dict() for name in METRICS}}
    ranked = sorted(others, key=lambda judge: -float(np.mean(others[judge].values["steps"])))
    for judge in ranked:
        theirs = others[judge]
        row = {name: _mean(theirs, name, seed).to_dict() for name in METRICS}
        for name in METRICS:
            gain = paired_bootstrap(ours.values[name], theirs.values[name], ours.groups[name], seed)
            row[f"{name}_gain"] = gain.to_dict()
        table[judge] = row
    return table


def _mean(scores: Scores, name: str, seed: int) -> Interval:
    return cluster_bootstrap(scores.values[name], scores.groups[name], seed)


def show(table: Mapping[str, Mapping[str, Any]], title: str, console: Console) -> None:
    """One row per judge, ours first."""
    shown = Table(title=title, title_justify="left")
    shown.add_column("judge", no_wrap=True)
    for heading in (*METRICS.values(), "ours less theirs, steps", "first error", "final label"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for judge, row in table.items():
        cells = [_cell(row.get(name)) for name in (*METRICS, *(f"{name}_gain" for name in METRICS))]
        shown.add_row(judge, *cells)
    console.print(shown)


def _cell(record: Mapping[str, Any] | None) -> str:
    return f"{record['value']:.3f} [{record['low']:.3f}, {record['high']:.3f}]" if record else ""


def main() -> None:
    parser = Parser(prog="eval/process.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the runs with their labels")
    parser.add_argument("--predictions", type=Path, required=True, help="a file that train/judge.py wrote")
    parser.add_argument("--judges", type=Path, help="a folder with a file of each LLM judge")
    parser.add_argument("--seed", type=int, default=0, help="decides the bootstrap draws (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write all figures here too")
    args = parser.parse_args()
    runs = [run for run in load(args.data) if run.qualities]
    if not runs:
        raise DataError("expected runs whose messages were judged, found none", file=args.data)
    ours = score(runs, read_predictions(args.predictions))
    paths = sorted(args.judges.glob("*.jsonl")) if args.judges else []
    others = {path.stem: score(runs, answers_of_judge(read_judge(path))) for path in paths}
    table = compare(ours, others, args.seed)
    title = f"{len(runs)} runs, {len(ours.values['steps'])} labelled messages; 95% bootstrap over tasks"
    show(table, title, Console(width=max(Console().width, 220)))
    if args.json:
        write_atomic(args.json, orjson.dumps(table, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


if __name__ == "__main__":
    run_cli(main)

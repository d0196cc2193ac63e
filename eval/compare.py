"""Judges side by side, on identical items: ours, language models', and the published ones; and cascades of two.

    python eval/compare.py --data DIR --predictions RUN/predictions/*-pooled-cv-*.json JUDGE_FOLDER
    python eval/compare.py --data DIR --predictions ours.json judge.json --json table.json --out FOLDER

Each --predictions is a result file or a folder of them: held-out predictions of a training run, answers of
eval/llm_judge.py, recorded answers. For each task all are scored on the units that all of them answer, by the very
functions of eval/bench.py, and compared with the first (paired bootstrap over tasks; McNemar). Tokens, seconds and
dollars are per 1,000 trajectories, where they are known: from the usage in a result file, or of a model of one's own
from costs.json beside its predictions, at --hour dollars for an hour of the machine.

A cascade lets one of our models answer where it is sure, and passes the rest on to a judge. Its threshold is chosen on
other tasks than it is tested on, such that it loses at most --risk to the judge alone (conformal risk control).
"""

from __future__ import annotations

from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich.console import Console

from stepsieve.data.errors import DataError, Parser, require, run_cli
from stepsieve.data.ingest import load
from stepsieve.data.trajectory import Trajectory
from stepsieve.eval import report
from stepsieve.eval.cascade import Curve, answered_by_own, certainty, curve
from stepsieve.eval.costs import FILE, PUBLISHED_COSTS, Cost, cost_of
from stepsieve.eval.intervals import Interval, paired_bootstrap
from stepsieve.eval.metrics import Floats
from stepsieve.eval.report import COLUMNS
from stepsieve.eval.results import TITLES, Predictions, distinct, read
from stepsieve.eval.scores import Items, Scores, compare, match, score
from stepsieve.models.checkpoint import write_atomic

OURS = "stepsieve"
"""What a training run calls itself in the predictions that it writes."""


@dataclass(frozen=True)
class Judged:
    """One judge on the units that all judges of a task answer.

    Attributes:
        items: those units. own: its metrics on all units that it answers, as eval/bench.py prints them.
        cost: what it takes. local: whether it is one of our models.
    """

    items: Items
    own: Scores
    cost: Cost
    local: bool


@dataclass(frozen=True)
class Cascade:
    """One of our models before a judge, by calibrated thresholds.

    Attributes:
        value: its official score. passed: the share of units that the judge answers.
        beside_judge, beside_first: what it scores more than either alone.
        curve: what it scores at every threshold. dollars: (k,) what that costs for 1,000 trajectories, where known.
    """

    first: str
    judge: str
    value: float
    passed: float
    cost: Cost
    beside_judge: Interval
    beside_first: Interval
    curve: Curve
    dollars: Floats | None


# --- reading ---------------------------------------------------------------------------------------------------------


def find(paths: Sequence[str]) -> list[Path]:
    """The result files that are named, and those in the folders that are."""
    files = [file for path in map(Path, paths) for file in (sorted(path.glob("*.json*")) if path.is_dir() else [path])]
    if not files:
        raise DataError("expected result files, found none", file=paths[0])
    return files


def _named(predictions: Predictions) -> Predictions:
    """Ours under the name of backend and split, since all of them call themselves the same."""
    named = FILE.fullmatch(Path(predictions.file).stem)
    if predictions.metadata.get("model") != OURS or named is None:
        return predictions
    return replace(predictions, name=f"{named['backend']} ({named['split']})")


# --- comparing -------------------------------------------------------------------------------------------------------


def on_common_units(made: Sequence[Predictions], corpus: Sequence[Trajectory], hour: float, seed: int) -> list[Judged]:
    """Judges of one task on the units that all of them answer, in the order of the first.

    Raises:
        DataError: no such unit.
    """
    sets = [match(predictions, corpus) for predictions in made]
    common = reduce(lambda known, items: known & set(items.keys), sets[1:], set(sets[0].keys))
    if not common:
        alone = next(items.name for items in sets if not set(items.keys) & set(sets[0].keys) or items is sets[-1])
        raise DataError(f"expected units of {TITLES[sets[0].task]} that all answer, found none with {alone}")
    judged = []
    for predictions, items in zip(made, sets, strict=True):
        place = {key: row for row, key in enumerate(items.keys)}
        shared = items.take(place[key] for key in sets[0].keys if key in common)
        local = predictions.metadata.get("model") == OURS
        judged.append(Judged(shared, score(items, seed), cost_of(predictions, items, hour), local))
    return judged


def cascades(judged: Sequence[Judged], risk: float, seed: int) -> Iterator[Cascade]:
    """Each of our models before each judge that is none of ours."""
    for first in judged:
        sure = certainty(first.items) if first.local else None
        for judge in judged:
            if sure is None or judge.local:
                continue
            own, other = first.items.values(), judge.items.values()
            answers = answered_by_own(sure, own, other, first.items.runs, risk, seed)
            values = np.where(answers, own, other)
            passed = float(1 - answers.mean())
            every = curve(sure, own, other)
            prices = first.cost.dollars, judge.cost.dollars
            yield Cascade(
                first.items.name,
                judge.items.name,
                float(values.mean()),
                passed,
                first.cost.plus(judge.cost, passed),
                paired_bootstrap(values, other, first.items.groups, seed),
                paired_bootstrap(values, own, first.items.groups, seed),
                every,
                None if prices[0] is None or prices[1] is None else prices[0] + every.passed * prices[1],
            )


# --- as tables and JSON ----------------------------------------------------------------------------------------------


def rows(task: str, judged: Sequence[Judged], seed: int) -> tuple[list[str], list[list[str]]]:
    """Heading and a row for each judge, those published below."""
    main = COLUMNS[task][0]
    first = judged[0]
    head = ["judge", report.BENCH[task][main], "all its units", "less the first", "McNemar p"]
    head += ["tokens", "seconds", "dollars", "relative cost"]
    table = []
    for own in judged:
        shared = score(own.items, seed)["all"]
        beside = [""] * 2
        if own is not first:
            found = compare(own.items, first.items, seed)["all"]
            beside = [report.bench_cell("difference", found), report.bench_cell("p_value", found)]
        both = [report.bench_cell(main, shared), f"{report.bench_cell(main, own.own['all'])} n={len_of(own)}"]
        table.append([own.items.name, *both, *beside, *_cost_cells(own.cost, first.cost)])
    column = list(TITLES).index(task)
    for name, values in reversed(report.PUBLISHED.items()):
        if values[column] is not None:
            known = PUBLISHED_COSTS.get(name, Cost()) if task == "cls" else Cost()
            figure = f"{values[column]:.2f} (published)"
            table.append([name, "", figure, "", "", *_cost_cells(known, first.cost)])
    return head, table


def len_of(judged: Judged) -> str:
    """How many units it answers in all."""
    return f"{judged.own['all']['n']:,}"


def _cost_cells(cost: Cost, first: Cost) -> list[str]:
    plain = ["-" if value is None else f"{value:,.0f}" for value in (cost.tokens, cost.seconds)]
    dollars = "-" if cost.dollars is None else f"{cost.dollars:,.4g}"
    relative = f"{cost.dollars / first.dollars:,.4g}" if cost.dollars is not None and first.dollars else "-"
    return [*plain, dollars, relative]


def cascade_rows(found: Sequence[Cascade], first: Cost) -> tuple[list[str], list[list[str]]]:
    """Heading and a row for each cascade."""
    head = ["our model", "judge", "score", "passed on", "less the judge", "less our model"]
    head += ["tokens", "seconds", "dollars", "relative cost"]
    return head, [
        [
            own.first,
            own.judge,
            f"{100 * own.value:.1f}",
            f"{100 * own.passed:.1f}",
            *(_interval(beside) for beside in (own.beside_judge, own.beside_first)),
            *_cost_cells(own.cost, first),
        ]
        for own in found
    ]


def _interval(found: Interval) -> str:
    return f"{100 * found.value:.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]"


def to_dict(judged: Sequence[Judged], found: Sequence[Cascade], seed: int) -> dict[str, Any]:
    """All of a task as JSON values."""
    table = {}
    for own in judged:
        shared = score(own.items, seed)
        beside = {} if own is judged[0] else compare(own.items, judged[0].items, seed)
        table[own.items.name] = {"own": own.own, "common": shared, "beside_first": beside, "cost": asdict(own.cost)}
    return {"judges": table, "cascades": [_plain(own) for own in found]}


def _plain(own: Cascade) -> dict[str, Any]:
    record = {**asdict(own), "beside_judge": own.beside_judge.to_dict(), "beside_first": own.beside_first.to_dict()}
    steps = {**record.pop("curve"), "dollars": record.pop("dollars")}
    points = {name: values.tolist() for name, values in steps.items() if values is not None}
    # JSON has no infinity, the threshold at which all is passed on.
    return {**record, "curve": {**points, "threshold": [None, *points["threshold"][1:]]}}


# --- the command -----------------------------------------------------------------------------------------------------


def _arguments() -> Namespace:
    parser = Parser("eval/compare.py", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", required=True, metavar="DIR", help="annotated trajectories: a folder or a file")
    add("--predictions", nargs="+", required=True, metavar="PATH", help="result files, or folders of them")
    add("--risk", type=float, default=0.02, help="what a cascade may lose to its judge, from 0 to 1 (default: 0.02)")
    add("--hour", type=float, default=0.05, metavar="DOLLARS", help="an hour of a core of yours (default: 0.05)")
    add("--json", metavar="FILE", help="write all figures and curves as JSON")
    add("--out", metavar="DIR", help="write compare.md and a plot of the curves (PNG; needs matplotlib, extra: plots)")
    add("--seed", type=int, default=0, help="decides bootstrap draws and calibration folds (default: 0)")
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    for name, most in (("risk", 1), ("hour", 1e9), ("seed", 2**31)):
        if not 0 <= getattr(arguments, name) <= most:
            raise DataError(f"expected a number from 0 to {most}, found {getattr(arguments, name)}", field=f"--{name}")
    if arguments.out:
        require("matplotlib", "plots")
    corpus = [run for run in load(arguments.data) if run.labels is not None]
    if not corpus:
        raise DataError("expected annotated trajectories, found none", file=arguments.data)
    made = distinct([_named(read(path)) for path in find(arguments.predictions)])
    console = Console(width=None if Console().is_terminal else 200)
    content, sections, curves = {}, [], {}
    for task, title in TITLES.items():
        own = [predictions for predictions in made if predictions.task == task]
        if not own:
            continue
        judged = on_common_units(own, corpus, arguments.hour, arguments.seed)
        found = list(cascades(judged, arguments.risk, arguments.seed))
        content[task] = to_dict(judged, found, arguments.seed)
        units = f"{title}, {len(judged[0].items):,} units that all answer; percent; costs per 1,000 trajectories"
        sections.append((units, *rows(task, judged, arguments.seed)))
        if found:
            risk = f"{title}, cascades that are to lose at most {100 * arguments.risk:g} points to the judge"
            sections.append((risk, *cascade_rows(found, judged[0].cost)))
            curves[title] = found
    for section in sections:
        console.print(report.plain_table(*section))
    if arguments.json:
        option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        write_atomic(Path(arguments.json), orjson.dumps(content, option=option))
    if arguments.out:
        from stepsieve.eval.plots import draw_cascades

        out = Path(arguments.out)
        images = draw_cascades(curves, out)
        write_atomic(out / "compare.md", report.sections_markdown("Judges side by side", sections, images).encode())
        console.print(f"report in {out}/compare.md", highlight=False)


if __name__ == "__main__":
    run_cli(main)

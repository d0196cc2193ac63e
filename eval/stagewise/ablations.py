"""What each part of stage-wise evaluation is good for: the whole, and five times the whole without one part.

    python eval/stagewise/ablations.py --data DIR [--graphs FILE] [--judges tier1] --out DIR

The paper's ablations: fixed judges, fixed weights, no minefields, no milestone graph (the whole run is one stage), no
stops. The same runs and graphs for all. OUT/ablations.json holds the summary of each, OUT/ablations.md the table.
"""

from __future__ import annotations

import io
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from rich.console import Console

from stepsieve.data.errors import Parser, run_cli
from stepsieve.eval.stagewise import check_installed
from stepsieve.models.checkpoint import write_atomic

if TYPE_CHECKING:
    from stepsieve.eval.stagewise.corpus import Case
    from stepsieve.eval.stagewise.settings import Settings

WIDTH = 120
"""Columns of the table where the output is no terminal."""
SIGNIFICANT = 0.05

Variant = Callable[["Sequence[Case]", "Settings"], "tuple[Sequence[Case], Settings]"]


def _without_minefields(cases: Sequence[Case], settings: Settings) -> tuple[Sequence[Case], Settings]:
    return [replace(case, graph=case.graph and replace(case.graph, minefields=())) for case in cases], settings


def _without_graph(cases: Sequence[Case], settings: Settings) -> tuple[Sequence[Case], Settings]:
    return [
        replace(case, graph=case.graph and replace(case.graph, milestones=(), edges=(), bindings=())) for case in cases
    ], settings


VARIANTS: dict[str, Variant] = {
    "full": lambda cases, settings: (cases, settings),
    "fixed judges": lambda cases, settings: (cases, replace(settings, dynamic_tiers=False)),
    "fixed weights": lambda cases, settings: (cases, replace(settings, dynamic_weights=False)),
    "no minefields": _without_minefields,
    "no milestone graph": _without_graph,
    "no stops": lambda cases, settings: (cases, replace(settings, stopping=False)),
}
"""Name -> what is changed."""


def _arguments() -> Namespace:
    parser = Parser("eval/stagewise/ablations.py", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", required=True, metavar="PATH", help="runs: a folder or a file, any known format")
    add("--graphs", metavar="FILE", help="milestone graphs as JSON Lines (default: from the other runs of each task)")
    add("--judges", choices=["tier1", "tier12", "llm"], default="tier1", help="who judges stages (default: tier1)")
    add("--config", metavar="FILE", help="YAML with keys of configs/stagewise.yaml")
    add("--out", required=True, metavar="DIR", help="where the table goes")
    return parser.parse_args()


def measure(cases: Sequence[Case], judges: str, settings: Settings) -> dict[str, Any]:
    """The summary of each variant."""
    from stepsieve.eval.stagewise import evaluate
    from stepsieve.eval.stagewise.ladders import ladder_of

    found = {}
    for name, change in VARIANTS.items():
        changed, options = change(cases, settings)
        ladder, endpoint = ladder_of(judges, options)
        reviewed = evaluate.review(changed, ladder, options)
        found[name] = evaluate.summary(reviewed, options, endpoint.asked if endpoint else 0)
    return found


def main() -> None:
    arguments = _arguments()
    check_installed()
    from stepsieve.eval.stagewise import corpus, evaluate, metrics, settings

    options = settings.read(arguments.config)
    found = measure(corpus.read_cases(arguments.data, arguments.graphs), arguments.judges, options)
    columns = ("variant", "mean", *(f"DS({eps})" for eps in metrics.EPSILONS), "p<.05", "stopped", "saved", "calls")
    title = f"ablations, {arguments.judges}: {found['full']['reviewed']} of {found['full']['runs']} runs"
    table = evaluate.table(title, columns)
    for name, own in found.items():
        scored = [agent for agent in own["agents"].values() if agent["score"] is not None]
        mean = sum(agent["score"] * agent["reviewed"] for agent in scored) / own["reviewed"]
        table.add_row(
            name,
            evaluate.number(mean, 4),
            *(evaluate.number(value, 4) for value in own["discriminability"].values()),
            f"{sum(pair['p_value'] < SIGNIFICANT for pair in own['pairs'])} of {len(own['pairs'])}",
            evaluate.number(own["stop_rate"]),
            f"{own['saved']['share_of_stopped_runs']:.1%}",
            evaluate.number(own["judge_calls_per_action"]),
        )
    Console(width=None if Console().is_terminal else WIDTH).print(table)
    page = io.StringIO()
    Console(file=page, width=WIDTH).print(table)
    out = Path(arguments.out)
    write_atomic(out / "ablations.json", orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n")
    write_atomic(out / "ablations.md", f"# Ablations\n\n```\n{page.getvalue()}```\n".encode())


if __name__ == "__main__":
    run_cli(main)

"""The quality of milestone graphs against the reference actions of a benchmark's tasks.

    python eval/stagewise/quality.py --data tau_bench/gpt-4o-airline.json
    python eval/stagewise/quality.py --data FILE --graphs FILE          # graphs of eval/stagewise/plan.py

Each run's graph is made from the other successful runs of its task. References come in here only, after the graphs are
made. Reference actions are those of the task records (tau-bench, tau2-bench): which calls the task is solved by. Three
counts are given: of the operations, the calls that change something, which is what those benchmarks check; of look-ups
too, which references list now and then; and of all reference actions. The reference minefields are the destructive
tools that the reference does without.
"""

from __future__ import annotations

from argparse import Namespace, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from stepsieve.data.errors import DataError, Parser, run_cli
from stepsieve.data.jsonio import expect
from stepsieve.data.trajectory import Trajectory
from stepsieve.eval.stagewise import check_installed
from stepsieve.models.checkpoint import write_atomic

COUNTED = {
    "operations": ("write",),
    "operations and look-ups": ("write", "read"),
    "all reference actions": ("write", "read", "say"),
}
"""What is compared, and which effects it counts."""


def _arguments() -> Namespace:
    parser = Parser("eval/stagewise/quality.py", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", required=True, metavar="PATH", help="runs with task records: a folder or a file")
    add("--graphs", metavar="FILE", help="milestone graphs as JSON Lines (default: from the other runs of each task)")
    add("--json", metavar="FILE", help="write the figures")
    return parser.parse_args()


def reference_actions(run: Trajectory) -> list[tuple[str, str]] | None:
    """(requestor, name) of each reference action of the run's task; None where its record has none.

    Raises:
        DataError: a record of another form.
    """
    task = run.task or {}
    criteria = task.get("evaluation_criteria")
    actions = task.get("actions", criteria.get("actions") if isinstance(criteria, Mapping) else None)
    if actions is None:
        return None
    found = []
    for place, action in enumerate(expect(actions, list, "a list of actions", "task.actions")):
        own = expect(action, dict, "an action", f"task.actions[{place}]")
        name = expect(own.get("name"), str, "text", f"task.actions[{place}].name")
        found.append((str(own.get("requestor") or "assistant"), name))
    return found


def measure(cases: Sequence[Any]) -> dict[str, Any]:
    """The figures of cases whose runs have reference actions.

    Args:
        cases: of ``corpus.cases_of``.
    """
    import networkx as nx

    from stepsieve.eval.stagewise import metrics
    from stepsieve.eval.stagewise.task_view import canonical

    overlaps: dict[str, list[metrics.Overlap]] = {name: [] for name in COUNTED}
    mines, distances, broken, without = [], [], 0, Counter[str]()
    for case in cases:
        actions = reference_actions(case.run)
        if actions is None:
            without["expected reference actions in the task record, found none"] += 1
            continue
        if case.graph is None:
            without[case.reason] += 1
            continue
        try:
            case.graph.check(case.view)
        except DataError:
            broken += 1
            continue
        effects = {tool.key: tool.effect for tool in case.view.tools}
        wanted = Counter((requestor, canonical(name)) for requestor, name in actions)
        for name, counted in COUNTED.items():
            kept = Counter({key: count for key, count in wanted.items() if effects.get(key, "write") in counted})
            own = metrics.operations(case.graph, lambda key, e=effects, c=counted: e[key] in c)
            overlaps[name].append(metrics.overlap(own, kept))
        destructive = {tool.key for tool in case.view.tools if tool.destructive}
        named = Counter({own.tool_key for own in case.graph.minefields})
        mines.append(metrics.overlap(named, Counter(destructive - wanted.keys())))
        # The reference gives no order, only which calls: no edges.
        reference = nx.DiGraph()
        writes = [key for key in wanted.elements() if effects.get(key, "write") == "write"]
        reference.add_nodes_from((place, {"tool": key}) for place, key in enumerate(writes))
        labelled = metrics.as_labelled(case.graph, lambda key, e=effects: e[key] == "write")
        distances.append(metrics.ged_similarity(labelled, reference))
    if not mines:
        reasons = "; ".join(without) or "a graph that keeps the contract"
        raise DataError(f"expected a run with a graph and reference actions, found none: {reasons}")
    return {
        "runs": len(cases),
        "graphs": len(mines) + broken,
        "without": dict(without.most_common()),
        "valid_rate": len(mines) / (len(mines) + broken),
        **{name: _figures(own) for name, own in overlaps.items()},
        "minefields": _figures(mines),
        "ged_similarity": sum(distances) / len(distances),
    }


def _figures(overlaps: Sequence[Any]) -> dict[str, float]:
    from stepsieve.eval.stagewise import metrics

    together = metrics.micro(overlaps)
    return {
        "precision": together.precision,
        "recall": together.recall,
        "micro_f1": together.f1,
        "macro_f1": metrics.macro_f1(overlaps),
    }


def main() -> None:
    arguments = _arguments()
    check_installed()
    from stepsieve.eval.stagewise import corpus, evaluate

    make = corpus.read_graphs(Path(arguments.graphs)) if arguments.graphs else None
    found = measure(corpus.cases_of(corpus.read(arguments.data), make))
    columns = ("of", "precision", "recall", "micro F1", "macro F1")
    table = evaluate.table("milestone graphs against reference actions", columns)
    for name in (*COUNTED, "minefields"):
        table.add_row(name, *(evaluate.number(value) for value in found[name].values()))
    console = Console(width=None if Console().is_terminal else 120)
    console.print(table)
    console.print(f"valid rate {found['valid_rate']:.1%} of {found['graphs']} graphs", highlight=False)
    console.print(f"GED similarity {found['ged_similarity']:.3f}", highlight=False)
    for reason, count in found["without"].items():
        console.print(f"{count} of {found['runs']} runs left out: {reason}", highlight=False)
    if arguments.json:
        write_atomic(Path(arguments.json), orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n")


if __name__ == "__main__":
    run_cli(main)

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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from rich.console import Console

from stepsieve.data.errors import DataError, Parser, run_cli
from stepsieve.data.jsonio import expect
from stepsieve.data.trajectory import Trajectory
from stepsieve.eval.stagewise import check_installed
from stepsieve.models.checkpoint import write_atomic

if TYPE_CHECKING:
    import networkx as nx

    from stepsieve.eval.stagewise.corpus import Case
    from stepsieve.eval.stagewise.graph import MilestoneGraph
    from stepsieve.eval.stagewise.metrics import Overlap
    from stepsieve.eval.stagewise.task_view import TaskView, ToolKey

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


def reference_actions(run: Trajectory) -> list[ToolKey] | None:
    """(requestor, canonical name) of each reference action of the run's task; None where its record has none.

    Raises:
        DataError: a record of another form.
    """
    from stepsieve.eval.stagewise.task_view import canonical

    task = run.task or {}
    criteria = task.get("evaluation_criteria")
    actions = task.get("actions", criteria.get("actions") if isinstance(criteria, Mapping) else None)
    if actions is None:
        return None
    found = []
    for place, action in enumerate(expect(actions, list, "a list of actions", "task.actions")):
        own = expect(action, dict, "an action", f"task.actions[{place}]")
        name = expect(own.get("name"), str, "text", f"task.actions[{place}].name")
        found.append((str(own.get("requestor") or "assistant"), canonical(name)))
    return found


def measure(cases: Sequence[Case]) -> dict[str, Any]:
    """The figures of the cases that have a graph and reference actions.

    Raises:
        DataError: there is none.
    """
    from stepsieve.eval.stagewise import metrics

    overlaps: dict[str, list[Overlap]] = {name: [] for name in (*COUNTED, "minefields")}
    similarities: list[float] = []
    broken, without = 0, Counter[str]()
    for case in cases:
        actions = reference_actions(case.run)
        if actions is None:
            without["expected reference actions in the task record, found none"] += 1
        elif case.graph is None:
            without[case.reason] += 1
        elif not _is_valid(case.graph, case.view):
            broken += 1
        else:
            for name, own in _overlaps(case.graph, case.view, actions).items():
                overlaps[name].append(own)
            counted = _counted(case.view, ("write",))
            reference = _unordered([key for key in actions if counted(key)])
            similarities.append(metrics.ged_similarity(metrics.as_labelled(case.graph, counted), reference))
    if not similarities:
        reasons = "; ".join(without) or "only graphs that break the contract"
        raise DataError(f"expected a run with a graph and reference actions, found none: {reasons}")
    return {
        "runs": len(cases),
        "graphs": len(similarities) + broken,
        "without": dict(without.most_common()),
        "valid_rate": len(similarities) / (len(similarities) + broken),
        **{name: _figures(own) for name, own in overlaps.items()},
        "ged_similarity": sum(similarities) / len(similarities),
    }


def _is_valid(graph: MilestoneGraph, view: TaskView) -> bool:
    try:
        graph.check(view)
    except DataError:
        return False
    return True


def _overlaps(graph: MilestoneGraph, view: TaskView, actions: Sequence[ToolKey]) -> dict[str, Overlap]:
    """What a graph shares with the reference, by what is compared."""
    from stepsieve.eval.stagewise import metrics

    found = {}
    for name, effects in COUNTED.items():
        counted = _counted(view, effects)
        wanted = Counter(key for key in actions if counted(key))
        found[name] = metrics.overlap(metrics.operations(graph, counted), wanted)
    forbidden = {tool.key for tool in view.tools if tool.destructive} - set(actions)
    named = {own.tool_key for own in graph.minefields}
    found["minefields"] = metrics.overlap(Counter(named), Counter(forbidden))
    return found


def _counted(view: TaskView, effects: Sequence[str]) -> Callable[[ToolKey], bool]:
    """Whether a tool's effect is one of these; a tool that no run has called counts as a write."""

    def counted(key: ToolKey) -> bool:
        tool = view.by_key.get(key)
        return (tool.effect if tool else "write") in effects

    return counted


def _unordered(actions: Sequence[ToolKey]) -> nx.DiGraph:
    """The reference as a graph: it names calls, and no order that they need."""
    import networkx

    graph = networkx.DiGraph()
    graph.add_nodes_from((place, {"tool": key}) for place, key in enumerate(actions))
    return graph


def _figures(overlaps: Sequence[Overlap]) -> dict[str, float]:
    from stepsieve.eval.stagewise import metrics

    together = metrics.micro(overlaps)
    return {
        "precision": together.precision,
        "recall": together.recall,
        "micro_f1": together.f1,
        "macro_f1": metrics.macro_f1(overlaps),
        "in_reference": together.expected,
    }


def main() -> None:
    arguments = _arguments()
    check_installed()
    from stepsieve.eval.stagewise import corpus, evaluate

    make = corpus.read_graphs(Path(arguments.graphs)) if arguments.graphs else None
    found = measure(corpus.cases_of(corpus.read(arguments.data), make))
    columns = ("of", "precision", "recall", "micro F1", "macro F1", "in reference")
    table = evaluate.table("milestone graphs against reference actions", columns)
    for name in (*COUNTED, "minefields"):
        *shares, count = found[name].values()
        table.add_row(name, *map(evaluate.number, shares), str(count))
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

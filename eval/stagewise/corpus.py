"""A corpus made ready for review: catalogues, views and a milestone graph for each run, or the reason for none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepsieve.data.errors import DataError
from stepsieve.data.ingest import load
from stepsieve.data.jsonio import expect, loads
from stepsieve.data.trajectory import Trajectory
from stepsieve.eval.stagewise.candidates import graph_of
from stepsieve.eval.stagewise.graph import MilestoneGraph, from_dict
from stepsieve.eval.stagewise.task_view import TaskView, Tool, declared, observed, view_of

MakeGraph = Callable[[Trajectory, TaskView], MilestoneGraph]


@dataclass(frozen=True)
class Case:
    """A run, the view of its task and its graph; ``graph`` is None where there is none, for the reason given."""

    run: Trajectory
    view: TaskView
    graph: MilestoneGraph | None
    reason: str = ""


def catalogues(runs: Iterable[Trajectory]) -> dict[str, tuple[Tool, ...]]:
    """The catalogue of each run, by its id: the tools it brings along, else those seen in its domain.

    Raises:
        DataError: tool definitions that are none.
    """
    by_domain: defaultdict[str, list[Trajectory]] = defaultdict(list)
    for run in runs:
        by_domain[run.domain].append(run)
    found = {}
    for own in by_domain.values():
        seen = observed(own)
        for run in own:
            try:
                found[run.id] = declared(run.extra["tools"]) if run.extra.get("tools") else seen
            except DataError as error:
                raise error.at(trajectory=run.id) from None
    return found


def views_of(runs: Sequence[Trajectory]) -> dict[str, TaskView]:
    """The view of each run's task, by the run's id."""
    tools = catalogues(runs)
    return {run.id: view_of(run, tools[run.id]) for run in runs}


def cases_of(runs: Sequence[Trajectory], make: MakeGraph | None = None) -> list[Case]:
    """The runs with their graphs.

    Args:
        make: gives a run's graph, or raises DataError that says why there is none; by default it is made from the
            other successful runs of the task.
    """
    by_task: defaultdict[tuple[str, str], list[Trajectory]] = defaultdict(list)
    for run in runs:
        by_task[run.group].append(run)
    views = views_of(runs)
    cases = []
    for run in runs:
        view = views[run.id]
        try:
            graph = make(run, view) if make else graph_of(run, by_task[run.group], view)
            cases.append(Case(run, view, graph))
        except DataError as error:
            cases.append(Case(run, view, None, error.expected))
    return cases


def read_cases(data: str, graphs: str | None) -> list[Case]:
    """The runs of ``data`` with the graphs of a file, by default those of the other runs of each task.

    Raises:
        DataError: runs or graphs that can't be used, or not one run with a graph.
    """
    cases = cases_of(read(data), read_graphs(Path(graphs)) if graphs else None)
    if all(case.graph is None for case in cases):
        raise DataError(f"expected a milestone graph for at least one run, found none: {cases[0].reason}", file=data)
    return cases


def read(path: str) -> list[Trajectory]:
    """The runs of a file or folder in any known format. Raises DataError: none, or one that can't be used."""
    runs = list(load(path))
    if not runs:
        raise DataError("expected at least one trajectory, found none", file=path)
    return runs


def read_graphs(path: Path) -> MakeGraph:
    """Graphs of a JSON Lines file: ``{"domain", "task_id", "graph"}`` a line.

    Raises:
        DataError: a line that is none; when asked, a task without a graph, or a graph that breaks the contract.
    """
    graphs: dict[tuple[str, str], MilestoneGraph] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            record: Mapping[str, object] = expect(loads(line), dict, "an object", "line")
            key = tuple(expect(record.get(name), str, "text", name) for name in ("domain", "task_id"))
            graphs[key] = from_dict(record.get("graph"))
        except DataError as error:
            raise error.at(file=f"{path}:{number}") from None

    def make(run: Trajectory, view: TaskView) -> MilestoneGraph:
        graph = graphs.get((run.domain, run.task_id))
        if graph is None:
            raise DataError(f"expected a graph of the task, found none in {path}", trajectory=run.id)
        try:
            graph.check(view)
        except DataError as error:
            raise DataError(f"{error.field}: {error.expected}", trajectory=run.id) from None
        return graph

    return make

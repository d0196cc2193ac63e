"""Agreement of annotators with gold labels and with each other (RedundancyBench, arXiv 2605.29893, appendix E).

    python eval/agreement.py --data DIR --predictions a.json b.jsonl c/annotation.json [--json FILE]

Each file is one annotator (eval/annotators.py says which forms are read). The appendix names these figures; its
formulas were not at hand when this was written, so here is what each one means here. A *group* is one named redundancy:
step, type and evidence together. Sums run over all runs before they are divided (micro averages).

Of two annotators, the first of which is the gold where there is one:

- *scope*: ``conditional`` takes the runs that the annotator answered; ``end_to_end`` all that have gold labels, a run
  without an answer counting as one in which it named nothing.
- ``group_precision``, ``group_recall``, ``group_f1``: groups that both name, over those of the second, of the first,
  and their harmonic mean.
- ``partial_precision``, ``partial_recall``: as these, but a step that both name earns one third, and one third more
  each for the same type and for the same evidence (the best of its groups).
- ``step_precision``, ``step_recall``, ``step_f1``: steps alone.
- ``type_agreement``: of the steps that both name, those with the same type; the confusion counts which types.
- ``evidence_agreement``: of these, those with the same evidence; ``evidence_overlap``: the mean of shared over all
  evidence that either names (Jaccard), by interaction, message or policy.
- ``identical``: share of runs in which both name the same groups.
- ``kappa_redundant``, ``kappa_type``: Cohen's kappa (1960) over all steps that could be redundant (answered assistant
  calls), as redundant or not, and as one of the four types or necessary.

Of all annotators together: ``consensus``, the share of runs in which at least two name the same groups and at least one
group (the benchmark's own rule for its automated subset); ``unanimous``, in which all name the same; ``step_majority``,
of the steps that anyone names, those that more than half give the same type; Fleiss' kappa (1971), over runs that all
answered; Krippendorff's alpha (nominal), over all runs, missing answers allowed. ``majority`` is compared like an
annotator: the groups that more than half of them name.

Kappas and alpha are nltk's (extra: agreement). A figure that is not defined, such as a kappa where only one label
occurs, is NaN, in JSON null. Intervals: 95% bootstraps over tasks.
"""

from __future__ import annotations

from argparse import Namespace, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
from rich.console import Console
from rich.table import Table

from stepsieve.data import references
from stepsieve.data.errors import DataError, Parser, require, run_cli
from stepsieve.data.ingest import load
from stepsieve.data.trajectory import REDUNDANCY_TYPES, Reference, Trajectory
from stepsieve.eval import metrics
from stepsieve.eval.annotators import Annotator, Group, Groups, gold, load_annotator, majority
from stepsieve.eval.intervals import Interval, bootstrap_sums
from stepsieve.eval.kappa import NLTK, alpha, cohen, fleiss
from stepsieve.models.checkpoint import write_atomic

Floats = npt.NDArray[np.float64]

CONDITIONAL, END_TO_END = "conditional", "end_to_end"
Named = dict[Reference, Group]


# --- two annotators --------------------------------------------------------------------------------------------------

_SUMS = (
    "first_groups",
    "second_groups",
    "same_groups",
    "credit",
    "first_steps",
    "second_steps",
    "same_steps",
    "same_type",
    "same_evidence",
    "overlap",
    "identical",
    "runs",
)
_COLUMN = {name: column for column, name in enumerate(_SUMS)}


def _over(above: str, *below: str) -> Callable[[Floats], Floats]:
    """The sum ``above`` over the mean of the sums ``below``: of two counts, the F1 of their precision and recall."""

    def ratio(sums: Floats) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            return sums[..., _COLUMN[above]] / np.mean([sums[..., _COLUMN[name]] for name in below], axis=0)

    return ratio


FIGURES: Mapping[str, Callable[[Floats], Floats]] = {
    "group_precision": _over("same_groups", "second_groups"),
    "group_recall": _over("same_groups", "first_groups"),
    "group_f1": _over("same_groups", "first_groups", "second_groups"),
    "partial_precision": _over("credit", "second_groups"),
    "partial_recall": _over("credit", "first_groups"),
    "step_precision": _over("same_steps", "second_steps"),
    "step_recall": _over("same_steps", "first_steps"),
    "step_f1": _over("same_steps", "first_steps", "second_steps"),
    "type_agreement": _over("same_type", "same_steps"),
    "evidence_agreement": _over("same_evidence", "same_steps"),
    "evidence_overlap": _over("overlap", "same_steps"),
    "identical": _over("identical", "runs"),
}


def compare(first: Annotator, second: Annotator, runs: Sequence[Trajectory]) -> dict[str, Any]:
    """The figures of two annotators over these runs, and their confusion of types.

    Args:
        first, second: a run that one of them did not answer counts as one in which it named nothing.

    Raises:
        DataError: nltk is not installed.
    """
    first, second = _filled(first, runs), _filled(second, runs)
    parts = np.array([_parts(first, second, run.id) for run in runs], dtype=np.float64).reshape(-1, len(_SUMS))
    tasks = [run.group for run in runs]
    figures: dict[str, Any] = {name: bootstrap_sums(parts, figure, tasks) for name, figure in FIGURES.items()}
    for name, binary in (("kappa_redundant", True), ("kappa_type", False)):
        figures[name] = cohen(first, second, runs, binary)
    return {**figures, "confusion": confusion(first, second, runs)}


def _filled(annotator: Annotator, runs: Sequence[Trajectory]) -> Annotator:
    return replace(annotator, groups={**{run.id: () for run in runs}, **annotator.groups})


def _parts(first: Annotator, second: Annotator, run: str) -> list[float]:
    """What one run adds to each of the sums."""
    a, b = first.groups[run], second.groups[run]
    steps_a, steps_b = first.steps(run), second.steps(run)
    both = [(steps_a[step], steps_b[step]) for step in steps_a if step in steps_b]
    sums = {
        "first_groups": len(a),
        "second_groups": len(b),
        "same_groups": len(set(a) & set(b)),
        "credit": sum(_credit(a, b, step) for step in steps_a if step in steps_b),
        "first_steps": _named(a),
        "second_steps": _named(b),
        "same_steps": len(both),
        "same_type": sum(x.type is not None and x.type == y.type for x, y in both),
        "same_evidence": sum(x.evidence is not None and x.evidence == y.evidence for x, y in both),
        "overlap": sum(_overlap(x.evidence, y.evidence) for x, y in both),
        "identical": set(a) == set(b),
        "runs": 1,
    }
    return [float(sums[name]) for name in _SUMS]


def _named(groups: Groups) -> int:
    """How many steps are named; each that was written unusably is one."""
    return len({group.step for group in groups if group.step}) + sum(group.step is None for group in groups)


def _credit(a: Groups, b: Groups, step: Reference) -> float:
    own, others = ([group for group in groups if group.step == step] for groups in (a, b))
    return max((1 + _same(x.type, y.type) + _same(x.evidence, y.evidence)) / 3 for x in own for y in others)


def _same(x: object, y: object) -> bool:
    return x is not None and x == y


def _overlap(x: Reference | None, y: Reference | None) -> float:
    if x is None or y is None:
        return 0.0
    a, b = (set[Reference](references.pairs(own)) or {own} for own in (x, y))
    return len(a & b) / len(a | b)


def confusion(first: Annotator, second: Annotator, runs: Iterable[Trajectory]) -> dict[str, dict[str, int]]:
    """How often the steps that both name have each pair of types: first's type -> second's type -> count.

    A type that a model left unusable is in no column.
    """
    both = [(a[step].type, b[step].type) for a, b in _steps(first, second, runs) for step in a if step in b]
    counts = metrics.confusion(*(metrics.type_indices(pair[side] for pair in both) for side in (0, 1)))
    columns = [dict(zip(REDUNDANCY_TYPES, row, strict=True)) for row in counts.tolist()]
    return dict(zip(REDUNDANCY_TYPES, columns, strict=True))


def _steps(first: Annotator, second: Annotator, runs: Iterable[Trajectory]) -> Iterator[tuple[Named, Named]]:
    return ((first.steps(run.id), second.steps(run.id)) for run in runs)


# --- all of them together --------------------------------------------------------------------------------------------


def together(annotators: Sequence[Annotator], runs: Sequence[Trajectory]) -> dict[str, float]:
    """Figures of two or more annotators together; shares in [0, 1], over runs that all answered.

    Raises:
        DataError: nltk is not installed.
    """
    own = [run for run in runs if all(run.id in annotator.groups for annotator in annotators)]
    sets = [[frozenset(annotator.groups[run.id]) for annotator in annotators] for run in own]
    agreed = [any(count > 1 for groups, count in Counter(named).items() if groups) for named in sets]
    types = [Counter(_types_of(annotators, run.id, step)) for run in own for step in _any_names(annotators, run.id)]
    most = [max((n for kind, n in kinds.items() if kind is not None), default=0) for kinds in types]
    figures = {
        "runs": float(len(own)),
        "consensus": _mean(agreed),
        "unanimous": _mean([len(set(named)) == 1 for named in sets]),
        "step_majority": _mean([2 * count > len(annotators) for count in most]),
    }
    for kind, binary in (("redundant", True), ("type", False)):
        figures[f"fleiss_{kind}"] = fleiss(annotators, runs, binary)
        figures[f"alpha_{kind}"] = alpha(annotators, runs, binary)
    return figures


def _any_names(annotators: Sequence[Annotator], run: str) -> dict[Reference, None]:
    return dict.fromkeys(step for annotator in annotators for step in annotator.steps(run))


def _types_of(annotators: Sequence[Annotator], run: str, step: Reference) -> list[str | None]:
    named = [annotator.steps(run).get(step) for annotator in annotators]
    return [group.type for group in named if group is not None]


def _mean(values: Sequence[bool]) -> float:
    return float(np.mean(values)) if values else float("nan")


def report(annotators: Sequence[Annotator], runs: Sequence[Trajectory], reference: Annotator | None) -> dict[str, Any]:
    """What the command writes with ``--json``: ``gold`` by annotator and scope, ``pairs``, and ``together``.

    Args:
        reference: the gold labels, where there are any.

    Raises:
        DataError: nltk is not installed.
    """
    several = len(annotators) > 1
    compared = [*annotators, *([majority(annotators, runs)] if several else [])]
    found: dict[str, Any] = {}
    if reference is not None:
        labelled = [run for run in runs if run.id in reference.groups]
        found["gold"] = {
            own.name: {
                CONDITIONAL: compare(reference, own, [run for run in labelled if run.id in own.groups]),
                END_TO_END: compare(reference, own, labelled),
            }
            for own in compared
        }
    if several:
        found["pairs"] = {
            f"{a.name} | {b.name}": compare(a, b, [r for r in runs if r.id in a.groups and r.id in b.groups])
            for a, b in combinations(annotators, 2)
        }
        found["together"] = together(annotators, runs)
    return found


# --- the command -----------------------------------------------------------------------------------------------------


def tables(found: Mapping[str, Any]) -> list[Table]:
    """The figures as tables: one column for each comparison."""
    made = []
    for scope in (CONDITIONAL, END_TO_END):
        if "gold" in found:
            columns = {name: own[scope] for name, own in found["gold"].items()}
            made.append(_table(f"With the gold labels, {scope.replace('_', '-')}", columns))
    if "pairs" in found:
        made.append(_table("Between annotators, on runs that both answered", found["pairs"]))
    for name, own in found.get("gold", {}).items():
        made.append(_confusion_table(f"Types of steps that both name: gold (rows) and {name}", own[CONDITIONAL]))
    if "together" in found:
        rows = Table(title="All annotators together", title_justify="left")
        rows.add_column("")
        rows.add_column("", justify="right")
        for name, value in found["together"].items():
            rows.add_row(name, f"{value:,.0f}" if name == "runs" else _cell(value))
        made.append(rows)
    return made


def _table(title: str, columns: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right")
    for figure in (*FIGURES, "kappa_redundant", "kappa_type"):
        table.add_row(figure, *(_cell(own[figure]) for own in columns.values()))
    return table


def _confusion_table(title: str, own: Mapping[str, Any]) -> Table:
    table = Table(title=title, title_justify="left")
    for head in ("", *own["confusion"]):
        table.add_column(head, justify="right" if head else "left")
    for kind, row in own["confusion"].items():
        table.add_row(kind, *map(str, row.values()))
    return table


def _cell(value: Interval | float) -> str:
    number = value.value if isinstance(value, Interval) else value
    if np.isnan(number):
        return "-"
    return f"{number:.3f} [{value.low:.3f}, {value.high:.3f}]" if isinstance(value, Interval) else f"{number:.3f}"


def _distinct(annotators: Iterable[Annotator]) -> list[Annotator]:
    """The same under names that differ: one that occurs again is numbered."""
    taken: Counter[str] = Counter()
    named = []
    for own in annotators:
        taken[own.name] += 1
        named.append(replace(own, name=f"{own.name} ({taken[own.name]})") if taken[own.name] > 1 else own)
    return named


def _arguments() -> Namespace:
    parser = Parser("eval/agreement.py", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="DIR", help="the trajectories, with gold labels if any")
    parser.add_argument("--predictions", nargs="+", required=True, metavar="FILE", help="one file for each annotator")
    parser.add_argument("--json", metavar="FILE", help="write all figures")
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    if arguments.json and any(Path(path).resolve() == Path(arguments.json).resolve() for path in arguments.predictions):
        raise DataError("expected an output that is not among the inputs", file=arguments.json)
    require(NLTK, "agreement")
    runs = list(load(arguments.data))
    reference = gold(runs)
    annotators = _distinct(load_annotator(path, runs) for path in arguments.predictions)
    if not reference.groups and len(annotators) < 2:
        raise DataError("expected gold labels or a second annotator to compare with", file=arguments.data)
    console = Console(width=None if Console().is_terminal else 140)
    for own in annotators:
        foreign = f"; {own.foreign} that the data has not" if own.foreign else ""
        console.print(f"{own.name}: {len(own.groups)} of {len(runs)} runs answered{foreign}", highlight=False)
    found = report(annotators, runs, reference if reference.groups else None)
    for table in tables(found):
        console.print(table)
    if arguments.json:
        plain = orjson.dumps(
            found, default=Interval.to_dict, option=orjson.OPT_INDENT_2 | orjson.OPT_PASSTHROUGH_DATACLASS
        )
        write_atomic(Path(arguments.json), plain + b"\n")


if __name__ == "__main__":
    run_cli(main)

"""What redundant steps cost: their share of the tokens, and whether they are what makes some runs of a task long.

    python eval/efficiency.py --data DIR                          # gold, and what the shipped checkpoint detects
    python eval/efficiency.py --data DIR --predictions OUT/predictions/det-pooled-cv-gbdt.json     # held out

Tokens are recorded or estimated (eval/tokens.py), said which. Of each run are counted:

- *agent tokens*: what the agent wrote (its messages with their calls) and what its calls returned;
- *written tokens*: what it wrote alone;
- those of redundant steps: the call's share of its message, and its result.

Policies and the user's side are not counted. Shares are sums over sums. Correlations are of a run's redundant agent
tokens with all its agent tokens, redundant ones among them. *Within tasks*: each run less the mean of its task's runs,
over tasks with two runs or more, so that tasks that take more steps anyway don't make it (a task with one run says
nothing); *across runs*: plain. Pearson's r, and Spearman's rho of the same values. All intervals: 95%, 4,000 bootstraps
over tasks. The figures of RedundancyBench (arXiv 2605.29893) beside ours are its published ones, on its full data; how
it counts tokens was not at hand when this was written.
"""

from __future__ import annotations

from argparse import Namespace, RawDescriptionHelpFormatter
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
from rich.console import Console
from rich.table import Table

from stepsieve.data.errors import DataError, Parser, run_cli
from stepsieve.data.ingest import load
from stepsieve.data.trajectory import Trajectory
from stepsieve.eval import redundant
from stepsieve.eval.bench import seen_in_training
from stepsieve.eval.intervals import Interval, bootstrap_counts, bootstrap_sums
from stepsieve.eval.redundant import Steps
from stepsieve.eval.tokens import Estimate, StepTokens, best_estimate, step_tokens
from stepsieve.models.checkpoint import write_atomic

Floats = npt.NDArray[np.float64]

N_BOOT = 4000
PAPER: Mapping[str, str] = {"airline": "r = 0.816", "retail": "rho = 0.570", "telecom": "r = 0.263"}
"""The published within-task correlations (RedundancyBench, arXiv 2605.29893), by domain."""


@dataclass(frozen=True)
class Cost:
    """Tokens of some runs; every array has shape (n_runs, 2): agent tokens and written tokens.

    Attributes:
        runs: the runs.
        total: all of them.
        redundant: those of the redundant steps; NaN for a run that nobody answered for.
    """

    runs: Sequence[Trajectory]
    total: Floats
    redundant: Floats

    def take(self, rows: npt.NDArray[np.bool_]) -> Cost:
        """The runs of a mask (n_runs,)."""
        runs = [run for run, own in zip(self.runs, rows.tolist(), strict=True) if own]
        return Cost(runs, self.total[rows], self.redundant[rows])

    def answered(self) -> Cost:
        """The runs that somebody answered for."""
        return self.take(np.isfinite(self.redundant[:, 0]))

    @property
    def tasks(self) -> list[tuple[str, str]]:
        return [run.group for run in self.runs]


def cost(runs: Sequence[Trajectory], tokens: Sequence[StepTokens], steps: Sequence[Steps | None]) -> Cost:
    """The tokens of runs and of their redundant steps."""
    total = [_agent_tokens(run, own) for run, own in zip(runs, tokens, strict=True)]
    of_steps = [
        (np.nan, np.nan)
        if named is None
        else (sum(own.written[step] + own.read[step] for step in named), sum(own.written[step] for step in named))
        for own, named in zip(tokens, steps, strict=True)
    ]
    return Cost(runs, np.array(total).reshape(-1, 2), np.array(of_steps, dtype=np.float64).reshape(-1, 2))


def _agent_tokens(run: Trajectory, tokens: StepTokens) -> tuple[float, float]:
    written = sum(
        float(size) for message, size in zip(run.messages, tokens.message, strict=True) if message.role == "assistant"
    )
    return written + sum(tokens.read.values()), written


# --- figures ---------------------------------------------------------------------------------------------------------


def share(of: Cost, column: int) -> Interval:
    """Share of agent tokens (column 0) or written tokens (1) in redundant steps, in [0, 1]; NaN where there is none."""
    parts = np.stack([of.redundant[:, column], of.total[:, column]], axis=1)
    return bootstrap_sums(parts, _ratio, of.tasks, n_boot=N_BOOT)


def correlations(of: Cost, within: bool) -> dict[str, Interval]:
    """``pearson`` and ``spearman`` of redundant and all agent tokens, each in [-1, 1]; NaN where one does not vary.

    Args:
        within: of the deviations from the mean of the task, over tasks with several runs; else of the values.
    """
    if within:
        of = of.take(np.array(_repeated(of.tasks), dtype=bool))
    x, y = of.redundant[:, 0], of.total[:, 0]
    if within:
        x, y = _deviations(x, of.tasks), _deviations(y, of.tasks)
    return {
        "pearson": bootstrap_counts(lambda counts: correlation(x, y, counts), of.tasks, n_boot=N_BOOT),
        "spearman": bootstrap_counts(
            lambda counts: correlation(_ranks(x, counts), _ranks(y, counts), counts), of.tasks, n_boot=N_BOOT
        ),
    }


def _repeated(tasks: Sequence[tuple[str, str]]) -> list[bool]:
    runs = Counter(tasks)
    return [runs[task] > 1 for task in tasks]


def _deviations(values: Floats, tasks: Sequence[tuple[str, str]]) -> Floats:
    """(n,) each value less the mean of its task's."""
    _, task = np.unique([repr(own) for own in tasks], return_inverse=True)
    deviations: Floats = values - (np.bincount(task, values) / np.bincount(task))[task]
    return deviations


def _ratio(sums: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return sums[..., 0] / sums[..., 1]


_FLAT = 1e-12
"""A variance of this share of the greatest square, or less, is a rounding error's."""


def correlation(x: Floats, y: Floats, counts: Floats) -> Floats:
    """(m,) Pearson's r of x and y (n,) or (m, n) with each item counted so often (m, n); NaN where one is constant."""
    n = counts.sum(axis=1, keepdims=True)
    first, second = (own - (counts * own).sum(axis=1, keepdims=True) / n for own in (x, y))
    squares = [(counts * own * own).sum(axis=1) for own in (first, second)]
    flat = [
        square <= _FLAT * n[:, 0] * np.max(own * own, axis=-1, initial=0)
        for own, square in zip((x, y), squares, strict=True)
    ]
    with np.errstate(invalid="ignore", divide="ignore"):
        r = (counts * first * second).sum(axis=1) / np.sqrt(squares[0] * squares[1])
    return np.where(flat[0] | flat[1], np.nan, np.clip(r, -1, 1))


def _ranks(values: Floats, counts: Floats) -> Floats:
    """(m, n) the mean rank of each value (n,) among all, with each counted so often (m, n)."""
    order = np.argsort(values, kind="stable")
    first = np.flatnonzero(np.diff(values[order], prepend=-np.inf))
    size = np.add.reduceat(counts[:, order], first, axis=1)
    ranks = np.cumsum(size, axis=1) - (size - 1) / 2
    level = np.empty(len(values), dtype=np.int64)
    level[order] = np.repeat(np.arange(len(first)), np.diff(first, append=len(values)))
    found: Floats = ranks[:, level]
    return found


# --- the report ------------------------------------------------------------------------------------------------------


def slices(runs: Sequence[Trajectory]) -> dict[str, npt.NDArray[np.bool_]]:
    """Masks (n_runs,): ``all``, each domain, and each domain of each subset where that is not all of the domain."""
    domain, subset = np.array([run.domain for run in runs]), np.array([run.subset for run in runs])
    found = {"all": np.ones(len(runs), dtype=bool)}
    found.update((str(name), domain == name) for name in np.unique(domain) if name)
    for name in list(found)[1:]:
        parts = np.unique(subset[found[name]])
        found.update((f"{name}, {part}", found[name] & (subset == part)) for part in parts if len(parts) > 1)
    return found


def figures(of: Cost) -> dict[str, Any]:
    """All figures of one slice: tokens, shares and correlations, as JSON."""
    own = of.answered()
    repeated = _repeated(own.tasks)
    return {
        "runs": len(own.runs),
        "tasks": len(set(own.tasks)),
        "repeated_runs": sum(repeated),
        "agent_tokens": float(own.total[:, 0].sum()),
        "written_tokens": float(own.total[:, 1].sum()),
        "redundant_share": share(own, 0).to_dict(),
        "redundant_share_written": share(own, 1).to_dict(),
        **{
            f"{name}_{kind}": value.to_dict()
            for name, within in (("within_tasks", True), ("across_runs", False))
            for kind, value in correlations(own, within).items()
        },
    }


def per_message(runs: Sequence[Trajectory], tokens: Sequence[StepTokens]) -> dict[str, float]:
    """Mean tokens of a message, by role."""
    sizes: defaultdict[str, list[float]] = defaultdict(list)
    for run, own in zip(runs, tokens, strict=True):
        for message, size in zip(run.messages, own.message.tolist(), strict=True):
            sizes[message.role].append(size)
    return {role: float(np.mean(own)) for role, own in sorted(sizes.items())}


def report(
    runs: Sequence[Trajectory], steps: Mapping[str, Sequence[Steps | None]], estimate: Estimate
) -> dict[str, Any]:
    """What the command writes with ``--json``.

    Args:
        steps: name of a source -> its redundant steps of each run.
    """
    tokens = [step_tokens(run, estimate) for run in runs]
    recorded, messages = sum(own.recorded for own in tokens), sum(len(run.messages) for run in runs)
    by_source = {}
    for name, named in steps.items():
        whole = cost(runs, tokens, named)
        by_source[name] = {place: figures(whole.take(mask)) for place, mask in slices(runs).items()}
    return {
        "tokens": {
            "estimate": estimate.name,
            "messages": messages,
            "recorded": recorded,
            "per_message": per_message(runs, tokens),
        },
        "redundant": by_source,
        "paper_within_tasks": dict(PAPER),
    }


def shares_table(by_source: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Table:
    """One row for each slice: the shares of redundant steps by each source."""
    shown = Table(title="Tokens in redundant steps, percent, 95% bootstrap over tasks", title_justify="left")
    shown.add_column("", no_wrap=True)
    shown.add_column("runs", justify="right")
    for name in by_source:
        shown.add_column(f"agent tokens: {name}", justify="right")
        shown.add_column("written", justify="right")
    for place in next(iter(by_source.values())):
        own = [by_slice[place] for by_slice in by_source.values()]
        keys = ("redundant_share", "redundant_share_written")
        cells = [_cell(figure[key], 100, 1) for figure in own for key in keys]
        shown.add_row(place, ", ".join(dict.fromkeys(str(figure["runs"]) for figure in own)), *cells)
    return shown


def correlations_table(name: str, by_slice: Mapping[str, Mapping[str, Any]]) -> Table:
    """One row for each slice of one source: correlations within tasks and across runs, beside the paper's.

    *Repeats* are the runs of tasks that have several.
    """
    title = f"Redundant and all agent tokens of a run, correlation, 95% bootstrap over tasks: {name}"
    shown = Table(title=title, title_justify="left")
    shown.add_column("", no_wrap=True)
    for head in ("repeats", "within tasks: r", "rho", "paper", "across runs: r", "rho"):
        shown.add_column(head, justify="right")
    for place, own in by_slice.items():
        within = [_cell(own[f"within_tasks_{kind}"]) for kind in ("pearson", "spearman")]
        across = [_cell(own[f"across_runs_{kind}"]) for kind in ("pearson", "spearman")]
        shown.add_row(place, str(own["repeated_runs"]), *within, PAPER.get(place, ""), *across)
    return shown


def _cell(interval: Mapping[str, Any], factor: float = 1, digits: int = 3) -> str:
    value, low, high = (interval[name] for name in ("value", "low", "high"))
    if value is None:
        return "-"
    spread = "" if low is None else f" [{factor * low:.{digits}f}, {factor * high:.{digits}f}]"
    return f"{factor * value:.{digits}f}{spread}"


def _arguments() -> Namespace:
    parser = Parser("eval/efficiency.py", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="DIR", help="trajectories: a folder or a file")
    redundant.add_arguments(parser)
    parser.add_argument("--json", metavar="FILE", help="write all figures")
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    runs = list(load(arguments.data))
    if not runs:
        raise DataError("expected trajectories, found none", file=arguments.data)
    console = Console(width=None if Console().is_terminal else 150)
    source = redundant.source(arguments, safe=False)
    if source.judge is not None and (seen := seen_in_training(source.judge, runs)):
        warning = f"{seen} of {len(runs)} trajectories solve a task that this checkpoint was trained on"
        console.print(f"warning: {warning}; its figures here are not held out", style="yellow", highlight=False)
    steps = {source.name: source.choose(runs)}
    if any(run.labels is not None for run in runs):
        steps = {"gold labels": redundant.gold(runs), **steps}
    found = report(runs, steps, best_estimate())

    tokens = found["tokens"]
    means = ", ".join(f"{role} {mean:.1f}" for role, mean in tokens["per_message"].items())
    console.print(
        f"tokens: {tokens['recorded']} of {tokens['messages']} messages recorded, else {tokens['estimate']}; "
        f"mean per message: {means}",
        highlight=False,
    )
    console.print(shares_table(found["redundant"]))
    for name, by_slice in found["redundant"].items():
        console.print(correlations_table(name, by_slice))
    if arguments.json:
        write_atomic(Path(arguments.json), orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n")


if __name__ == "__main__":
    run_cli(main)

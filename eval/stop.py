"""Early stopping on recorded runs: what it would have saved, how often wrongly, and what it does to agents' results.

python eval/stop.py --predictions runs/stop/predictions/stop-*.json --json stop.json

Reads the held-out outlooks that train/stop.py writes. A run that is stopped counts as the success or the failure that
was foreseen; a stop is wrong where the run ended otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
from rich.console import Console
from rich.table import Table

from stepsieve.data.errors import DataError, Parser, run_cli
from stepsieve.data.jsonio import loads
from stepsieve.eval.detection import localisation_auc
from stepsieve.eval.intervals import Interval, bootstrap_any, bootstrap_sums, share_of
from stepsieve.models.checkpoint import write_atomic
from stepsieve.models.outlook import RUNNING, SUCCESS, Bounds, Outlook

PROGRESS = (0.25, 0.5, 0.75, 1.0)
"""The shares of a run at which its outlook is compared with its outcome."""
THRESHOLDS = (*(round(0.5 + 0.02 * k, 2) for k in range(25)), 0.99)
"""What is tried for the bounds: probabilities from 0.5."""

RATE = 0.05
"""The share of wrong stops at which the savings of a curve are told."""

Floats = npt.NDArray[np.float64]
Report = dict[str, Interval]


@dataclass(frozen=True)
class Watched:
    """A recorded run as a judge saw it that was not trained on it.

    Attributes:
        id, agent: of the run. group: its task. fold: what tested it.
        outcome: in [0, 1].
        outlooks: after each observation, in order; at least one.
        bounds: when the judge would have stopped it.
    """

    id: str
    agent: str
    group: tuple[str, str]
    fold: str
    outcome: float
    outlooks: tuple[Outlook, ...]
    bounds: Bounds = field(default_factory=Bounds)

    @property
    def succeeded(self) -> bool:
        return self.outcome >= 1

    @property
    def failed(self) -> bool:
        return self.outcome <= 0

    def at(self, share: float) -> Outlook:
        """The outlook once this share of the observations had been made, the first at the least."""
        return self.outlooks[max(int(len(self.outlooks) * share), 1) - 1]


@dataclass(frozen=True, slots=True)
class Stopped:
    """What stopping did to one run: whether it was stopped, wrongly, how many observations were spared, and what the
    run then counts as."""

    stopped: bool
    wrong: bool
    saved: int
    outcome: float


def stopped(run: Watched, bounds: Bounds | None = None) -> Stopped:
    """The run under its own bounds, or others."""
    found = (run.bounds if bounds is None else bounds).stop(run.outlooks)
    if found is None:
        return Stopped(False, False, 0, run.outcome)
    place, end = found
    right = run.succeeded if end == SUCCESS else run.failed
    return Stopped(True, not right, len(run.outlooks) - 1 - place, float(end == SUCCESS))


def choose_bounds(runs: Sequence[Watched], rate: float) -> Bounds:
    """The bounds that save most observations, with (wrong stops + 1) / (runs + 1) at most ``rate``.

    With runs like these, unseen by the heads, wrong stops of a new run then are at most so likely (conformal risk
    control, Angelopoulos et al., 2024). Of equal ones the highest.
    """
    never = 10**9
    lengths = np.array([len(run.outlooks) for run in runs])
    outlooks = [np.array(run.outlooks).reshape(-1, 2) for run in runs]
    tried = (*THRESHOLDS, np.inf)

    def places(column: int) -> npt.NDArray[np.int64]:
        """(n_thresholds, n_runs) the observation at which each threshold would stop each run."""
        found = np.full((len(tried), len(runs)), never)
        for number, own in enumerate(outlooks):
            sure = own[:, column] >= np.array(tried)[:, None]
            twice = sure[:, 1:] & sure[:, :-1]
            hit = twice.any(axis=1)
            found[hit, number] = twice[hit].argmax(axis=1) + 1
        return found

    success, failure = places(0), places(1)
    bad = np.array([not run.succeeded for run in runs]), np.array([not run.failed for run in runs])
    best, chosen = 0, Bounds()
    for s, good in reversed(list(enumerate(success))):
        for f, poor in reversed(list(enumerate(failure))):
            at = np.minimum(good, poor)
            wrong = int(np.where(good <= poor, bad[0], bad[1])[at < never].sum())
            saved = int((lengths - 1 - at)[at < never].sum())
            if saved > best and (wrong + 1) / (len(runs) + 1) <= rate:
                best = saved
                chosen = Bounds(*(None if np.isinf(tried[k]) else float(tried[k]) for k in (s, f)))
    return chosen


def stop_report(runs: Sequence[Watched], seed: int = 0) -> Report:
    """What the judge is worth, each with its interval over tasks.

    ``auc@50`` is the AUC of P(success) less P(failure) at half of each run; the rest is what ``stopping`` says.
    """
    groups: list[Hashable] = [run.group for run in runs]
    folds: list[Hashable] = [run.fold for run in runs]
    good = np.array([run.succeeded for run in runs])
    report: Report = {}
    for share in PROGRESS:
        outlooks = [run.at(share) for run in runs]
        score = np.array([outlook.success - outlook.failure for outlook in outlooks])
        report[f"auc@{100 * share:.0f}"] = bootstrap_any(_auc(good, score), groups, seed, folds=folds)
    return report | stopping(runs, seed=seed)


def stopping(runs: Sequence[Watched], bounds: Bounds | None = None, seed: int = 0) -> Report:
    """What stopping the runs does, by their own bounds or others.

    ``saved`` is the share of observations that were spared, ``stopped`` the share of runs that were stopped,
    ``wrong_stops`` the share of all runs that were stopped wrongly, ``wrong_of_stopped`` of those that were stopped,
    ``mean_shift`` what stopping adds to the mean outcome.
    """
    results = [stopped(run, bounds) for run in runs]
    parts = np.array(
        [
            [own.saved, len(run.outlooks), own.wrong, own.stopped, own.outcome - run.outcome, 1]
            for own, run in zip(results, runs, strict=True)
        ],
        dtype=np.float64,
    )
    shares = {
        "saved": (0, 1),
        "wrong_stops": (2, 5),
        "stopped": (3, 5),
        "wrong_of_stopped": (2, 3),
        "mean_shift": (4, 5),
    }
    groups: list[Hashable] = [run.group for run in runs]
    return {name: bootstrap_sums(parts, share_of(*columns), groups, seed) for name, columns in shares.items()}


def curve(runs: Sequence[Watched], seed: int = 0) -> list[dict[str, Any]]:
    """Saved observations against wrong stops, from one threshold for both heads that rises."""
    rows = []
    for threshold in THRESHOLDS:
        report = stopping(runs, Bounds(threshold, threshold), seed)
        names = ("saved", "wrong_stops", "stopped", "wrong_of_stopped")
        rows.append({"threshold": threshold, **{name: report[name].to_dict() for name in names}})
    return rows


def best_within(rows: Sequence[dict[str, Any]], rate: float) -> dict[str, Any] | None:
    """The row of a curve that saves most with at most this share of wrong stops; None if none saves any."""
    allowed = [row for row in rows if row["wrong_stops"]["value"] <= rate and row["saved"]["value"] > 0]
    return max(allowed, key=lambda row: float(row["saved"]["value"]), default=None)


def by_agent(runs: Sequence[Watched]) -> list[dict[str, Any]]:
    """Each agent's mean outcome as recorded and with stops, the best as recorded first."""
    names = sorted({run.agent for run in runs})
    rows = []
    for name in names:
        own = [run for run in runs if run.agent == name]
        recorded = float(np.mean([run.outcome for run in own]))
        rows.append({"agent": name, "runs": len(own), "recorded": recorded, "with_stops": _mean_stopped(own)})
    return sorted(rows, key=lambda row: -float(row["recorded"]))


def ranking(rows: Sequence[dict[str, Any]]) -> float | None:
    """Kendall's tau-b between agents' means as recorded and with stops; None of fewer than two, or of ties alone."""
    from scipy.stats import kendalltau

    if len(rows) < 2:
        return None
    tau = float(kendalltau([row["recorded"] for row in rows], [row["with_stops"] for row in rows]).statistic)
    return None if np.isnan(tau) else tau


def _mean_stopped(runs: Sequence[Watched]) -> float:
    return float(np.mean([stopped(run).outcome for run in runs]))


def _auc(good: npt.NDArray[np.bool_], score: Floats) -> Callable[[npt.NDArray[np.int64]], float]:
    def auc(rows: npt.NDArray[np.int64]) -> float:
        return localisation_auc(good[rows], score[rows]) if 0 < good[rows].sum() < len(rows) else float("nan")

    return auc


# --- files and the command -------------------------------------------------------------------------------------------


def to_record(run: Watched) -> dict[str, Any]:
    """The run as JSON: what ``read`` takes."""
    rounded = [[round(p, 6) for p in outlook] for outlook in run.outlooks]
    return {**asdict(run), "outlooks": rounded, "group": list(run.group)}


def read(path: Path) -> list[Watched]:
    """The runs of a file of held-out outlooks.

    Raises:
        DataError: no such file, or none that train/stop.py wrote.
    """
    try:
        results = loads(path.read_bytes())["results"]
        runs = [
            Watched(
                record["id"],
                record["agent"],
                (record["group"][0], record["group"][1]),
                record["fold"],
                float(record["outcome"]),
                tuple(Outlook(float(success), float(failure)) for success, failure in record["outlooks"]),
                Bounds(**record["bounds"]),
            )
            for record in results
        ]
    except OSError as error:
        raise DataError(f"expected a file that can be read: {error.strerror}", file=path) from None
    except DataError as error:
        raise error.at(file=path) from None
    except (KeyError, TypeError, ValueError, IndexError):
        raise DataError("expected held-out outlooks as train/stop.py writes them", file=path) from None
    if not runs or not all(run.outlooks for run in runs):
        raise DataError("expected runs with an outlook each", file=path)
    return runs


def show(name: str, runs: Sequence[Watched], seed: int, console: Console) -> dict[str, Any]:
    """Print the tables of one file; returns what they hold."""
    report, rows, agents = stop_report(runs, seed), curve(runs, seed), by_agent(runs)
    table = Table(
        title=f"{name}: {len(runs)} runs, {sum(run.succeeded for run in runs)} successes", title_justify="left"
    )
    for column in ("measure", "value [95% over tasks]"):
        table.add_column(column, no_wrap=True)
    for key, interval in report.items():
        table.add_row(key, f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]")
    console.print(table)
    table = Table(title=f"one threshold for both ends, {RUNNING} observations running", title_justify="left")
    columns = ("threshold", "saved", "wrong_stops", "stopped", "wrong_of_stopped")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows[::4]:
        cells = [row[key]["value"] for key in columns[1:]]
        table.add_row(f"{row['threshold']:.2f}", *("-" if x is None else f"{x:.3f}" for x in cells))
    console.print(table)
    best = best_within(rows, RATE)
    if best:
        saved = best["saved"]
        console.print(
            f"at most {RATE:.0%} wrong stops: {best['threshold']:.2f} saves {saved['value']:.3f} "
            f"[{saved['low']:.3f}, {saved['high']:.3f}] (the threshold picked on these runs)"
        )
    table = Table(title="mean outcome of agents", title_justify="left")
    for column in ("agent", "runs", "recorded", "with stops"):
        table.add_column(column)
    for row in agents:
        table.add_row(row["agent"], str(row["runs"]), f"{row['recorded']:.3f}", f"{row['with_stops']:.3f}")
    console.print(table)
    tau = ranking(agents)
    console.print("ranking of agents, Kendall tau: " + ("one agent" if tau is None else f"{tau:.3f}"))
    plain = {key: interval.to_dict() for key, interval in report.items()}
    return {"report": plain, "curve": rows, "best": best, "agents": agents, "kendall_tau": tau}


def main() -> None:
    parser = Parser(prog="eval/stop.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--predictions", type=Path, nargs="+", required=True, help="files that train/stop.py wrote")
    parser.add_argument("--seed", type=int, default=0, help="decides the bootstrap draws (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write all figures here too")
    args = parser.parse_args()
    console = Console(width=max(Console().width, 100))
    read_all = {path.stem: read(path) for path in args.predictions}
    found = {name: show(name, runs, args.seed, console) for name, runs in read_all.items()}
    if args.json:
        write_atomic(args.json, orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


if __name__ == "__main__":
    run_cli(main)

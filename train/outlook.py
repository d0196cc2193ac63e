"""The task ``stop``: what the two heads of an outlook learn from prefixes, and how well they foresee and stop."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from stepsieve.data.features import PROGRESS_FEATURES, progress_features
from stepsieve.data.simulate import SimulationConfig
from stepsieve.data.trajectory import Trajectory
from stepsieve.eval.stop import Watched, choose_bounds, stop_report
from stepsieve.models.judge import Judge
from stepsieve.models.outlook import FAILURE, SUCCESS, Outlook
from stepsieve.models.prompts import Reader
from stepsieve.models.questions import Noul
from stepsieve.train.examples import Example, HeadSpec, batches
from stepsieve.train.task import Answered, Floats, Report, Task

STOP = "stop"
QUESTIONS = {SUCCESS: Noul("Will this run succeed?"), FAILURE: Noul("Will this run fail?")}
AT_HALF = 0.5


def has_outcome(run: Trajectory) -> bool:
    return run.outcome is not None


def ended(run: Trajectory, head: str) -> int:
    """What a head is to say of a run with an outcome: between 0 and 1 neither end came."""
    outcome = run.outcome or 0.0
    return int(outcome >= 1 if head == SUCCESS else outcome <= 0)


def siblings(runs: Sequence[Trajectory], known: Sequence[Trajectory]) -> list[list[Trajectory]]:
    """For each run the known runs of its task other than itself."""
    by_group: dict[tuple[str, str], list[Trajectory]] = {}
    for other in known:
        by_group.setdefault(other.group, []).append(other)
    return [[other for other in by_group.get(run.group, ()) if other is not run] for run in runs]


def prefix_examples(head: str, trajectories: Sequence[Trajectory], known: Sequence[Trajectory]) -> list[list[Example]]:
    """One noul for each observation of each run with an outcome; together they count as one example, which they are.

    Where other runs of its task are known each is asked twice, knowing them and not, and counts half: the head then
    serves tasks of both kinds.
    """
    found: list[list[Example]] = []
    for runs, index in batches(trajectories):
        others = siblings(runs, known)
        own: list[list[Example]] = [[] for _ in runs]
        for beside in (others, [()] * len(runs)):
            actions, features = progress_features(index, beside)
            last = np.append(np.diff(actions.message) != 0, True) | np.append(np.diff(actions.run) != 0, True)
            rows = np.flatnonzero(last)
            count = np.bincount(actions.run[rows], minlength=len(runs))
            for row in rows.tolist():
                number = int(actions.run[row])
                run, message = runs[number], int(actions.message[row])
                if run.outcome is None or (beside is others and not others[number]):
                    continue
                weight = 1.0 / count[number] / (2 if others[number] else 1)
                label = ended(run, head)
                own[number].append(
                    Example(QUESTIONS[head], features[row : row + 1], label, run.group, float(weight), (message,))
                )
        found += own
    return found


def _head(name: str, classes: tuple[str, str]) -> HeadSpec:
    def alone(trajectories: Sequence[Trajectory], reader: Reader | None = None) -> list[list[Example]]:
        return prefix_examples(name, trajectories, ())

    def beside(trajectories: Sequence[Trajectory], known: Sequence[Trajectory]) -> list[list[Example]]:
        return prefix_examples(name, trajectories, known)

    return HeadSpec(
        name, classes, PROGRESS_FEATURES, False, 400, 1.0, alone, only_alone=True, beside=beside, readable=False
    )


OUTLOOK_HEADS = {
    SUCCESS: _head(SUCCESS, ("no success", "success")),
    FAILURE: _head(FAILURE, ("no failure", "failure")),
}


def ask_outlooks(judge: Judge, runs: Sequence[Trajectory], known: Sequence[Trajectory]) -> list[list[Outlook]]:
    return [list(own.values()) for own in judge.outlook_batch(runs, siblings(runs, known))]


def stop_settings(answered: Sequence[tuple[Trajectory, list[Outlook]]], rate: float) -> dict[str, Any]:
    """When to stop, from held-out outlooks of the training runs, and the rate of wrong stops that was asked for."""
    runs = watched([Answered(run, "", own) for run, own in answered])
    return {"bounds": asdict(choose_bounds(runs, rate)), "wrong_stops": rate}


def report_stops(answered: Sequence[Answered], seed: int) -> Report:
    return stop_report(watched(answered), seed)


def half_points(answered: Sequence[Answered]) -> tuple[Floats, list[Hashable], list[Hashable]]:
    """1 less the squared error of P(success) at half of each run: what models are compared by, run by run."""
    runs = watched(answered)
    errors = np.array([run.at(AT_HALF).success - run.succeeded for run in runs], dtype=np.float64)
    points: npt.NDArray[np.float64] = 1 - errors**2
    return points, [run.group for run in runs], [run.fold for run in runs]


def watched(answered: Sequence[Answered]) -> list[Watched]:
    """The runs as eval/stop.py takes them; one whose assistant did nothing is not watched."""
    return [
        Watched(
            item.run.id,
            item.run.agent or "",
            item.run.group,
            item.fold,
            item.run.outcome or 0.0,
            tuple(item.answers),
            item.bounds,
        )
        for item in answered
        if item.answers
    ]


STOP_TASK = Task(
    STOP,
    (SUCCESS, FAILURE),
    ask_outlooks,
    report_stops,
    "auc@50",
    half_points,
    usable=has_outcome,
    splits=("leave-run-out", "cv"),
    simulation=SimulationConfig(failure_share=0.1, astray_share=0.5),
)

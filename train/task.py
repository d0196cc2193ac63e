"""A task of the loop: which heads it trains, what a judge is asked, how its answers are scored."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stepsieve.data.simulate import SimulationConfig
from stepsieve.data.splits import is_annotated
from stepsieve.data.trajectory import Trajectory
from stepsieve.eval.intervals import Interval, paired_bootstrap
from stepsieve.models.decode import Cutoff
from stepsieve.models.judge import Judge
from stepsieve.models.outlook import Bounds

Report = dict[str, Interval]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Answered:
    """What a judge answered about some test trajectories.

    Attributes:
        run: the trajectory.
        fold: the fold that tested it.
        answers: CLS: a ``ChoiceAnswer`` for each label; RET: a ``Prediction`` for each label; DET: a ``Prediction``
            for each assistant step, the most confident first; JUDGE: a dimension -> ``ScoreAnswer`` by message index;
            STOP: an ``Outlook`` for each observation.
        cutoff: DET: which of them the judge returns.
        bounds: STOP: when the judge would have stopped.
    """

    run: Trajectory
    fold: str
    answers: list[Any]
    cutoff: Cutoff = field(default_factory=Cutoff)
    bounds: Bounds = field(default_factory=Bounds)


@dataclass(frozen=True)
class Task:
    """A task of the loop.

    Attributes:
        name: its key in metrics.json.
        heads: the heads it trains and uses, in order.
        ask: a judge, test trajectories, those it was trained on -> the answers for each.
        report: what was answered, seed -> metrics by name.
        main: the metric that models are compared by.
        points: what was answered -> that metric of each item, its task and its fold.
        usable: which trajectories say anything about it.
        splits: what is measured where no split is asked for; () leaves it to the corpus.
        simulation: how the runs are simulated that it learns from.
    """

    name: str
    heads: tuple[str, ...]
    ask: Callable[[Judge, Sequence[Trajectory], Sequence[Trajectory]], Sequence[list[Any]]]
    report: Callable[[Sequence[Answered], int], Report]
    main: str
    points: Callable[[Sequence[Answered]], tuple[Floats, list[Hashable], list[Hashable]]]
    usable: Callable[[Trajectory], bool] = is_annotated
    splits: tuple[str, ...] = ()
    simulation: SimulationConfig | None = None


def gain(task: Task, ours: Sequence[Answered], theirs: Sequence[Answered], seed: int) -> Interval:
    """How much better the first is on the same items, in the task's main metric (paired bootstrap over tasks)."""
    (first, groups, folds), (second, _, _) = task.points(ours), task.points(theirs)
    return paired_bootstrap(first, second, groups, seed, folds=folds)

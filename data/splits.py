"""Grouped splits of a corpus (DESIGN, benchmark protocol): the same task is never in train and test of one fold.

A group is ``Trajectory.group``, that is (domain, task_id), across subsets; ``leave-run-out`` alone, whose subject are
known tasks, keeps runs apart instead. Only trajectories enter that say what is to be learned: by default those with
annotated redundant steps. A fold's indices come in order of trajectory id, so that neither the folds nor a model
trained on them depend on the order in which the corpus was read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepsieve.data.errors import DataError
from stepsieve.data.trajectory import Trajectory

HUMAN, AUTOMATED = "human", "automated"

SPLITS: dict[str, str] = {
    "human-cv": "grouped folds over the human subset",
    "auto-cv": "grouped folds over the automated subset",
    "pooled-cv": "grouped folds over the human and the automated subset together",
    "auto-to-human": "train on the automated subset, test on the human one, without the test's tasks in training",
    "human-to-auto": "train on the human subset, test on the automated one, without the test's tasks in training",
    "leave-domain-out": "human subset: test on each domain in turn, train on the others",
    "leave-agent-out": "automated subset: test on each agent in turn, train on the others and the human subset",
    "cv": "grouped folds over everything annotated, for a corpus of any other origin: no task is on both sides",
    "leave-run-out": "test one run of each task in turn, train on all others: a new run of known tasks",
}
"""Every split by name, with what it does."""


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """One division of a corpus: ``train`` and ``test`` are int64 index arrays into the list of trajectories.

    ``name`` says what is tested: a fold's number, a subset, a domain or an agent. ``by_run``: the tasks tested have
    runs in the training set, so that folds inside it are to be made in the same way.
    """

    name: str
    train: npt.NDArray[np.int64]
    test: npt.NDArray[np.int64]
    by_run: bool = False


def is_annotated(trajectory: Trajectory) -> bool:
    """Whether its redundant steps were annotated, if only as none."""
    return trajectory.labels is not None


def default_splits(trajectories: Sequence[Trajectory]) -> list[str]:
    """The cross-validations that the corpus allows: of each released subset and of both together, else ``cv``."""
    subsets = {trajectory.subset for trajectory in trajectories if trajectory.labels is not None}
    if subsets == {HUMAN, AUTOMATED}:
        return ["human-cv", "auto-cv", "pooled-cv"]
    return {frozenset({HUMAN}): ["human-cv"], frozenset({AUTOMATED}): ["auto-cv"]}.get(frozenset(subsets), ["cv"])


def make_folds(
    trajectories: Sequence[Trajectory],
    split: str,
    seed: int = 0,
    n_folds: int = 5,
    usable: Callable[[Trajectory], bool] = is_annotated,
) -> list[Fold]:
    """The folds of a split, decided by the seed alone.

    Args:
        trajectories: the corpus.
        split: a name in ``SPLITS``.
        seed: shuffles the groups of the cross-validated splits; the others have nothing to draw.
        n_folds: folds of the cross-validated splits, at least 2.
        usable: which trajectories enter; the others are in no fold.

    Raises:
        DataError: an unknown split, or one that the corpus does not allow: a subset that is not there, one domain or
            agent only, fewer groups than folds, nothing left to train on.
    """
    if split not in SPLITS:
        raise DataError(f"expected a split among {', '.join(SPLITS)}, found {split!r}")
    order = sorted(range(len(trajectories)), key=lambda i: (trajectories[i].id, trajectories[i].subset))
    annotated = [i for i in order if usable(trajectories[i])]

    def subset(name: str) -> list[int]:
        found = [i for i in annotated if trajectories[i].subset == name]
        if not found:
            raise DataError(f"expected annotated trajectories of the {name} subset for split {split}, found none")
        return found

    if split == "leave-run-out":
        return leave_run_out(trajectories, annotated)
    if split == "cv":
        return _cross_validation(trajectories, annotated, split, seed, n_folds)
    if split == "human-cv":
        return _cross_validation(trajectories, subset(HUMAN), split, seed, n_folds)
    if split == "auto-cv":
        return _cross_validation(trajectories, subset(AUTOMATED), split, seed, n_folds)
    if split == "pooled-cv":
        pooled = {*subset(HUMAN), *subset(AUTOMATED)}
        return _cross_validation(trajectories, [i for i in annotated if i in pooled], split, seed, n_folds)
    if split == "auto-to-human":
        return [_fold(trajectories, split, HUMAN, subset(AUTOMATED), subset(HUMAN))]
    if split == "human-to-auto":
        return [_fold(trajectories, split, AUTOMATED, subset(HUMAN), subset(AUTOMATED))]
    if split == "leave-domain-out":
        return _leave_one_out(trajectories, split, subset(HUMAN), (), lambda trajectory: trajectory.domain, "domains")
    return _leave_one_out(
        trajectories, split, subset(AUTOMATED), subset(HUMAN), lambda trajectory: trajectory.agent, "agents"
    )


def assign_groups(trajectories: Iterable[Trajectory], n_folds: int, seed: int = 0) -> dict[tuple[str, str], int]:
    """A fold in ``range(n_folds)`` for every group, balanced in labels and with each domain spread over the folds.

    Within a domain the shuffled groups are taken from the largest to the smallest, each to the fold that has the fewest
    labels of that domain, then the fewest at all. Groups without labels follow by the same rule, each counted as one.
    No fold stays empty while there are as many groups as folds.
    """
    labels: Counter[tuple[str, str]] = Counter()
    for trajectory in trajectories:
        labels[trajectory.group] += len(trajectory.labels or ())
    groups = sorted(labels)
    np.random.default_rng(seed).shuffle(groups)
    groups.sort(key=lambda group: (labels[group] == 0, group[0], -labels[group]))

    in_stratum: defaultdict[tuple[str, bool], list[int]] = defaultdict(lambda: [0] * n_folds)
    in_all = [0] * n_folds
    fold_of = {}
    for group in groups:
        size = max(labels[group], 1)
        stratum = in_stratum[group[0], labels[group] == 0]
        fold = min(range(n_folds), key=lambda k: (stratum[k], in_all[k]))
        stratum[fold] += size
        in_all[fold] += size
        fold_of[group] = fold
    return fold_of


def leave_run_out(trajectories: Sequence[Trajectory], chosen: Sequence[int]) -> list[Fold]:
    """One fold for the first run of each task, one for the second, and so on: tested by a judge of all the others.

    Runs of a task are taken in order of agent and id. A task's only run is tested by none; it trains in all.

    Raises:
        DataError: no task has two runs.
    """
    runs: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for i in sorted(chosen, key=lambda i: (trajectories[i].agent or "", trajectories[i].id)):
        runs[trajectories[i].group].append(i)
    several = [own for own in runs.values() if len(own) > 1]
    if not several:
        raise DataError("expected tasks with two runs or more for split leave-run-out, found none")
    folds = []
    for number in range(max(map(len, several))):
        test = {own[number] for own in several if len(own) > number}
        train, tested = ([i for i in chosen if (i in test) == wanted] for wanted in (False, True))
        folds.append(Fold(str(number), np.array(train, dtype=np.int64), np.array(tested, dtype=np.int64), True))
    return folds


def _cross_validation(
    trajectories: Sequence[Trajectory], chosen: Sequence[int], split: str, seed: int, n_folds: int
) -> list[Fold]:
    if n_folds < 2:
        raise DataError(f"expected at least 2 folds for split {split}, found {n_folds}")
    n_groups = len({trajectories[i].group for i in chosen})
    if n_groups < n_folds:
        raise DataError(f"expected at least {n_folds} annotated tasks for {n_folds} folds of {split}, found {n_groups}")
    fold_of = assign_groups([trajectories[i] for i in chosen], n_folds, seed)
    where = [fold_of[trajectories[i].group] for i in chosen]
    return [
        _fold(trajectories, split, str(k), chosen, [i for i, fold in zip(chosen, where, strict=True) if fold == k])
        for k in range(n_folds)
    ]


def _leave_one_out(
    trajectories: Sequence[Trajectory],
    split: str,
    chosen: Sequence[int],
    also_train: Sequence[int],
    value: Callable[[Trajectory], str | None],
    what: str,
) -> list[Fold]:
    """One fold per value; a trajectory of the held-out or of no known value does not train, whatever its subset."""
    values = sorted({v for i in chosen if (v := value(trajectories[i])) is not None})
    if len(values) < 2:
        raise DataError(f"expected at least 2 {what} for split {split}, found {len(values)}")
    known = [i for i in chosen if value(trajectories[i]) is not None]
    return [
        _fold(
            trajectories,
            split,
            held_out,
            [i for i in (*known, *also_train) if value(trajectories[i]) != held_out],
            [i for i in known if value(trajectories[i]) == held_out],
        )
        for held_out in values
    ]


def _fold(trajectories: Sequence[Trajectory], split: str, name: str, train: Iterable[int], test: Sequence[int]) -> Fold:
    """The fold with the groups of the test removed from training."""
    tested = {trajectories[i].group for i in test}
    kept = [i for i in train if trajectories[i].group not in tested]
    if not kept:
        raise DataError(f"expected tasks outside the test to train on for split {split}, fold {name!r}, found none")
    kept.sort(key=lambda i: (trajectories[i].id, trajectories[i].subset))
    return Fold(name, np.array(kept, dtype=np.int64), np.array(test, dtype=np.int64))

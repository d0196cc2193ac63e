"""Agreement corrected for chance, over the steps that could be redundant: Cohen, Fleiss, Krippendorff, by nltk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stepsieve.data.errors import require
from stepsieve.data.trajectory import Reference, Trajectory
from stepsieve.eval.annotators import Annotator, Group

NLTK = "nltk.metrics.agreement"
NECESSARY, REDUNDANT, UNUSABLE = "necessary", "redundant", "unusable"
"""What a step is called that an annotator does not name; that it names; and that a model names with no type that is."""

Rating = tuple[str, tuple[str, Reference], str]
"""Annotator, step of a run, label."""


def ratings(annotators: Sequence[Annotator], runs: Iterable[Trajectory], binary: bool) -> list[Rating]:
    """What each annotator calls each step that could be redundant, in the runs that it answered.

    Args:
        binary: as redundant or not, else as its type or necessary.
    """
    found: list[Rating] = []
    for run in runs:
        for number, own in enumerate(annotators):
            if run.id in own.groups:
                named = own.steps(run.id)
                for it in run.steps:
                    found.append((str(number), (run.id, it.reference), _label(named.get(it.reference), binary)))
    return found


def _label(group: Group | None, binary: bool) -> str:
    if group is None:
        return NECESSARY
    return REDUNDANT if binary else group.type or UNUSABLE


def cohen(first: Annotator, second: Annotator, runs: Sequence[Trajectory], binary: bool) -> float:
    """Cohen's kappa of two annotators over the steps of runs that both answered, at most 1; NaN where undefined."""
    own = [run for run in runs if run.id in first.groups and run.id in second.groups]
    return _statistic(ratings([first, second], own, binary), lambda task: task.kappa_pairwise("0", "1"))


def fleiss(annotators: Sequence[Annotator], runs: Sequence[Trajectory], binary: bool) -> float:
    """Fleiss' kappa over the steps of runs that all answered, at most 1; NaN where undefined.

    nltk calls it multi-pi: both are Scott's pi for any number of annotators.
    """
    own = [run for run in runs if all(run.id in annotator.groups for annotator in annotators)]
    return _statistic(ratings(annotators, own, binary), lambda task: task.pi())


def alpha(annotators: Sequence[Annotator], runs: Sequence[Trajectory], binary: bool) -> float:
    """Krippendorff's nominal alpha over the steps of runs that two or more answered, at most 1; NaN where undefined."""
    own = [run for run in runs if sum(run.id in annotator.groups for annotator in annotators) > 1]
    return _statistic(ratings(annotators, own, binary), lambda task: task.alpha())


def _statistic(rated: list[Rating], statistic: Callable[[Any], float]) -> float:
    agreement = require(NLTK, "agreement")
    # With one label alone agreement by chance is certain, and none of these is defined.
    if len({label for _, _, label in rated}) < 2:
        return float("nan")
    return float(statistic(agreement.AnnotationTask(rated)))

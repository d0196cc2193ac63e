"""Structured features of steps, of (step, evidence) pairs, of actions and of prefixes.

Subjects, one module each: repeats, errors, provenance (of arguments), results, place, goal, evidence; actions, which
are texts too; progress of a prefix, and how it stands to known runs of its task. ``index.py`` is the one pass that all
of them look things up in; ``registry.py`` says what a feature is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from stepsieve.data.features import (
    actions,
    candidates,
    errors,
    evidence,
    goal,
    known,
    place,
    progress,
    provenance,
    repeats,
    results,
)
from stepsieve.data.features.actions import Actions
from stepsieve.data.features.candidates import Candidates
from stepsieve.data.features.index import Index, Ints
from stepsieve.data.features.registry import Feature, Values, columns
from stepsieve.data.trajectory import Reference, Trajectory

STEP_SUBJECTS = (repeats, errors, provenance, results, place, goal)
STEP_FEATURES: tuple[Feature, ...] = tuple(feature for subject in STEP_SUBJECTS for feature in subject.FEATURES)
PAIR_FEATURES: tuple[Feature, ...] = STEP_FEATURES + evidence.FEATURES
RETRIEVAL_FEATURES: tuple[Feature, ...] = PAIR_FEATURES + candidates.rival_features(STEP_FEATURES)
OWN_FEATURES: tuple[Feature, ...] = actions.FEATURES
ACTION_FEATURES: tuple[Feature, ...] = OWN_FEATURES + STEP_FEATURES
PROGRESS_FEATURES: tuple[Feature, ...] = progress.FEATURES + known.FEATURES

BATCH = 128
"""Trajectories indexed together: enough that array operations cost next to nothing each, few enough to stay small."""

Matrix = npt.NDArray[np.float32]


def step_features(index: Index) -> Matrix:
    """Features of every answered call of the batch, in the order of ``index.calls``: (n_calls, n_step_features)."""
    values: Values = {}
    for subject in STEP_SUBJECTS:
        values.update(subject.compute(index))
    return columns(STEP_FEATURES, values, len(index.calls))


def action_features(index: Index) -> tuple[Actions, Matrix]:
    """The assistant's actions, and their features: (n_actions, n_action_features); a text has none of a step's.

    The first ``len(OWN_FEATURES)`` columns are those that calls and texts share.
    """
    found = index.once(actions.actions)
    own = columns(OWN_FEATURES, actions.compute(index), len(found))
    nothing = np.full((1, len(STEP_FEATURES)), np.nan, dtype=np.float32)
    return found, np.hstack([own, np.vstack([step_features(index), nothing])[found.call]])


def progress_features(index: Index, siblings: Sequence[Sequence[Trajectory]]) -> tuple[Actions, Matrix]:
    """The assistant's actions, and how its run stood after each: (n_actions, n_progress_features).

    Args:
        siblings: for each trajectory other runs of its task, of which those with an outcome are known.
    """
    found = index.once(actions.actions)
    own = columns(progress.FEATURES, progress.compute(index), len(found))
    beside = np.zeros((len(found), len(known.FEATURES)), dtype=np.float32)
    bounds = np.searchsorted(found.run, np.arange(len(index.trajectories) + 1))
    for number, (run, others) in enumerate(zip(index.trajectories, siblings, strict=True)):
        rows = slice(bounds[number], bounds[number + 1])
        made = np.cumsum(found.call[rows] >= 0, dtype=np.int64)
        beside[rows] = known.compute(known.call_keys(run), made, known.know(others))
    return found, np.hstack([own, beside])


def retrieval_features(index: Index, found: Candidates, steps: Matrix) -> Matrix:
    """Features of every candidate evidence of some steps: (n_candidates, n_retrieval_features) float32.

    The first ``len(PAIR_FEATURES)`` columns are those of ``pair_features``.

    Args:
        found: from ``candidates.candidates(index, rows)``.
        steps: from ``step_features(index)``.
    """
    return candidates.compute(index, found, STEP_FEATURES, steps)


def pair_features(
    trajectories: Sequence[Trajectory], pairs: Sequence[Sequence[tuple[Reference, Reference]]]
) -> list[Matrix]:
    """Features of (step, evidence) pairs: for each trajectory (n_pairs, n_pair_features) float32.

    Args:
        trajectories: in any number; they are indexed ``BATCH`` at a time.
        pairs: for each trajectory its (step, evidence) references.

    Raises:
        KeyError: a step is not an answered interaction of its trajectory.
    """
    found: list[Matrix] = []
    for start in range(0, len(trajectories), BATCH):
        found += _batch_pair_features(trajectories[start : start + BATCH], pairs[start : start + BATCH])
    return found


def _batch_pair_features(
    trajectories: Sequence[Trajectory], pairs: Sequence[Sequence[tuple[Reference, Reference]]]
) -> Iterator[Matrix]:
    index = Index(trajectories)
    _, table = index_pairs(index, [(run, *pair) for run, own in enumerate(pairs) for pair in own])
    yield from np.split(table, np.cumsum([len(own) for own in pairs])[:-1])


def index_pairs(index: Index, pairs: Sequence[tuple[int, Reference, Reference]]) -> tuple[Ints, Matrix]:
    """Features of (trajectory number, step, evidence) triples: (n,) positions of the steps in ``index.calls``, and
    (n, n_pair_features) float32.

    Raises:
        KeyError: a step is not an answered interaction of its trajectory.
    """
    rows = np.array([index.row(run, step) for run, step, _ in pairs], dtype=np.int64)
    resolved = evidence.resolve(index, [run for run, _, _ in pairs], [reference for _, _, reference in pairs])
    own = columns(evidence.FEATURES, evidence.compute(index, rows, resolved), len(rows))
    return rows, np.hstack([step_features(index)[rows], own])


def schema_hash(features: Sequence[Feature]) -> str:
    """A hash of names and types in order: a checkpoint fits only the schema that it was trained on."""
    text = "\n".join(f"{feature.name}:{feature.dtype}" for feature in features)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

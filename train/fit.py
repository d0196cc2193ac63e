"""Fitting a judge: a scorer per head, calibrated on inner folds that its models did not see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stepsieve.data.errors import DataError
from stepsieve.data.features import schema_hash
from stepsieve.data.splits import assign_groups
from stepsieve.data.trajectory import Trajectory
from stepsieve.eval import detection
from stepsieve.models.calibrate import Platt, Temperature, log_probabilities
from stepsieve.models.checkpoint import Head, group_digest
from stepsieve.models.decode import Cutoff, Prediction
from stepsieve.models.judge import DET, Judge
from stepsieve.models.scorer import Scorer, create
from stepsieve.train.config import TrainConfig
from stepsieve.train.heads import HEADS, HeadSpec, Table, simulated_table, tabulate
from stepsieve.train.tasks import as_triple

Tables = Mapping[str, Table]

SAFE = 0.99
"""Precision of the cutoff for pruning where none is asked for."""

PLATEAU = 0.005
"""Cutoffs whose metric is this close to the best are as good."""

THRESHOLDS = tuple(round(0.05 * k, 2) for k in range(1, 20))
FIRSTS = (0.3, 0.2, 0.1, 0.05, 0.02, 0.0)
"""What is tried for the two demands of a ``Cutoff``."""


class Training:
    """What judges are trained on: a corpus as a table per head, and simulated examples that join every training set.

    The simulated ones are never calibrated or tested on.

    Attributes:
        runs: the trajectories of the corpus.
    """

    def __init__(
        self, runs: Sequence[Trajectory], heads: Sequence[str], simulated: Sequence[Trajectory], config: TrainConfig
    ) -> None:
        self.runs = runs
        self.specs = [HEADS[name] for name in heads]
        self.config = config
        self.tables: Tables = {name: tabulate(HEADS[name], runs) for name in heads}
        self.extra: Tables = {name: simulated_table(HEADS[name], simulated) for name in heads}

    def fit(self, backend: str, train: npt.NDArray[np.int64]) -> Judge:
        """A calibrated judge from the trajectories ``train`` (n,) of the corpus.

        Raises:
            DataError: nothing to train on.
        """
        inner = _inner_folds(self.runs, train, self.config)
        parts = [train[inner == fold] for fold in _names(inner)]
        scorers = [[self._scorer(spec, backend, np.setdiff1d(train, part)) for spec in self.specs] for part in parts]
        heads = {}
        for number, spec in enumerate(self.specs):
            held_out = [
                (self.tables[spec.name].of(part), own[number]) for part, own in zip(parts, scorers, strict=True)
            ]
            heads[spec.name] = self._head(spec, backend, _calibration(spec, held_out), train)
        if DET in heads and parts:
            answered = []
            for part, own in zip(parts, scorers, strict=True):
                inner_heads = {s.name: replace(heads[s.name], scorer=own[k]) for k, s in enumerate(self.specs)}
                tested = [self.runs[i] for i in part]
                answered += list(zip(tested, Judge(inner_heads).detect_batch(tested, everything=True), strict=True))
            heads[DET] = replace(heads[DET], settings=_detection_settings(answered, self.config.min_precision))
        return Judge(heads)

    def _scorer(self, spec: HeadSpec, backend: str, train: npt.NDArray[np.int64]) -> Scorer:
        own, more = self.tables[spec.name].of(train), self.extra[spec.name]
        if not len(own) + len(more):
            raise DataError(f"expected labelled steps to train {spec.name} on, found none")
        names = [feature.name for feature in spec.features]
        scorer = create(backend, names, len(spec.classes), self.config.seed, **self.config.options(backend))
        scorer.fit(
            np.vstack([own.features, more.features]),
            np.concatenate([own.labels, more.labels]),
            np.concatenate([own.weights, more.weights]),
        )
        return scorer

    def _head(self, spec: HeadSpec, backend: str, calibration: Temperature, train: npt.NDArray[np.int64]) -> Head:
        provenance = {
            "examples": len(np.unique(self.tables[spec.name].of(train).example)),
            "trajectories": len(train),
            "seed": self.config.seed,
            "options": self.config.options(backend),
            "tasks": sorted({group_digest(self.runs[i].group) for i in train}),
        }
        names = tuple(feature.name for feature in spec.features)
        scorer = self._scorer(spec, backend, train)
        schema = schema_hash(spec.features)
        return Head(spec.name, backend, scorer, calibration, spec.classes, names, schema, provenance)


def _calibration(spec: HeadSpec, held_out: Sequence[tuple[Table, Scorer]]) -> Temperature:
    """The temperature on held-out rows: of classes, or of the candidates of each question."""
    held_out = [(table, scorer) for table, scorer in held_out if len(table)]
    if not held_out:
        return Temperature()
    probabilities = np.vstack([scorer.predict_proba(table.features) for table, scorer in held_out])
    labels = np.concatenate([table.labels for table, _ in held_out])
    if not spec.by_candidate:
        return Temperature.fit(probabilities, labels)
    logs = log_probabilities(probabilities)
    sizes = np.concatenate([np.unique(table.example, return_counts=True)[1] for table, _ in held_out])
    return Temperature.fit_grouped(
        logs[:, 1] - logs[:, 0], np.concatenate([[0], np.cumsum(sizes)]), np.flatnonzero(labels)
    )


def _detection_settings(
    answered: Sequence[tuple[Trajectory, list[Prediction]]], min_precision: float | None
) -> dict[str, Any]:
    """Confidence of the triple and cutoffs, from held-out answers about every step of the training runs."""
    hits = np.concatenate(
        [detection.detection_hits([as_triple(p) for p in own], run.labels or ()) for run, own in answered]
    )
    triple = Platt.fit(np.array([p.confidence for _, own in answered for p in own]), hits)
    ranked = [
        (run, [replace(p, confidence=float(c)) for p, c in zip(own, _calibrated(triple, own), strict=True)])
        for run, own in answered
    ]
    redundant = np.array([p.redundant for _, own in answered for p in own])
    truth = np.array([p.step in {x.step for x in run.labels or ()} for run, own in answered for p in own])
    safe, bound = safe_cutoff(redundant, truth, SAFE if min_precision is None else min_precision)
    cutoff = replace(_best_cutoff(ranked), safe=safe, prune=min_precision is not None)
    confidence = {"slope": triple.slope, "intercept": triple.intercept}
    return {"cutoff": asdict(cutoff), "safe_bound": bound, "triple": confidence}


def _calibrated(triple: Platt, own: Sequence[Prediction]) -> npt.NDArray[np.float64]:
    return triple.transform(np.array([p.confidence for p in own], dtype=np.float64))


def _best_cutoff(ranked: Sequence[tuple[Trajectory, list[Prediction]]]) -> Cutoff:
    """The cutoff of best mean Avg P@K: of those within ``PLATEAU`` the least threshold, since it finds most, and then
    the greatest demand on a run's first triple, since a clean run should get none."""
    positive = [(run.labels, own) for run, own in ranked if run.labels]
    if not positive:
        return Cutoff()

    def score(cutoff: Cutoff) -> float:
        returned = [[as_triple(p) for p in cutoff.returned(own)] for _, own in positive]
        return float(detection.detection_scores(returned, [labels for labels, _ in positive])["avg_p@k"].mean())

    scores = {threshold: score(Cutoff(threshold)) for threshold in THRESHOLDS}
    enough = max(scores.values()) - PLATEAU
    threshold = next(threshold for threshold, value in scores.items() if value >= enough)
    return next(c for c in (Cutoff(threshold, first) for first in FIRSTS) if score(c) >= enough or not c.first)


def safe_cutoff(
    redundant: npt.NDArray[np.float64], truth: npt.NDArray[np.bool_], min_precision: float
) -> tuple[float | None, float]:
    """The least probability above which the held-out share of redundant steps is at least ``min_precision``.

    Args:
        redundant, truth: (n,) held-out probability of being redundant, and whether the step is.

    Returns:
        The cutoff, None where no cutoff reaches it, and the lower bound of its precision with 95% certainty
        (Clopper-Pearson), 0 where there is none. A bound near 0.99 takes hundreds of steps without an error.
    """
    point = detection.recall_at_precision(truth, redundant, min_precision)
    return (point.threshold, point.lower) if point.flagged else (None, 0.0)


def _inner_folds(
    runs: Sequence[Trajectory], train: npt.NDArray[np.int64], config: TrainConfig
) -> npt.NDArray[np.int64]:
    """(n,) the inner fold of each training trajectory, grouped by task; all -1 where tasks are fewer than folds."""
    own = [runs[i] for i in train]
    if config.inner_folds < 2 or len({run.group for run in own}) < config.inner_folds:
        return np.full(len(train), -1)
    assigned = assign_groups(own, config.inner_folds, config.seed)
    return np.array([assigned[run.group] for run in own], dtype=np.int64)


def _names(inner: npt.NDArray[np.int64]) -> list[int]:
    return sorted({int(fold) for fold in inner} - {-1})

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
from stepsieve.eval import metrics
from stepsieve.models.calibrate import Platt, Temperature, log_probabilities
from stepsieve.models.checkpoint import Head, group_digest
from stepsieve.models.decode import Cutoff, Prediction
from stepsieve.models.judge import DET, Judge
from stepsieve.models.scorer import Scorer, create
from stepsieve.train.config import TrainConfig
from stepsieve.train.heads import HEADS, HeadSpec, Table
from stepsieve.train.tasks import Task, detection

Tables = Mapping[str, Table]

SAFE = 0.99
"""Precision of the cutoff for pruning where none is asked for."""

PLATEAU = 0.005
"""Cutoffs whose metric is this close to the best are as good; of them the one that returns most is taken."""


def fit_judge(
    task: Task,
    backend: str,
    runs: Sequence[Trajectory],
    train: npt.NDArray[np.int64],
    tables: Tables,
    extra: Tables,
    config: TrainConfig,
) -> Judge:
    """A judge with the heads of a task.

    Args:
        runs: the corpus; ``train`` (n,) the trajectories in it to train on.
        tables: for each head the examples of the whole corpus.
        extra: for each head further examples that join every training set, inner ones too, and are never calibrated
            or tested on.

    Raises:
        DataError: nothing to train on.
    """
    specs = [HEADS[name] for name in task.heads]
    inner = _inner_folds(runs, train, config)
    scorers = [
        [_scorer(spec, backend, tables, extra, train[inner != fold], config) for spec in specs]
        for fold in _names(inner)
    ]
    heads = {}
    for number, spec in enumerate(specs):
        held_out = [
            (tables[spec.name].of(train[inner == fold]), own[number])
            for fold, own in zip(_names(inner), scorers, strict=True)
        ]
        scorer = _scorer(spec, backend, tables, extra, train, config)
        heads[spec.name] = _head(spec, backend, scorer, _calibration(spec, held_out), tables, runs, train, config)
    if DET in heads:
        answered = []
        for fold, own in zip(_names(inner), scorers, strict=True):
            judge = Judge(
                {spec.name: replace(heads[spec.name], scorer=scorer) for spec, scorer in zip(specs, own, strict=True)}
            )
            tested = [runs[i] for i in train[inner == fold]]
            answered += list(zip(tested, judge.detect_batch(tested, everything=True), strict=True))
        if answered:
            heads[DET] = replace(heads[DET], settings=_detection_settings(answered, config.min_precision))
    return Judge(heads)


def _scorer(
    spec: HeadSpec, backend: str, tables: Tables, extra: Tables, train: npt.NDArray[np.int64], config: TrainConfig
) -> Scorer:
    own, more = tables[spec.name].of(train), extra[spec.name]
    if not len(own) + len(more):
        raise DataError(f"expected labelled steps to train {spec.name} on, found none")
    names = [feature.name for feature in spec.features]
    scorer = create(backend, names, len(spec.classes), config.seed, **config.options(backend))
    scorer.fit(
        np.vstack([own.features, more.features]),
        np.concatenate([own.labels, more.labels]),
        np.concatenate([own.weights, more.weights]),
    )
    return scorer


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


def _head(
    spec: HeadSpec,
    backend: str,
    scorer: Scorer,
    calibration: Temperature,
    tables: Tables,
    runs: Sequence[Trajectory],
    train: npt.NDArray[np.int64],
    config: TrainConfig,
) -> Head:
    own = tables[spec.name].of(train)
    provenance = {
        "examples": len(np.unique(own.example)),
        "trajectories": len(train),
        "seed": config.seed,
        "options": config.options(backend),
        "tasks": sorted({group_digest(runs[i].group) for i in train}),
    }
    names = tuple(feature.name for feature in spec.features)
    return Head(spec.name, backend, scorer, calibration, spec.classes, names, schema_hash(spec.features), provenance)


def _detection_settings(
    answered: Sequence[tuple[Trajectory, list[Prediction]]], min_precision: float | None
) -> dict[str, Any]:
    """Confidence of the triple and cutoffs, from held-out answers about every step of the training runs."""
    hits = np.concatenate(
        [metrics.detection_hits([detection(p) for p in own], run.labels or ()) for run, own in answered]
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
    """The least threshold whose mean Avg P@K is within ``PLATEAU`` of the best, each run keeping its first triple."""
    positive = [(run.labels, own) for run, own in ranked if run.labels]
    if not positive:
        return Cutoff()
    cutoffs = [Cutoff(round(threshold, 2)) for threshold in np.arange(0.05, 0.96, 0.05).tolist()]
    scores = []
    for cutoff in cutoffs:
        returned = [[detection(p) for p in cutoff.returned(own)] for _, own in positive]
        scores.append(metrics.detection_scores(returned, [labels for labels, _ in positive])["avg_p@k"].mean())
    return next(cutoff for cutoff, score in zip(cutoffs, scores, strict=True) if score >= max(scores) - PLATEAU)


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
    point = metrics.recall_at_precision(truth, redundant, min_precision)
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

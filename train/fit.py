"""Fitting a judge: a scorer per head, calibrated on inner folds that its models did not see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepsieve.data.errors import DataError
from stepsieve.data.features import schema_hash
from stepsieve.data.splits import assign_groups, leave_run_out
from stepsieve.data.trajectory import Label, Trajectory
from stepsieve.eval import detection, metrics
from stepsieve.models.calibrate import Platt, Temperature, log_probabilities
from stepsieve.models.checkpoint import Head, group_digest
from stepsieve.models.decode import Cutoff, Prediction
from stepsieve.models.fusion import TEXT_BACKENDS
from stepsieve.models.judge import DET, RET, Judge
from stepsieve.models.outlook import SUCCESS, Outlook
from stepsieve.models.scorer import Scorer, create
from stepsieve.train.config import TrainConfig
from stepsieve.train.examples import HeadSpec, Table, as_table, simulated_table, tabulate
from stepsieve.train.heads import HEADS
from stepsieve.train.outlook import siblings, stop_settings
from stepsieve.train.tasks import as_triple

if TYPE_CHECKING:
    from stepsieve.models.encoder import Encoder
    from stepsieve.models.prompts import Reader
    from stepsieve.train.reading import Reading

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
        self,
        runs: Sequence[Trajectory],
        heads: Sequence[str],
        simulated: Sequence[Trajectory],
        config: TrainConfig,
        reading: Reading | None = None,
    ) -> None:
        """``reading``: the encoders, where a backend is to be fitted that reads text."""
        self.runs = runs
        self.specs = [HEADS[name] for name in heads]
        self.config = config
        self.reading = reading
        reader = None if reading is None else reading.reader
        self.tables: Tables = {name: tabulate(HEADS[name], runs, reader=reader) for name in heads}
        self.extra: Tables = {spec.name: self._simulated(spec, simulated, reader) for spec in self.specs}

    def _simulated(self, spec: HeadSpec, simulated: Sequence[Trajectory], reader: Reader | None) -> Table:
        enough = spec.only_alone and len(self.tables[spec.name])
        return simulated_table(spec, () if enough else simulated, reader)

    def fit(self, backend: str, train: npt.NDArray[np.int64], by_run: bool = False) -> Judge:
        """A calibrated judge from the trajectories ``train`` (n,) of the corpus.

        Args:
            by_run: it is to judge further runs of tasks that it knows, and is calibrated on such runs.

        Raises:
            DataError: nothing to train on.
        """
        inner = _inner_folds(self.runs, train, self.config, by_run)
        parts = [train[inner == fold] for fold in _names(inner)]
        material = self._read(parts, train) if backend in TEXT_BACKENDS else Material(self.tables, self.extra)
        encoders = material.inner or (None,) * len(parts)
        rests = [np.setdiff1d(train, part) for part in parts]
        scorers = [{spec.name: self._scorer(spec, backend, rest, material) for spec in self.specs} for rest in rests]
        heads = {}
        for spec in self.specs:
            held_out = [
                (self._table(spec, part, rest if by_run else rest[:0], material), own[spec.name])
                for part, rest, own in zip(parts, rests, scorers, strict=True)
            ]
            scorer = self._scorer(spec, backend, train, material)
            heads[spec.name] = self._head(spec, backend, scorer, _calibration(spec, held_out), train, material)
        answered: list[tuple[Trajectory, list[Prediction]]] = []
        retrieved: list[tuple[Label, Prediction]] = []
        foreseen: list[tuple[Trajectory, list[Outlook]]] = []
        for part, rest, own, encoder in zip(parts, rests, scorers, encoders, strict=True):
            judge = Judge({name: replace(heads[name], scorer=own[name], encoder=encoder) for name in own})
            tested = [self.runs[i] for i in part]
            labels = [run.labels or () for run in tested]
            if RET in heads:
                pairs = judge.retrieve_batch(tested, [[label.step for label in each] for each in labels])
                retrieved += zip((x for each in labels for x in each), (p for each in pairs for p in each), strict=True)
            if DET in heads:
                answered += zip(tested, judge.detect_batch(tested, everything=True), strict=True)
            if SUCCESS in heads:
                others = siblings(tested, [self.runs[i] for i in rest])
                outlooks = judge.outlook_batch(tested, others)
                foreseen += zip(tested, (list(each.values()) for each in outlooks), strict=True)
        if foreseen:
            heads[SUCCESS] = replace(heads[SUCCESS], settings=stop_settings(foreseen, self.config.wrong_stops))
        if retrieved:
            heads[RET] = replace(heads[RET], settings=_retrieval_settings(retrieved))
        if answered:
            heads[DET] = replace(heads[DET], settings=_detection_settings(answered, self.config.min_precision))
        return Judge(heads)

    def _read(self, parts: Sequence[npt.NDArray[np.int64]], train: npt.NDArray[np.int64]) -> Material:
        """Every row with what an encoder that was not fine-tuned on its trajectory makes of it.

        Simulated rows and those to be tested get the scores of the encoder that was fine-tuned on all of ``train``.
        """
        reading = self.reading
        if reading is None:
            raise ValueError("expected encoders for a backend that reads text")
        corpus = list(self.tables.values())
        whole = reading.fitted(corpus, self.runs, train)
        inner = tuple(reading.fitted(corpus, self.runs, np.setdiff1d(train, part)) for part in parts)
        tables, extra = {}, {}
        for spec in self.specs:
            table, more = self.tables[spec.name], self.extra[spec.name]
            columns = np.full((len(table), len(spec.score_names)), np.nan, dtype=np.float32)
            for part, encoder in zip(parts, inner, strict=True):
                rows = np.flatnonzero(np.isin(table.trajectory, part))
                columns[rows] = reading.columns(encoder, spec, table.take(rows))
            tables[spec.name] = table.beside(columns)
            extra[spec.name] = more.beside(reading.columns(whole, spec, more))
        return Material(tables, extra, inner, whole)

    def _table(
        self, spec: HeadSpec, asked: npt.NDArray[np.int64], known: npt.NDArray[np.int64], material: Material
    ) -> Table:
        """The rows of the trajectories ``asked``. Those of a head that looks at other runs are made for these
        ``known`` ones: with any other the answers of a test would be among what it was trained on."""
        if spec.beside is None or not len(known):
            return material.tables[spec.name].of(asked)
        made = as_table(spec, spec.beside([self.runs[i] for i in asked], [self.runs[i] for i in known]))
        return replace(made, trajectory=asked[made.trajectory])

    def _scorer(self, spec: HeadSpec, backend: str, train: npt.NDArray[np.int64], material: Material) -> Scorer:
        own, more = self._table(spec, train, train, material), material.extra[spec.name]
        if not len(own) + len(more):
            raise DataError(f"expected labelled steps to train {spec.name} on, found none")
        names = spec.columns(backend)
        scorer = create(backend, names, len(spec.classes), self.config.seed, **self.config.options(backend))
        scorer.fit(
            np.vstack([own.features, more.features]),
            np.concatenate([own.labels, more.labels]),
            np.concatenate([own.weights, more.weights]),
        )
        return scorer

    def _head(
        self,
        spec: HeadSpec,
        backend: str,
        scorer: Scorer,
        calibration: Temperature,
        train: npt.NDArray[np.int64],
        material: Material,
    ) -> Head:
        provenance = {
            "examples": len(np.unique(self.tables[spec.name].of(train).example)),
            "trajectories": len(train),
            "seed": self.config.seed,
            "options": self.config.options(backend),
            "tasks": sorted({group_digest(self.runs[i].group) for i in train}),
        }
        schema = schema_hash(spec.features)
        return Head(
            spec.name,
            backend,
            scorer,
            calibration,
            spec.classes,
            spec.columns(backend),
            schema,
            provenance,
            encoder=material.encoder,
        )


@dataclass(frozen=True)
class Material:
    """What the heads of one judge are fitted on.

    Attributes:
        tables, extra: of the corpus and of the simulated runs, by head, with the encoders' scores if there are any.
        inner: the encoder of each inner fold, fine-tuned on the others. encoder: the one for all of the training set.
    """

    tables: Tables
    extra: Tables
    inner: tuple[Encoder, ...] = ()
    encoder: Encoder | None = None


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


def _retrieval_settings(retrieved: Sequence[tuple[Label, Prediction]]) -> dict[str, Any]:
    """Confidence of an evidence with its type, from held-out answers about every labelled step of the training runs."""
    labels, answers = [label for label, _ in retrieved], [answer for _, answer in retrieved]
    joint, _ = metrics.retrieval_correct(labels, [a.type for a in answers], [a.evidence for a in answers])
    pair = Platt.fit(np.array([answer.confidence for answer in answers]), joint)
    return {"pair": asdict(pair)}


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
    return {"cutoff": asdict(cutoff), "safe_bound": bound, "triple": asdict(triple)}


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
    runs: Sequence[Trajectory], train: npt.NDArray[np.int64], config: TrainConfig, by_run: bool = False
) -> npt.NDArray[np.int64]:
    """(n,) the inner fold of each training trajectory, grouped by task, or one run of each task in turn; -1: in none.

    All are -1 where tasks are fewer than folds, or no task has two runs.
    """
    own = [runs[i] for i in train]
    if by_run:
        number = np.full(len(train), -1)
        if len({run.group for run in own}) < len(own):
            for place, fold in enumerate(leave_run_out(own, range(len(own)))):
                number[fold.test] = place
        return number
    if config.inner_folds < 2 or len({run.group for run in own}) < config.inner_folds:
        return np.full(len(train), -1)
    assigned = assign_groups(own, config.inner_folds, config.seed)
    return np.array([assigned[run.group] for run in own], dtype=np.int64)


def _names(inner: npt.NDArray[np.int64]) -> list[int]:
    return sorted({int(fold) for fold in inner} - {-1})

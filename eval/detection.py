"""StepDet: triples detected in a run, scored by the official metric; and how well redundant steps are told apart.

Shapes, values and intervals as in metrics.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from numbers import Real
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepsieve.data.trajectory import Label, Reference
from stepsieve.eval.intervals import Interval, bootstrap_any, clopper_pearson, cluster_bootstrap
from stepsieve.eval.metrics import Bools, Floats, Groups, same_evidence

KS = (1, 5, 10)
"""Lengths at which the precision of the ranked triples is taken."""


# --- StepDet: nothing is given, triples are predicted ----------------------------------------------------------------


class Detection(NamedTuple):
    """One predicted triple with its confidence. A field that could not be read is None and never matches.

    A usable confidence is a real number in [0, 1]; a bool, text, None, NaN or a number outside is not.
    """

    step: Reference | None
    type: str | None
    evidence: Reference | None
    confidence: object


def usable(confidence: object) -> bool:
    """Whether a confidence ranks a prediction: a real number (no bool) in [0, 1]."""
    return _rank_key(confidence) <= 1


def rank(predictions: Sequence[Detection]) -> list[Detection]:
    """By confidence, highest first, equal ones in the order given; unusable confidences before all."""
    return sorted(predictions, key=lambda prediction: _rank_key(prediction.confidence), reverse=True)


def _rank_key(confidence: object) -> float:
    """The confidence, or infinity where it is not usable."""
    value = float(confidence) if isinstance(confidence, Real) and not isinstance(confidence, bool) else float("inf")
    return value if 0 <= value <= 1 else float("inf")


def detection_hits(predictions: Sequence[Detection] | None, gold: Sequence[Label]) -> Bools:
    """(n,) whether each of the ranked predictions scores; None (a failed reply) counts as no prediction.

    A prediction scores if its confidence is usable, it is the first such prediction of its step, and step, type and
    evidence match a gold label. A wrong first prediction of a step uses the step up, as in the benchmark's own scorer.
    """
    labels: dict[Reference, list[Label]] = {}
    for label in gold:
        labels.setdefault(label.step, []).append(label)
    hits, seen = [], set()
    for step, kind, evidence, confidence in rank(predictions or ()):
        first = usable(confidence) and step is not None and step not in seen
        if first:
            seen.add(step)
        matches = labels.get(step, ()) if first and step is not None else ()
        hits.append(any(kind == g.type and same_evidence(g.evidence, evidence) for g in matches))
    return np.array(hits, dtype=bool)


def precision_at_k(predictions: Sequence[Detection] | None, gold: Sequence[Label], k: int) -> float:
    """P@K of one trajectory, in [0, 1]: hits among the first K over min(K, predictions returned); 0 without any.

    RedundancyBench, StepDet P@K.
    """
    top = detection_hits(predictions, gold)[:k]
    return float(top.mean()) if len(top) else 0.0


def detection_scores(
    predictions: Sequence[Sequence[Detection] | None], gold: Sequence[Sequence[Label]], ks: Sequence[int] = KS
) -> dict[str, Floats]:
    """``p@k`` (n,) for each k, and ``avg_p@k`` (n,), their mean, of n trajectories."""
    hits = [detection_hits(p, g) for p, g in zip(predictions, gold, strict=True)]
    scores = {f"p@{k}": np.array([h[:k].mean() if len(h) else 0.0 for h in hits], dtype=np.float64) for k in ks}
    return {**scores, "avg_p@k": np.mean(list(scores.values()), axis=0)}


def detection_report(
    predictions: Sequence[Sequence[Detection] | None],
    gold: Sequence[Sequence[Label]],
    groups: Groups,
    folds: Groups | None = None,
    seed: int = 0,
    n_boot: int = 1000,
    ks: Sequence[int] = KS,
) -> dict[str, Interval]:
    """StepDet: ``p@k`` and ``avg_p@k``, the macro mean over trajectories; with ``/positives`` over those with a label.

    The released trajectories all have a label, and the official scorer takes no others, so that both agree there
    (the benchmark's Table 2: all positive trajectories, an empty reply counting 0). They part on corpora with runs in
    which nothing is redundant: such a run can only score 0, so ``/positives`` is the one to compare with the paper.
    """
    positive = np.array([len(labels) > 0 for labels in gold], dtype=bool)
    report = {}
    for name, values in detection_scores(predictions, gold, ks).items():
        report[name] = cluster_bootstrap(values, groups, seed, n_boot, folds)
        report[f"{name}/positives"] = cluster_bootstrap(
            values[positive], _where(groups, positive), seed, n_boot, None if folds is None else _where(folds, positive)
        )
    return report


# --- StepDet beyond the paper: every assistant step is scored --------------------------------------------------------


def localisation_auc(redundant: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """ROC AUC in [0, 1] of scores (n,) for whether each assistant step is redundant (n,); NaN for one class only."""
    positive, negative = _by_score(redundant, scores)
    # Each pair of one of either kind: won by the higher score, shared where both have the same.
    won = positive * (np.cumsum(negative) - negative / 2)
    return float(won.sum() / (positive.sum() * negative.sum())) if positive.any() and negative.any() else float("nan")


def localisation_ap(redundant: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """Average precision in [0, 1] of scores (n,) for whether each step is redundant (n,); NaN if none is."""
    positive, negative = (counts[::-1] for counts in _by_score(redundant, scores))
    precision = np.cumsum(positive) / np.cumsum(positive + negative)
    return float(positive @ precision / positive.sum()) if positive.any() else float("nan")


def _by_score(redundant: npt.ArrayLike, scores: npt.ArrayLike) -> tuple[Floats, Floats]:
    """How many redundant steps and how many others have each of the different scores, in ascending order."""
    truth = np.asarray(redundant, dtype=np.float64)
    _, place = np.unique(np.asarray(scores, dtype=np.float64), return_inverse=True)
    n = int(place.max(initial=-1)) + 1
    positive: Floats = np.bincount(place, truth, minlength=n).astype(np.float64)
    return positive, np.bincount(place, minlength=n) - positive


class OperatingPoint(NamedTuple):
    """Steps scored ``threshold`` or more are flagged: with this precision and recall, ``flagged`` of them.

    ``lower`` is the 95% Clopper-Pearson lower bound of the precision. Where no threshold reaches the precision asked
    for, the threshold is infinite, nothing is flagged, the recall is 0 and the precision NaN.
    """

    threshold: float
    precision: float
    recall: float
    lower: float
    flagged: int


def recall_at_precision(
    redundant: npt.ArrayLike, scores: npt.ArrayLike, precision: float = 0.99, bound: bool = False
) -> OperatingPoint:
    """The threshold of greatest recall whose precision is at least ``precision``.

    Args:
        redundant: (n,), whether each step is redundant.
        scores: (n,), higher for more redundant; equal scores are flagged together.
        precision: in (0, 1].
        bound: ask it of the Clopper-Pearson lower bound rather than of the precision itself.
    """
    truth, score = np.asarray(redundant, dtype=bool), np.asarray(scores, dtype=np.float64)
    order = np.argsort(-score, kind="stable")
    true_positives = np.cumsum(truth[order])
    # A threshold can only fall between different scores: at the last item of each run of equal ones.
    ends = np.flatnonzero(np.append(np.diff(score[order]) != 0, True)) if len(score) else np.empty(0, dtype=np.int64)
    for end in ends[::-1]:
        hits, flagged = int(true_positives[end]), int(end) + 1
        if hits < precision * flagged - 1e-9:
            continue
        lower = clopper_pearson(hits, flagged)
        if not bound or lower >= precision:
            return OperatingPoint(float(score[order[end]]), hits / flagged, hits / int(truth.sum()), lower, flagged)
    return OperatingPoint(float("inf"), float("nan"), 0.0, 0.0, 0)


def localisation_report(
    redundant: npt.ArrayLike,
    scores: npt.ArrayLike,
    groups: Groups,
    folds: Groups | None = None,
    seed: int = 0,
    n_boot: int = 200,
) -> dict[str, Interval]:
    """AUC, average precision and recall at precision 0.99 over all assistant steps; arguments (n,) each."""
    truth, score = np.asarray(redundant, dtype=bool), np.asarray(scores, dtype=np.float64)
    metrics = {
        "auc": lambda i: localisation_auc(truth[i], score[i]),
        "ap": lambda i: localisation_ap(truth[i], score[i]),
        "recall@p99": lambda i: recall_at_precision(truth[i], score[i]).recall if truth[i].any() else float("nan"),
    }
    return {name: bootstrap_any(metric, groups, seed, n_boot, folds) for name, metric in metrics.items()}


def _where(labels: Groups, mask: Bools) -> list[Hashable]:
    return [label for label, keep in zip(labels, mask, strict=True) if keep]

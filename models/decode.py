"""From scores to answers: the type and evidence of a step decided jointly, and the triples of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepsieve.data.trajectory import REDUNDANCY_TYPES, Reference
from stepsieve.models.calibrate import log_probabilities

if TYPE_CHECKING:
    from stepsieve.models.checkpoint import Head

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Prediction:
    """A redundant step with why: the triple of StepDet, or the answer of EvidenceRet for a given step.

    Attributes:
        step, evidence: references (see data/references.py).
        type: one of ``REDUNDANCY_TYPES``.
        confidence: calibrated probability in [0, 1] that type and evidence are right, and in StepDet that the step is
            redundant at all.
        redundant: calibrated probability in [0, 1] that the step is redundant; 1 where that was given.
    """

    step: Reference
    type: str
    evidence: Reference
    confidence: float
    redundant: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """The released form of a prediction."""
        return {
            "redundant_step_idx": list(self.step),
            "redundant_step_type": self.type,
            "evidence_step_idx": list(self.evidence),
            "confidence": round(self.confidence, 6),
        }


def evidence_probabilities(head: Head, features: npt.NDArray[np.float32], question: Ints) -> Floats:
    """(n,) P(evidence | step) of each candidate: the scorer's odds, normalised over the candidates of each step.

    Args:
        head: of EvidenceRet.
        features: (n, d) what it takes. question: (n,) which step each candidate belongs to, ascending.
    """
    logs = log_probabilities(head.scorer.predict_proba(features))
    offsets = np.append(np.flatnonzero(np.diff(question, prepend=-1)), len(question))
    return head.calibration.transform_grouped(logs[:, 1] - logs[:, 0], offsets)


def best_pairs(question: Ints, evidence: Floats, types: Floats) -> tuple[Ints, Ints, Floats]:
    """Of each question the candidate and type of greatest joint probability: argmax P(evidence) P(type | evidence).

    Args:
        question: (n,) which question each candidate belongs to, ascending from 0, none without a candidate.
        evidence: (n,) P(evidence), summing to 1 over the candidates of a question.
        types: (n, n_types) P(type | evidence), each row summing to 1.

    Returns:
        (n_questions,) each: the position of the candidate, the number of the type, their joint probability.
    """
    best_type = types.argmax(axis=1)
    joint = evidence * types[np.arange(len(types)), best_type]
    # The last entry of each question in ascending order is its best; the first candidate wins a tie.
    order = np.lexsort((-np.arange(len(joint)), joint, question))
    last = np.flatnonzero(np.diff(question[order], append=-1))
    found = order[last]
    return found, best_type[found], joint[found]


def leaders(question: Ints, evidence: Floats) -> Bools:
    """(n,) candidates that can still win: a type is at least 1/4 probable, so none below a quarter of the best can."""
    starts = np.flatnonzero(np.diff(question, prepend=-1))
    best = np.repeat(np.maximum.reduceat(evidence, starts), np.diff(np.append(starts, len(question))))
    return evidence >= best / len(REDUNDANCY_TYPES)


def best_of_run(run: Ints, value: Floats) -> Bools:
    """(n,) marks the greatest value of each run, the first of equals; runs ascend."""
    order = np.lexsort((-np.arange(len(run)), value, run))
    marked = np.zeros(len(run), dtype=bool)
    marked[order[np.flatnonzero(np.diff(run[order], append=-1))]] = True
    return marked


@dataclass(frozen=True, slots=True)
class Cutoff:
    """Which triples of a run are returned: those of at least ``threshold``, and the run's best of at least ``first``.

    The official metric divides by the number returned, and an empty reply scores nothing, so that both belong to the
    model; both are chosen on training folds.

    ``safe`` is for pruning, where deleting a necessary step is worse than keeping a redundant one: the least
    probability of being redundant at which the wanted precision held on held-out folds; None where none reached it.
    With ``prune`` it decides alone.
    """

    threshold: float = 0.5
    first: float = 0.0
    safe: float | None = None
    prune: bool = False

    def returned(self, ranked: Sequence[Prediction]) -> list[Prediction]:
        """Those of a run's predictions, the most confident first, that are returned."""
        if self.prune:
            return self.prunable(ranked)
        return [
            prediction
            for place, prediction in enumerate(ranked)
            if prediction.confidence >= (self.threshold if place else min(self.first, self.threshold))
        ]

    def prunable(self, ranked: Sequence[Prediction]) -> list[Prediction]:
        """Those of a run's predictions that can be deleted safely."""
        return [] if self.safe is None else [p for p in ranked if p.redundant >= self.safe]

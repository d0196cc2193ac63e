"""What moved a prediction: the features that changed the confidence of a triple most, in words.

A triple's confidence is P(redundant) P(evidence | step) P(type | step, evidence), so its logarithm is a sum over the
three heads. What a head adds to that, against its starting point, is shared among its features in proportion to their
contributions to the trees' score (LightGBM's ``pred_contrib``, Shapley values). The starting point is the mean over the
training set for ``det``, and not knowing which for ``ret`` and ``cls``: the strongest candidates, all types alike. What
counts there is thus how the choice differs from its rivals. All effects are in one unit, and those of a feature add up;
the share of a type's overall frequency belongs to no feature and is not shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepsieve.data.errors import DataError
from stepsieve.data.features import (
    BATCH,
    PAIR_FEATURES,
    RETRIEVAL_FEATURES,
    STEP_FEATURES,
    retrieval_features,
    step_features,
)
from stepsieve.data.features.candidates import candidates
from stepsieve.data.features.index import Index
from stepsieve.data.features.registry import Feature
from stepsieve.data.trajectory import Trajectory
from stepsieve.models.calibrate import log_probabilities
from stepsieve.models.checkpoint import Head
from stepsieve.models.decode import Prediction, evidence_probabilities
from stepsieve.models.gbdt import Gbdt
from stepsieve.models.judge import CLS, DET, RET, Judge

SHOWN = 5
"""So many features are named for each prediction."""
RIVALS = 7
"""The evidence is set against so many other candidates, the most probable ones."""
AT_ONCE = 256
"""So many predictions are explained together: their candidates are in memory at once."""

Floats = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float32]


class Explainer:
    """Says of a judge's predictions what moved them."""

    def __init__(self, judge: Judge) -> None:
        """Raises DataError: a head that is no gbdt, or one that reads text too."""
        self.heads = {task: judge.heads[task] for task in (DET, RET, CLS)}
        for task, head in self.heads.items():
            if not isinstance(head.scorer, Gbdt) or head.encoder is not None:
                raise DataError(f"expected gbdt heads to explain, found {head.backend!r} for {task!r}")

    def explain(
        self, trajectories: Sequence[Trajectory], predictions: Sequence[Sequence[Prediction]]
    ) -> list[list[list[dict[str, Any]]]]:
        """For each prediction of each trajectory its reasons, the strongest first.

        A reason is ``{"feature": name, "says": words, "effect": change of the confidence's natural logarithm}``.
        """
        found: list[list[list[dict[str, Any]]]] = []
        for start in range(0, len(trajectories), BATCH):
            own = predictions[start : start + BATCH]
            reasons = iter(self._batch(trajectories[start : start + BATCH], own))
            found += [[next(reasons) for _ in some] for some in own]
        return found

    def _batch(
        self, trajectories: Sequence[Trajectory], predictions: Sequence[Sequence[Prediction]]
    ) -> list[list[dict[str, Any]]]:
        flat = [(run, prediction) for run, own in enumerate(predictions) for prediction in own]
        index = Index(trajectories)
        steps = step_features(index)
        return [
            reason
            for start in range(0, len(flat), AT_ONCE)
            for reason in self._some(index, steps, flat[start : start + AT_ONCE])
        ]

    def _some(
        self, index: Index, steps: Matrix, asked: Sequence[tuple[int, Prediction]]
    ) -> Iterator[list[dict[str, Any]]]:
        rows = np.array([index.row(run, prediction.step) for run, prediction in asked], dtype=np.int64)
        found = candidates(index, rows)
        features = retrieval_features(index, found, steps)
        probabilities = evidence_probabilities(self.heads[RET], features, found.question)
        bounds = np.searchsorted(found.question, np.arange(len(rows) + 1)).tolist()
        chosen = np.array([found.places(index, n)[prediction.evidence] for n, (_, prediction) in enumerate(asked)])
        effects = self._evidence(features, probabilities, chosen, bounds)
        effects[:, : len(STEP_FEATURES)] += self._redundant(steps[rows])
        pairs = features[chosen, : len(PAIR_FEATURES)]
        effects[:, : len(PAIR_FEATURES)] += self._types(pairs, [prediction.type for _, prediction in asked])
        yield from map(_strongest, effects, features[chosen])

    def _redundant(self, features: Matrix) -> Floats:
        """(n, n_features) what each adds to log P(redundant), against the mean of training."""
        head = self.heads[DET]
        parts = _contributions(head, features)[:, 0]
        base = parts[0, -1]
        start = head.calibration.transform(np.array([[1 / (1 + np.exp(base)), 1 / (1 + np.exp(-base))]]))[0, 1]
        gain = log_probabilities(head.predict(features)[:, 1]) - np.log(start)
        return _shared(parts[:, :-1], gain)

    def _evidence(
        self, features: Matrix, probabilities: Floats, chosen: npt.NDArray[np.int64], bounds: Sequence[int]
    ) -> Floats:
        """(n, n_features) what each adds to log P(evidence), against the strongest candidates alike.

        Args:
            features, probabilities: of all candidates, those of prediction i from ``bounds[i]`` on.
            chosen: (n,) the candidate that became the evidence.
        """
        sets = []
        for place, low, high in zip(chosen.tolist(), bounds, bounds[1:], strict=False):
            ranked = low + np.argsort(-probabilities[low:high], kind="stable")
            sets.append(np.concatenate([[place], ranked[ranked != place][:RIVALS]]))
        starts = np.cumsum([0, *map(len, sets)])[:-1]
        rows = np.concatenate(sets)
        parts = _contributions(self.heads[RET], features[rows])[:, 0, :-1]
        mean = np.add.reduceat(parts, starts) / np.array([[len(own)] for own in sets])
        among = probabilities[chosen] / np.add.reduceat(probabilities[rows], starts)
        gain = log_probabilities(among) + np.log([len(own) for own in sets])
        return _shared(parts[starts] - mean, gain)

    def _types(self, features: Matrix, names: Sequence[str]) -> Floats:
        """(n, n_features) what each adds to log P(type), against all types alike."""
        head = self.heads[CLS]
        rows, chosen = np.arange(len(names)), [head.classes.index(name) for name in names]
        parts = _contributions(head, features)
        gain = log_probabilities(head.predict(features)[rows, chosen]) + np.log(len(head.classes))
        return _shared(parts[rows, chosen] - parts.mean(axis=1), gain)[:, :-1]


def _contributions(head: Head, features: Matrix) -> Floats:
    """(n, n_scores, n_features + 1): contributions to each class's score, of two to one score; last the mean."""
    scorer = head.scorer
    assert isinstance(scorer, Gbdt)
    assert scorer.booster is not None
    found = scorer.booster.predict(features, pred_contrib=True, num_threads=scorer.threads)
    return np.asarray(found, dtype=np.float64).reshape(len(features), -1, features.shape[1] + 1)


def _shared(parts: Floats, gain: Floats) -> Floats:
    """(n, k) the gain of each row in the proportions of its parts; none where the two point in different directions."""
    total = parts.sum(axis=1)
    same = gain * total > 1e-12
    return parts * np.where(same, gain / np.where(same, total, 1.0), 0.0)[:, None]


def _strongest(effects: Floats, values: npt.NDArray[np.float32]) -> list[dict[str, Any]]:
    order = np.argsort(-np.abs(effects), kind="stable")[:SHOWN]
    return [
        {
            "feature": RETRIEVAL_FEATURES[number].name,
            "says": in_words(RETRIEVAL_FEATURES[number], float(values[number])),
            "effect": round(float(effects[number]), 4),
        }
        for number in order.tolist()
        if effects[number] != 0
    ]


def in_words(feature: Feature, value: float) -> str:
    """What a feature says with its value: "later calls with the same tool and arguments: 1"."""
    what = _RIVAL.fullmatch(feature.name)
    if what is None or what["subject"] not in _DOCS:
        return f"{feature.doc}: {_said(feature, value)}"
    rivals = _RIVALS.get(what["who"], what["who"])
    return f"{_DOCS[what['subject']]}: the best of {rivals} less the evidence: {_said(feature, value)}"


_RIVAL = re.compile(r"rival\.(?P<who>\w+)\.(?P<subject>.+)")
_RIVALS = {
    "all": "all candidates",
    "after": "all later calls",
    "before": "all earlier calls",
    "tool_after": "all later calls of the tool",
}
_DOCS = {feature.name: feature.doc for feature in RETRIEVAL_FEATURES}


def _said(feature: Feature, value: float) -> str:
    if np.isnan(value):
        return "does not apply"
    if feature.dtype == "bool":
        return "yes" if value else "no"
    return f"{value:.0%}" if feature.doc.split(": ")[-1].startswith("share ") else f"{value:.3g}"

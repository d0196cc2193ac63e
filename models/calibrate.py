"""Calibration of probabilities on held-out predictions: temperature and Platt scaling.

Each calibrator is fitted on predictions of data that the scorer was not trained on, is monotone in the score, never
returns NaN, and is JSON through ``to_dict`` and ``from_dict``. scipy is imported by the fits alone: a
checkpoint applies its calibration with numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

EPSILON = 1e-7
"""Probabilities are kept inside [EPSILON, 1 - EPSILON] before a logarithm."""

LOG_TEMPERATURE = (np.log(0.05), np.log(20.0))
"""Bounds of the search: outside them a temperature says that the fit had next to no data."""


@dataclass(frozen=True, slots=True)
class Temperature:
    """Divides log-probabilities by one ``temperature`` > 0 and normalises again (Guo et al., 2017).

    It never changes which option comes first. Serves a fixed set of options as well as candidates whose number varies.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(f"expected a temperature above 0, found {self.temperature}")

    @classmethod
    def fit(
        cls, probabilities: npt.ArrayLike, labels: npt.ArrayLike, weights: npt.ArrayLike | None = None
    ) -> Temperature:
        """The temperature of least weighted negative log-likelihood.

        Args:
            probabilities: (n, k), in [0, 1].
            labels: (n,), the index of the true option in each row.
            weights: (n,), >= 0; all 1 if None.

        Raises:
            ValueError: labels that are not n indices of an option.
        """
        logits = log_probabilities(probabilities)
        n, k = logits.shape
        index = np.asarray(labels, dtype=np.int64)
        if index.shape != (n,) or (index < 0).any() or (index >= k).any():
            raise ValueError(f"expected {n} labels from 0 to {k - 1}")
        truth = np.arange(n) * k + index
        return cls.fit_grouped(logits.reshape(-1), np.arange(n + 1) * k, truth, weights)

    def transform(self, probabilities: npt.ArrayLike) -> Floats:
        """Calibrated probabilities (n, k) from probabilities (n, k); each row sums to 1."""
        logits = log_probabilities(probabilities)
        n, k = logits.shape
        return self.transform_grouped(logits.reshape(-1), np.arange(n + 1) * k).reshape(n, k)

    @classmethod
    def fit_grouped(
        cls, logits: npt.ArrayLike, offsets: npt.ArrayLike, truth: npt.ArrayLike, weights: npt.ArrayLike | None = None
    ) -> Temperature:
        """The same for questions with a varying number of candidates.

        Args:
            logits: (m,), the candidates of all questions one after another; any real scores.
            offsets: (n + 1,), question i owns ``logits[offsets[i]:offsets[i + 1]]``; offsets[0] is 0, offsets[n] is m.
            truth: (n,), the position in ``logits`` of each question's true candidate; -1 leaves a question out.
            weights: (n,), >= 0; all 1 if None.
        """
        centred, starts, _ = _grouped(logits, offsets)
        true = np.asarray(truth, dtype=np.int64)
        weight = np.where(true >= 0, 1.0 if weights is None else np.asarray(weights, dtype=np.float64), 0.0)
        if not weight.sum() > 0:
            return cls()
        picked = np.maximum(true, 0)

        def loss(log_temperature: float) -> float:
            scaled = centred / np.exp(log_temperature)
            log_sums = np.log(np.add.reduceat(np.exp(scaled), starts))
            return float(weight @ (log_sums - scaled[picked]) / weight.sum())

        from scipy.optimize import minimize_scalar

        found = minimize_scalar(loss, bounds=LOG_TEMPERATURE, method="bounded", options={"xatol": 1e-4})
        # On a flat loss (one candidate per question, say) the search ends anywhere; then nothing is to be changed.
        return cls(float(np.exp(found.x))) if found.fun < loss(0.0) - 1e-9 else cls()

    def transform_grouped(self, logits: npt.ArrayLike, offsets: npt.ArrayLike) -> Floats:
        """Calibrated probabilities (m,) from logits (m,); those of one question sum to 1."""
        centred, starts, sizes = _grouped(logits, offsets)
        if not len(starts):
            return centred
        scaled: Floats = np.exp(centred / self.temperature)
        sums: Floats = np.add.reduceat(scaled, starts)
        return scaled / np.repeat(sums, sizes)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "temperature", "temperature": self.temperature}


@dataclass(frozen=True, slots=True)
class Platt:
    """``p -> sigmoid(slope * logit(p) + intercept)`` with slope >= 0, for a yes/no question (Platt, 1999)."""

    slope: float = 1.0
    intercept: float = 0.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.slope) and np.isfinite(self.intercept) and self.slope >= 0):
            raise ValueError(f"expected a finite slope >= 0 and intercept, found {self.slope} and {self.intercept}")

    @classmethod
    def fit(cls, probabilities: npt.ArrayLike, labels: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> Platt:
        """The slope and intercept of least weighted cross-entropy, with Platt's smoothed targets.

        Args:
            probabilities: (n,), in [0, 1].
            labels: (n,), 0 or 1.
            weights: (n,), >= 0; all 1 if None.
        """
        p, y, weight = _binary(probabilities, labels, weights)
        x = np.log(p) - np.log1p(-p)
        positive, negative = float(weight @ y), float(weight @ (1 - y))
        if positive + negative <= 0:
            return cls()
        # Smoothed targets keep the slope finite where the two classes separate perfectly.
        target = np.where(y > 0, (positive + 1) / (positive + 2), 1 / (negative + 2))

        def loss(parameters: Floats) -> tuple[float, Floats]:
            z = parameters[0] * x + parameters[1]
            slack = weight * (_sigmoid(z) - target)
            value = weight @ (np.logaddexp(0, z) - target * z)
            return float(value) / weight.sum(), np.array([slack @ x, slack.sum()]) / weight.sum()

        from scipy.optimize import minimize

        bounds = [(0.0, 100.0), (-100.0, 100.0)]
        found = minimize(loss, np.array([1.0, 0.0]), jac=True, method="L-BFGS-B", bounds=bounds)
        return cls(float(found.x[0]), float(found.x[1]))

    def transform(self, probabilities: npt.ArrayLike) -> Floats:
        """Calibrated probabilities (n,) from probabilities (n,)."""
        x = _clip(probabilities)
        return _sigmoid(self.slope * (np.log(x) - np.log1p(-x)) + self.intercept)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "platt", "slope": self.slope, "intercept": self.intercept}


Calibrator = Temperature | Platt


def from_dict(record: dict[str, Any]) -> Calibrator:
    """The calibrator that ``to_dict`` wrote.

    Raises:
        ValueError: an unknown ``kind``, or values that are no such calibrator.
    """
    kind = record.get("kind")
    try:
        if kind == "temperature":
            return Temperature(float(record["temperature"]))
        if kind == "platt":
            return Platt(float(record["slope"]), float(record["intercept"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"expected the parameters of a {kind} calibrator: {error!r}") from None
    raise ValueError(f"expected kind temperature or platt, found {kind!r}")


def log_probabilities(probabilities: npt.ArrayLike) -> Floats:
    """Logarithms of probabilities of any shape, finite: clipped at ``EPSILON``; NaN counts as ``EPSILON``."""
    return np.log(_clip(probabilities, high=1.0))


def _clip(probabilities: npt.ArrayLike, high: float = 1 - EPSILON) -> Floats:
    return np.clip(np.nan_to_num(np.asarray(probabilities, dtype=np.float64), nan=EPSILON), EPSILON, high)


def _sigmoid(z: Floats) -> Floats:
    return np.exp(-np.logaddexp(0, -z))


def _binary(
    probabilities: npt.ArrayLike, labels: npt.ArrayLike, weights: npt.ArrayLike | None
) -> tuple[Floats, Floats, Floats]:
    x, y = _clip(probabilities), np.asarray(labels, dtype=np.float64)
    return x, y, np.ones(len(x)) if weights is None else np.asarray(weights, dtype=np.float64)


def _grouped(logits: npt.ArrayLike, offsets: npt.ArrayLike) -> tuple[Floats, Ints, Ints]:
    """Logits less the greatest of their question, then the start and the size of each question."""
    flat = np.nan_to_num(np.asarray(logits, dtype=np.float64), nan=-1e6, posinf=1e6, neginf=-1e6)
    bounds = np.asarray(offsets, dtype=np.int64)
    sizes = np.diff(bounds)
    if not len(bounds) or bounds[0] != 0 or bounds[-1] != len(flat) or (sizes < 1).any():
        raise ValueError(f"expected ascending offsets from 0 to {len(flat)}, each question with a candidate")
    starts = bounds[:-1]
    if len(starts):
        flat = flat - np.repeat(np.maximum.reduceat(flat, starts), sizes)
    return flat, starts, sizes

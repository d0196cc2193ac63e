"""Logistic regression over the structured features: the baseline that a model with interactions has to beat."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from stepsieve.models.scorer import Floats, Ints, Probabilities


class Linear:
    """Multinomial logistic regression on standardised features; a NaN becomes the mean, beside a column that says so."""

    def __init__(self, features: tuple[str, ...], n_classes: int, seed: int = 0, c: float = 0.3) -> None:
        """``c``: inverse strength of the L2 penalty, > 0."""
        self.n_classes = n_classes
        self.seed = seed
        self.c = c
        width = 2 * len(features)
        self.mean = np.zeros(width)
        self.scale = np.ones(width)
        self.weight = np.zeros((n_classes, width))
        self.bias = np.zeros(n_classes)

    def fit(self, features: Floats, labels: Ints, weights: npt.NDArray[np.float64]) -> None:
        from sklearn.linear_model import LogisticRegression

        raw = _with_missing(features)
        filled = raw[:, : features.shape[1]]
        count = np.maximum((~np.isnan(filled)).sum(0), 1)
        self.mean = np.concatenate([np.nansum(filled, axis=0) / count, np.zeros(features.shape[1])])
        rows = np.where(np.isnan(raw), self.mean, raw)
        self.scale = np.maximum(rows.std(axis=0), 1e-6)
        present = np.unique(labels)
        if len(present) < 2:
            self.bias = np.where(np.arange(self.n_classes) == present[0], 10.0, 0.0)
            return
        model = LogisticRegression(C=self.c, max_iter=2000, random_state=self.seed)
        model.fit((rows - self.mean) / self.scale, labels, sample_weight=weights)
        # scikit-learn keeps one row for two classes, and none for a class that did not occur.
        self.weight = np.zeros((self.n_classes, rows.shape[1]))
        self.bias = np.full(self.n_classes, -30.0)
        coefficients, intercepts = model.coef_, model.intercept_
        if len(present) == 2:
            coefficients, intercepts = np.vstack([0 * coefficients, coefficients]), np.append(0.0, intercepts)
        self.weight[present], self.bias[present] = coefficients, intercepts

    def predict_proba(self, features: Floats) -> Probabilities:
        raw = _with_missing(features)
        rows = (np.where(np.isnan(raw), self.mean, raw) - self.mean) / self.scale
        logits = rows @ self.weight.T + self.bias
        exponent: Probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
        return exponent / exponent.sum(axis=1, keepdims=True)

    def save(self, folder: Path) -> None:
        arrays = {"mean": self.mean, "scale": self.scale, "weight": self.weight, "bias": self.bias}
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, folder / "linear.safetensors")

    def load(self, folder: Path) -> None:
        arrays = load_file(folder / "linear.safetensors")
        self.mean, self.scale, self.weight, self.bias = (
            np.asarray(arrays[name], dtype=np.float64) for name in ("mean", "scale", "weight", "bias")
        )


def _with_missing(features: Floats) -> npt.NDArray[np.float64]:
    """(n, 2d): counts on a logarithmic scale, with their sign, then where a value was missing."""
    values = features.astype(np.float64)
    return np.hstack([np.sign(values) * np.log1p(np.abs(values)), np.isnan(values)])

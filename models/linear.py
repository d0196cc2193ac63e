"""Logistic regression over the structured features: the baseline that a model with interactions has to beat."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from stepsieve.models.scorer import Floats, Ints, Probabilities


class Linear:
    """Multinomial logistic regression on standardised features; a NaN is the mean, beside a column that says so."""

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
        raw = _with_missing(features)
        filled = raw[:, : features.shape[1]]
        count = np.maximum((~np.isnan(filled)).sum(0), 1)
        self.mean = np.concatenate([np.nansum(filled, axis=0) / count, np.zeros(features.shape[1])])
        rows = np.where(np.isnan(raw), self.mean, raw)
        # A column that never changes says nothing: divided by next to nothing it would drown the others.
        spread = rows.std(axis=0)
        self.scale = np.where(spread > 1e-6, spread, 1.0)
        present = np.unique(labels)
        if len(present) < 2:
            self.bias = np.where(np.arange(self.n_classes) == present[0], 10.0, 0.0)
            return
        # A class that did not occur stays out of reach.
        self.weight = np.zeros((self.n_classes, rows.shape[1]))
        self.bias = np.full(self.n_classes, -30.0)
        fitted = _regress((rows - self.mean) / self.scale, np.searchsorted(present, labels), weights, self.c)
        self.weight[present], self.bias[present] = fitted[:, :-1], fitted[:, -1]

    def predict_proba(self, features: Floats) -> Probabilities:
        raw = _with_missing(features)
        rows = (np.where(np.isnan(raw), self.mean, raw) - self.mean) / self.scale
        logits = rows @ self.weight.T + self.bias
        exponent = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities: Probabilities = exponent / exponent.sum(axis=1, keepdims=True)
        return probabilities

    def save(self, folder: Path) -> None:
        arrays = {"mean": self.mean, "scale": self.scale, "weight": self.weight, "bias": self.bias}
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, folder / "linear.safetensors")

    def load(self, folder: Path) -> None:
        arrays = load_file(folder / "linear.safetensors")
        self.mean, self.scale, self.weight, self.bias = (
            np.asarray(arrays[name], dtype=np.float64) for name in ("mean", "scale", "weight", "bias")
        )


def _regress(
    rows: npt.NDArray[np.float64], labels: Ints, weights: npt.NDArray[np.float64], c: float
) -> npt.NDArray[np.float64]:
    """(k, d + 1): weights and intercept of each class, of least weighted log-loss plus |weights|^2 / 2c.

    scikit-learn's objective, without its hundred megabytes.
    """
    from scipy.optimize import minimize
    from threadpoolctl import threadpool_limits

    rows = rows.astype(np.float32)
    total = max(float(weights.sum()), 1e-12)
    truth = np.eye(int(labels.max()) + 1)[labels]
    share = (weights / total)[:, None]

    def loss(flat: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        table = flat.reshape(truth.shape[1], -1)
        # Class by class: a product with two to five columns is many times slower than as many with one.
        logits = np.stack([rows @ own for own in table[:, :-1].astype(np.float32)], axis=1) + table[:, -1]
        logits -= logits.max(axis=1, keepdims=True)
        log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        penalty = table[:, :-1] / (c * total)
        slack = share * (np.exp(log_p) - truth)
        products = np.stack([own @ rows for own in slack.T.astype(np.float32)])
        gradient = np.hstack([products + penalty, slack.sum(axis=0)[:, None]])
        return float(-(share * truth * log_p).sum() + (table[:, :-1] * penalty).sum() / 2), gradient.ravel()

    start = np.zeros(truth.shape[1] * (rows.shape[1] + 1))
    # Products this small gain nothing from a second thread, and wait long for one whose core is taken; and on one
    # thread the same data gives the same bits on any number of cores.
    with threadpool_limits(1, "blas"):
        found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 100, "ftol": 1e-7})
    fitted: npt.NDArray[np.float64] = found.x.reshape(truth.shape[1], -1)
    return fitted


def _with_missing(features: Floats) -> npt.NDArray[np.float64]:
    """(n, 2d): counts on a logarithmic scale, with their sign, then where a value was missing."""
    values = features.astype(np.float64)
    return np.hstack([np.sign(values) * np.log1p(np.abs(values)), np.isnan(values)])

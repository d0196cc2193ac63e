"""What every backend is: it fits rows of features to classes, gives probabilities, and saves itself without pickle."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stepsieve.data.errors import DataError

Floats = npt.NDArray[np.float32]
Probabilities = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Scorer(Protocol):
    """A model of P(class | features). Constructed as ``Backend(features, n_classes, seed, **options)``.

    ``features`` are the column names, so that a scorer can find a column or refuse a matrix of another width.
    """

    def fit(self, features: Floats, labels: Ints, weights: npt.NDArray[np.float64]) -> None:
        """Learn from features (n, d) float32 with NaN where one does not apply, labels (n,), weights (n,) >= 0."""

    def predict_proba(self, features: Floats) -> Probabilities:
        """Probabilities (n, n_classes), each row summing to 1, from features (n, d)."""

    def save(self, folder: Path) -> None:
        """Write the model into an existing folder: LightGBM text, safetensors or JSON."""

    def load(self, folder: Path) -> None:
        """Read what ``save`` wrote. Nothing in the folder is executed."""


BACKENDS: Mapping[str, str] = {
    "majority": "stepsieve.models.rules:Majority",
    "rules": "stepsieve.models.rules:Rules",
    "linear": "stepsieve.models.linear:Linear",
    "gbdt": "stepsieve.models.gbdt:Gbdt",
    "encoder": "stepsieve.models.fusion:Reading",
    "fusion": "stepsieve.models.gbdt:Gbdt",
}
"""Backend name -> where it is. A module is imported when its backend is asked for."""

BASELINES: tuple[str, ...] = ("majority", "rules", "linear")
"""What stands beside every model in a table."""


def create(backend: str, features: Sequence[str], n_classes: int, seed: int = 0, **options: Any) -> Scorer:
    """A new scorer.

    Raises:
        DataError: an unknown backend.
    """
    if backend not in BACKENDS:
        raise DataError(f"expected a backend among {', '.join(BACKENDS)}, found {backend!r}")
    module, name = BACKENDS[backend].split(":")
    scorer: Scorer = getattr(importlib.import_module(module), name)(tuple(features), n_classes, seed, **options)
    return scorer

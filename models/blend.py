"""Trees and logistic regression, averaged: for few examples, where each alone varies much from sample to sample."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepsieve.models.gbdt import Gbdt
from stepsieve.models.linear import Linear
from stepsieve.models.scorer import Floats, Ints, Probabilities

NOTHING: Mapping[str, Any] = {}


class Blend:
    """The mean of the probabilities of a ``Gbdt`` and a ``Linear``, which are fitted and saved side by side."""

    def __init__(
        self,
        features: tuple[str, ...],
        n_classes: int,
        seed: int = 0,
        gbdt: Mapping[str, Any] = NOTHING,
        linear: Mapping[str, Any] = NOTHING,
    ) -> None:
        """``gbdt``, ``linear``: the options of the two."""
        self.parts = (Gbdt(features, n_classes, seed, **gbdt), Linear(features, n_classes, seed, **linear))

    def fit(self, features: Floats, labels: Ints, weights: npt.NDArray[np.float64]) -> None:
        for part in self.parts:
            part.fit(features, labels, weights)

    def predict_proba(self, features: Floats) -> Probabilities:
        trees, linear = (part.predict_proba(features) for part in self.parts)
        mean: Probabilities = (trees + linear) / 2
        return mean

    def save(self, folder: Path) -> None:
        for part in self.parts:
            part.save(folder)

    def load(self, folder: Path) -> None:
        for part in self.parts:
            part.load(folder)

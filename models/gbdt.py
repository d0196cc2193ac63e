"""Gradient-boosted trees (LightGBM) over the structured features: the default backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepsieve.models.scorer import Floats, Ints, Probabilities
from stepsieve.models.trees import Trees


class Gbdt:
    """A LightGBM model, binary or multiclass, saved as LightGBM's own text."""

    def __init__(
        self,
        features: tuple[str, ...],
        n_classes: int,
        seed: int = 0,
        rounds: int = 200,
        learning_rate: float = 0.06,
        leaves: int = 12,
        min_leaf: int = 10,
        feature_fraction: float = 0.3,
        row_fraction: float = 0.8,
        l2: float = 2.0,
        threads: int = 1,
    ) -> None:
        """``rounds`` trees per class of at most ``leaves`` leaves; fractions in (0, 1] are drawn anew for each tree."""
        self.features = list(features)
        self.n_classes = n_classes
        self.rounds = rounds
        self.threads = threads
        self.parameters = {
            **({"objective": "binary"} if n_classes == 2 else {"objective": "multiclass", "num_class": n_classes}),
            "learning_rate": learning_rate,
            "num_leaves": leaves,
            "min_data_in_leaf": min_leaf,
            "feature_fraction": feature_fraction,
            "bagging_fraction": row_fraction,
            "bagging_freq": 1,
            "lambda_l2": l2,
            "num_threads": threads,
            "seed": seed,
            "deterministic": True,
            "force_row_wise": True,
            "verbosity": -1,
        }
        self.trees: Trees | None = None
        self._booster: Any = None

    def fit(self, features: Floats, labels: Ints, weights: npt.NDArray[np.float64]) -> None:
        import lightgbm

        data = lightgbm.Dataset(features, labels, weight=weights, feature_name=self.features, free_raw_data=True)
        self._booster = lightgbm.train(self.parameters, data, self.rounds)
        self.trees = Trees(self._booster.model_to_string())

    def predict_proba(self, features: Floats) -> Probabilities:
        trees = self._trained()
        if not len(features):
            return np.zeros((0, self.n_classes))
        found = trees.predict(features, self.threads)
        return np.stack([1.0 - found, found], axis=1) if self.n_classes == 2 else found

    @property
    def booster(self) -> Any:
        """The model as LightGBM's own ``Booster``, for what prediction alone can't do."""
        import lightgbm

        if self._booster is None:
            self._booster = lightgbm.Booster(model_str=self._trained().text)
        return self._booster

    def save(self, folder: Path) -> None:
        (folder / "model.txt").write_text(self._trained().text, encoding="utf-8")

    def load(self, folder: Path) -> None:
        self._booster = None
        self.trees = Trees((folder / "model.txt").read_text(encoding="utf-8"))

    def _trained(self) -> Trees:
        if self.trees is None:
            raise RuntimeError("fit or load the model first")
        return self.trees

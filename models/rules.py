"""Two models that learn next to nothing: the largest class, and the heuristics of RedundancyBench (section 5)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import orjson

from stepsieve.data.trajectory import ABNORMAL, DUPLICATED, EXPLORATORY, INCORRECT, REDUNDANCY_TYPES
from stepsieve.models.scorer import Floats, Ints, Probabilities


class Majority:
    """Every row gets the class frequencies of the training data."""

    def __init__(self, features: tuple[str, ...], n_classes: int, seed: int = 0) -> None:
        self.frequencies = np.full(n_classes, 1.0 / n_classes)

    def fit(self, features: Floats, labels: Ints, weights: npt.NDArray[np.float64]) -> None:
        counts = np.bincount(labels, weights=weights, minlength=len(self.frequencies)) + 1e-6
        self.frequencies = counts / counts.sum()

    def predict_proba(self, features: Floats) -> Probabilities:
        return np.tile(self.frequencies, (len(features), 1))

    def save(self, folder: Path) -> None:
        (folder / "majority.json").write_bytes(orjson.dumps(self.frequencies.tolist()))

    def load(self, folder: Path) -> None:
        self.frequencies = np.array(orjson.loads((folder / "majority.json").read_bytes()), dtype=np.float64)


class Rules:
    """The type of a redundant step by three questions: did it fail, is it identical to the evidence, which came first.

    A failed step whose evidence is a later identical call is abnormal; a step identical to earlier evidence is
    duplicated; evidence after the step makes it exploratory; all else is incorrect. Only the confidence of each answer
    is learned.
    """

    CONFIDENCE = 0.85

    def __init__(self, features: tuple[str, ...], n_classes: int, seed: int = 0) -> None:
        if n_classes != len(REDUNDANCY_TYPES):
            raise ValueError(f"the rules answer with one of {len(REDUNDANCY_TYPES)} types, not of {n_classes} classes")
        self.column = {name: number for number, name in enumerate(features)}

    def fit(self, features: Floats, labels: Ints, weights: npt.NDArray[np.float64]) -> None:
        """Nothing: the rules are fixed."""

    def predict_proba(self, features: Floats) -> Probabilities:
        def holds(name: str) -> npt.NDArray[np.bool_]:
            return features[:, self.column[name]] == 1

        after, same = holds("evidence.after"), holds("evidence.same_call")
        answers = np.select(
            [holds("error.failed") & same & after, same & ~after, after],
            [REDUNDANCY_TYPES.index(name) for name in (ABNORMAL, DUPLICATED, EXPLORATORY)],
            REDUNDANCY_TYPES.index(INCORRECT),
        )
        others = (1.0 - self.CONFIDENCE) / (len(REDUNDANCY_TYPES) - 1)
        table = np.full((len(features), len(REDUNDANCY_TYPES)), others)
        table[np.arange(len(features)), answers] = self.CONFIDENCE
        return table

    def save(self, folder: Path) -> None:
        """Nothing to write."""

    def load(self, folder: Path) -> None:
        """Nothing to read."""

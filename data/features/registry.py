"""The registry: what each feature is called, what it says, and its range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Feature:
    """One number that a model sees.

    Attributes:
        name: ``subject.what``.
        doc: one line, in words that can stand in an explanation.
        low, high: its range; values outside are a defect.
        dtype: "bool" (0 or 1) or "float". NaN where it does not apply.
    """

    name: str
    doc: str
    dtype: str = "float"
    low: float = 0.0
    high: float = math.inf


def flag(name: str, doc: str) -> Feature:
    """A 0/1 feature."""
    return Feature(name, doc, "bool", 0.0, 1.0)


def share(name: str, doc: str) -> Feature:
    """A feature between 0 and 1."""
    return Feature(name, doc, "float", 0.0, 1.0)


def count(name: str, doc: str) -> Feature:
    """A number from 0: how many, or how many weighted."""
    return Feature(name, doc, "float")


def difference(name: str, doc: str) -> Feature:
    """A number of either sign."""
    return Feature(name, doc, "float", -math.inf)


Values = dict[str, npt.NDArray[np.generic]]
"""Feature name -> its values, one per row."""


def columns(features: Sequence[Feature], values: Values, rows: int) -> npt.NDArray[np.float32]:
    """The values of the features, in the order of their registry, as a (rows, n_features) float32 matrix.

    Raises:
        KeyError: a registered feature was not computed, or a computed one is not registered.
    """
    if values.keys() != {feature.name for feature in features}:
        raise KeyError(sorted(values.keys() ^ {feature.name for feature in features}))
    table = np.empty((rows, len(features)), dtype=np.float32)
    for number, feature in enumerate(features):
        table[:, number] = values[feature.name]
    return table


def ratio(part: npt.NDArray[np.generic], whole: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """part / whole, NaN where whole is 0."""
    size = np.asarray(whole, dtype=np.float64)
    return np.where(size > 0, np.asarray(part, dtype=np.float64) / np.where(size > 0, size, 1.0), np.nan)

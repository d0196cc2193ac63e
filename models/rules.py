"""Two models that learn next to nothing: the largest class, and heuristics, those of RedundancyBench and the like."""

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
    """The heuristics of RedundancyBench, identical steps and error words, as sets of rules that learn nothing.

    *Type* (four classes): a failed step whose evidence is a later identical call is abnormal; a step identical to
    earlier evidence is duplicated; evidence after the step makes it exploratory; all else is incorrect.
    *Redundant* (two classes, step features): an identical call before, or a failure that later succeeds.
    *Evidence* (two classes, candidate features): the identical call, the earliest first; else the next call of the
    tool; else the next call.
    *Quality* (action features, levels as classes): a failed call, or one much like an earlier one, is one level below
    the best.
    *Ending* (progress features, two classes): the last call failed or was much like an earlier one, or it was not.
    Which class that speaks for is all that is learned here.
    """

    ALIKE = 0.7

    CONFIDENCE = 0.85

    def __init__(self, features: tuple[str, ...], n_classes: int, seed: int = 0) -> None:
        if not 2 <= n_classes <= len(REDUNDANCY_TYPES):
            raise ValueError(f"the rules answer with 2 to {len(REDUNDANCY_TYPES)} classes, not {n_classes}")
        self.n_classes = n_classes
        self.column = {name: number for number, name in enumerate(features)}
        self.trouble_speaks_for = 0

    def fit(self, features: Floats, labels: Ints, weights: npt.NDArray[np.float64]) -> None:
        """Nothing but which class trouble speaks for: the rules are fixed."""
        if "progress.last_failed" in self.column:
            troubled = self._trouble(features, "progress.last_failed", "progress.last_alike")
            share = [float(np.average(labels, weights=weights * own + 1e-9)) for own in (troubled, ~troubled)]
            self.trouble_speaks_for = int(share[0] > share[1])

    def predict_proba(self, features: Floats) -> Probabilities:
        if "action.text" in self.column:
            return self._quality(features)
        if "progress.last_failed" in self.column:
            return self._ending(features)
        if self.n_classes == len(REDUNDANCY_TYPES):
            return self._types(features)
        yes = self._evidence(features) if "evidence.after" in self.column else self._redundant(features)
        return np.stack([1.0 - yes, yes], axis=1)

    def _holds(self, features: Floats, name: str) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = features[:, self.column[name]] == 1
        return found

    def _trouble(self, features: Floats, failed: str, alike: str) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = features[:, self.column[alike]] >= self.ALIKE
        return found | self._holds(features, failed) if failed in self.column else found

    def _quality(self, features: Floats) -> Probabilities:
        level = self.n_classes - 1 - self._trouble(features, "error.failed", "action.like_earlier")
        table = np.full((len(features), self.n_classes), (1.0 - self.CONFIDENCE) / (self.n_classes - 1))
        table[np.arange(len(features)), level] = self.CONFIDENCE
        return table

    def _ending(self, features: Floats) -> Probabilities:
        troubled = self._trouble(features, "progress.last_failed", "progress.last_alike")
        yes = np.where(troubled == self.trouble_speaks_for, self.CONFIDENCE, 1.0 - self.CONFIDENCE)
        return np.stack([1.0 - yes, yes], axis=1)

    def _types(self, features: Floats) -> Probabilities:
        after, same = self._holds(features, "evidence.after"), self._holds(features, "evidence.same_call")
        answers = np.select(
            [self._holds(features, "error.failed") & same & after, same & ~after, after],
            [REDUNDANCY_TYPES.index(name) for name in (ABNORMAL, DUPLICATED, EXPLORATORY)],
            REDUNDANCY_TYPES.index(INCORRECT),
        )
        others = (1.0 - self.CONFIDENCE) / (len(REDUNDANCY_TYPES) - 1)
        table = np.full((len(features), len(REDUNDANCY_TYPES)), others)
        table[np.arange(len(features)), answers] = self.CONFIDENCE
        return table

    def _redundant(self, features: Floats) -> Probabilities:
        repeated = features[:, self.column["repeat.same_call_before"]] > 0
        retried = self._holds(features, "error.failed") & self._holds(features, "repeat.succeeds_after")
        return np.where(repeated | retried, self.CONFIDENCE, 1.0 - self.CONFIDENCE)

    def _evidence(self, features: Floats) -> Probabilities:
        same, after = self._holds(features, "evidence.same_call"), self._holds(features, "evidence.after")
        tool = self._holds(features, "evidence.same_tool")
        gap = np.nan_to_num(features[:, self.column["evidence.calls_between"]], nan=99.0)
        nearness = 1.0 / (1.0 + gap)
        distance = 1.0 - nearness
        # Four bands, the better above the worse; within a band the earliest source, or the nearest call.
        band = np.select([same & ~after, same, tool & after, after], [0.8 + 0.1 * distance, 0.7, 0.4, 0.2], 0.01)
        found: Probabilities = band + np.where(same & ~after, 0.0, 0.1 * nearness)
        return found

    def save(self, folder: Path) -> None:
        (folder / "rules.json").write_bytes(orjson.dumps({"trouble_speaks_for": self.trouble_speaks_for}))

    def load(self, folder: Path) -> None:
        path = folder / "rules.json"
        if path.exists():  # checkpoints of earlier versions have none
            self.trouble_speaks_for = int(orjson.loads(path.read_bytes())["trouble_speaks_for"])

"""Whether a run that is still going will succeed: two heads on its prefix, and when they are sure enough to stop it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, NamedTuple

import numpy as np

from stepsieve.data.features import BATCH, PROGRESS_FEATURES, progress_features
from stepsieve.data.features.index import Index
from stepsieve.data.trajectory import Trajectory
from stepsieve.models.checkpoint import Head

SUCCESS: Final = "success"
FAILURE: Final = "failure"
RUNNING = 2
"""So many observations in a row have to say the same."""

Ending = Literal["success", "failure"]


class Outlook(NamedTuple):
    """P(success) and P(failure) of a run, each in [0, 1]. They need not sum to 1: a run can end in between."""

    success: float
    failure: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """The probability at which a head is sure enough; None: never."""

    success: float | None = None
    failure: float | None = None

    def says(self, outlook: Outlook) -> Ending | None:
        """Which end is sure enough, the likelier one where both are."""
        sure: list[tuple[float, Ending]] = []
        if self.success is not None and outlook.success >= self.success:
            sure.append((outlook.success, SUCCESS))
        if self.failure is not None and outlook.failure >= self.failure:
            sure.append((outlook.failure, FAILURE))
        return max(sure)[1] if sure else None

    def stop(self, outlooks: Sequence[Outlook]) -> tuple[int, Ending] | None:
        """The first observation at which the same end is sure the ``RUNNING``-th time in a row, and that end."""
        said = [self.says(outlook) for outlook in outlooks]
        for place, (before, now) in enumerate(pairwise(said), 1):
            if now is not None and now == before:
                return place, now
        return None


def outlooks(
    heads: Mapping[str, Head], runs: Sequence[Trajectory], siblings: Sequence[Sequence[Trajectory]]
) -> list[dict[int, Outlook]]:
    """For each run and each message of its assistant that did something, how the run stood when that had closed.

    Args:
        heads: SUCCESS and FAILURE.
        siblings: for each run other runs of its task, of which those with an outcome are known.
    """
    found: list[dict[int, Outlook]] = []
    for start in range(0, len(runs), BATCH):
        some = runs[start : start + BATCH]
        actions, features = progress_features(Index(some), siblings[start : start + BATCH])
        own: list[dict[int, Outlook]] = [{} for _ in some]
        success, failure = (heads[name].predict(features)[:, 1].tolist() for name in (SUCCESS, FAILURE))
        # Of a message with several calls the last one closes it.
        for run, message, *both in zip(actions.run.tolist(), actions.message.tolist(), success, failure, strict=True):
            own[run][message] = Outlook(*both)
        found += own
    return found


def at_start(heads: Mapping[str, Head]) -> Outlook:
    """The outlook of a run of which nothing has been seen."""
    nothing = np.full((1, len(PROGRESS_FEATURES)), np.nan, dtype=np.float32)
    return Outlook(*(float(heads[name].predict(nothing)[0, 1]) for name in (SUCCESS, FAILURE)))

"""Quality of what the assistant did: levels of each message by dimension, and the score of a stage (DynSTEER, 3.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from stepsieve.data.features import ACTION_FEATURES, BATCH, OWN_FEATURES, action_features
from stepsieve.data.features.index import Index
from stepsieve.data.features.registry import Feature
from stepsieve.data.quality import COMPLIANCE, CORRECTNESS, EFFICIENCY, LEVELS, SAFETY
from stepsieve.data.trajectory import Trajectory
from stepsieve.models.checkpoint import Head
from stepsieve.models.questions import ScoreAnswer

QUALITY_FEATURES: Mapping[str, tuple[Feature, ...]] = {
    CORRECTNESS: OWN_FEATURES,
    EFFICIENCY: ACTION_FEATURES,
    COMPLIANCE: ACTION_FEATURES,
    SAFETY: ACTION_FEATURES,
}
"""What the head of each dimension sees. Correctness is asked of texts too, and taught by few labels: it sees what calls
and texts share, and no more."""

Levels = dict[int, dict[str, ScoreAnswer]]
"""Message index -> dimension -> the probability of each level."""


class StageScore(NamedTuple):
    """One dimension of a stage.

    Attributes:
        score: expected level in [0, 1]: the mean over the stage's messages; of safety the least, for one breach spoils
            a stage.
        uncertainty: 1 less the probability of the likeliest level, in [0, 2/3], averaged in the same way.
        steps: the message indices that it rests on, the worst first.
    """

    score: float
    uncertainty: float
    steps: tuple[int, ...]


def levels(heads: Mapping[str, Head], runs: Sequence[Trajectory]) -> list[Levels]:
    """What the heads of the dimensions, by name, say of every message of the assistant in each run.

    A message with several calls gets the mean of theirs; one that did nothing (unanswered calls, no text) is left out.
    """
    found: list[Levels] = []
    for start in range(0, len(runs), BATCH):
        index = Index(runs[start : start + BATCH])
        actions, features = action_features(index)
        first = np.flatnonzero(np.diff(actions.run, prepend=-1) | np.diff(actions.message, prepend=-1))
        own: list[Levels] = [{} for _ in runs[start : start + BATCH]]
        for name, head in heads.items():
            table = head.predict(features[:, : len(head.features)])
            sizes = np.diff(np.append(first, len(table)))
            means = np.add.reduceat(table, first) / sizes[:, None] if len(first) else table
            for place, row in zip(first.tolist(), means.tolist(), strict=True):
                answer = ScoreAnswer(LEVELS[name], tuple(row))
                own[actions.run[place]].setdefault(int(actions.message[place]), {})[name] = answer
        found += own
    return found


def stage_score(dimension: str, answers: Mapping[int, ScoreAnswer]) -> StageScore:
    """The score of a stage in a dimension from the levels of its messages, of which there is one at least."""
    ranked = sorted(answers, key=lambda message: answers[message].expected)
    counted = ranked[:1] if dimension == SAFETY else ranked
    scores = [answers[message].expected for message in counted]
    doubts = [1.0 - answers[message].confidence for message in counted]
    return StageScore(sum(scores) / len(scores), sum(doubts) / len(doubts), tuple(ranked))

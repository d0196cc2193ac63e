"""The quality of what an assistant did, message by message, in the four dimensions of DynSTEER (section 3.3).

What people or the simulator said stands in ``Trajectory.qualities``. Of a run with annotated redundant steps two
dimensions follow: a redundant step was not efficient, an incorrect or abnormal one no sound use of its tool.
"""

from __future__ import annotations

from collections.abc import Mapping

from stepsieve.data.trajectory import ABNORMAL, INCORRECT, Quality, Trajectory

CORRECTNESS, EFFICIENCY, COMPLIANCE, SAFETY = "correctness", "efficiency", "compliance", "safety"

LEVELS: Mapping[str, tuple[float, ...]] = {
    CORRECTNESS: (0.0, 0.5, 1.0),
    EFFICIENCY: (0.0, 1.0),
    COMPLIANCE: (0.0, 1.0),
    SAFETY: (0.0, 1.0),
}
"""Dimension -> its levels. Correctness: harmful, neutral, effective; the others: no or yes."""

UNSOUND = (INCORRECT, ABNORMAL)


def qualities(run: Trajectory) -> tuple[Quality, ...]:
    """All that is known of a run's messages; () where nothing is. A message with several calls is as its worst."""
    worst: dict[tuple[int, str], float] = {}
    if run.labels is not None:
        types = {label.step: label.type for label in run.labels}
        for step in run.steps:
            kind = types.get(step.reference)
            for name, good in ((EFFICIENCY, kind is None), (COMPLIANCE, kind not in UNSOUND)):
                key = step.call_index, name
                worst[key] = min(worst.get(key, 1.0), float(good))
    derived = tuple(Quality(message, name, score) for (message, name), score in worst.items())
    return derived + (run.qualities or ())

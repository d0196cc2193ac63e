"""``python -m stepsieve.data.features``: every feature with its type, range and meaning."""

from __future__ import annotations

import math

from stepsieve.data.errors import run_cli
from stepsieve.data.features import ACTION_FEATURES, PAIR_FEATURES, PROGRESS_FEATURES, STEP_FEATURES
from stepsieve.data.features.registry import Feature


def main() -> None:
    """Print the registry, one feature per line."""
    features = PAIR_FEATURES + ACTION_FEATURES[: -len(STEP_FEATURES)] + PROGRESS_FEATURES
    rows = [("feature", "type", "range", "meaning"), *((f.name, f.dtype, _range(f), f.doc) for f in features)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]))


def _range(feature: Feature) -> str:
    if feature.dtype == "bool":
        return "0 or 1"
    if math.isinf(feature.low):
        return "any"
    return f"{feature.low:g} up" if math.isinf(feature.high) else f"{feature.low:g} to {feature.high:g}"


if __name__ == "__main__":
    run_cli(main)

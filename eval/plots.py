"""The plots of the benchmark as PNG files: per type, risk-coverage, reliability, P@K against K."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepsieve.data.errors import require
from stepsieve.data.trajectory import REDUNDANCY_TYPES
from stepsieve.eval import detection, metrics
from stepsieve.eval.results import DET, TITLES

if TYPE_CHECKING:
    from stepsieve.eval.compare import Cascade
    from stepsieve.eval.scores import Items

MAX_K = 20


def draw(items: Items, out: Path) -> list[str]:
    """Write the plots that one set of predictions allows; returns their file names.

    Raises:
        DataError: matplotlib is not installed.
    """
    figures = require("matplotlib.figure", "plots")
    out.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{items.task}-{items.name}").strip("-")
    known = items.confidences()
    plots = {
        "p-at-k": _precision_at_k if items.task == DET else None,
        "types": _types if items.task != DET else None,
        "risk-coverage": _risk_coverage if known else None,
        "reliability": _reliability if known else None,
    }
    names = []
    for kind, plot in plots.items():
        if plot is None:
            continue
        figure = figures.Figure(figsize=(6, 4), layout="constrained")
        axes = figure.add_subplot()
        plot(axes, items)
        axes.set_title(f"{TITLES[items.task]}, {items.name}")
        axes.grid(alpha=0.3)
        names.append(f"{stem}-{kind}.png")
        # The same bytes for the same figures: no date, no version.
        figure.savefig(out / names[-1], dpi=120, metadata={"Software": None})
    return names


def draw_cascades(cascades: Mapping[str, Sequence[Cascade]], out: Path) -> list[str]:
    """Write a plot for each task (by its title): the score against what cascades cost; returns their file names.

    Where one's dollars aren't known, the share of the units that the judge answers stands for all costs.

    Raises:
        DataError: matplotlib is not installed.
    """
    figures = require("matplotlib.figure", "plots")
    out.mkdir(parents=True, exist_ok=True)
    names = []
    for title, found in cascades.items():
        figure = figures.Figure(figsize=(6, 4), layout="constrained")
        axes = figure.add_subplot()
        priced = all(own.dollars is not None for own in found)
        for own in found:
            places = own.dollars if priced else own.curve.passed
            (line,) = axes.plot(places, own.curve.value, label=f"{own.first}, then {own.judge}")
            axes.plot(own.cost.dollars if priced else own.passed, own.value, marker="o", color=line.get_color())
        axes.set(xlabel="dollars per 1,000 trajectories" if priced else "share that the judge answers", ylabel="score")
        axes.set_title(f"{title}, cascades (dots: the calibrated threshold)")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        names.append(f"cascades-{title.lower()}.png")
        figure.savefig(out / names[-1], dpi=120, metadata={"Software": None})
    return names


def _types(axes: Any, items: Items) -> None:
    right = items.right()
    kinds = [kind for kind in REDUNDANCY_TYPES if any(label.type == kind for label in items.labels)]
    masks = [np.array([label.type == kind for label in items.labels]) for kind in kinds]
    shares = [right[mask].mean() for mask in masks]
    bars = axes.bar(
        [f"{kind.removesuffix(' Step')}\n{mask.sum()}" for kind, mask in zip(kinds, masks, strict=True)], shares
    )
    axes.bar_label(bars, [f"{100 * share:.1f}" for share in shares])
    axes.set(ylabel="share right", ylim=(0, 1.08))


def _risk_coverage(axes: Any, items: Items) -> None:
    known = items.confidences()
    assert known is not None
    coverage, risk = metrics.risk_coverage(*known)
    axes.plot(coverage, risk, drawstyle="steps-post")
    axes.set(xlabel="share answered, most confident first", ylabel="share wrong", xlim=(0, 1), ylim=(0, None))


def _reliability(axes: Any, items: Items) -> None:
    known = items.confidences()
    assert known is not None
    level, right, n = metrics.reliability(*known)
    filled = n > 0
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1)
    axes.plot(level[filled], right[filled], marker="o")
    for x, y, count in zip(level[filled], right[filled], n[filled], strict=True):
        axes.annotate(str(count), (x, y), textcoords="offset points", xytext=(5, 4), fontsize=8)
    axes.set(xlabel="confidence", ylabel="share right", xlim=(0, 1), ylim=(0, 1.02))


def _precision_at_k(axes: Any, items: Items) -> None:
    ks = range(1, MAX_K + 1)
    scores = detection.detection_scores(items.triples, items.gold, ks)
    axes.plot(list(ks), [scores[f"p@{k}"].mean() for k in ks], marker="o")
    axes.set(xlabel="K", ylabel="P@K", ylim=(0, 1.02), xticks=[1, *range(5, MAX_K + 1, 5)])

"""Means over folds with 95% cluster bootstrap intervals, and tests for two predictors on the same items.

One definition serves every metric. The *value* is the mean over folds of the metric of each fold's items. A *replicate*
draws as many clusters (tasks) as the corpus has, with replacement, and computes the same mean over folds with each
item counted as often as its cluster was drawn; a fold of which no cluster was drawn is left out of that replicate. The
interval is the 2.5% to 97.5% range of the replicates, widened to hold the value where a skewed metric would leave it
outside. A cluster that several folds test (leave-agent-out) counts alike in all of them.

Without folds the value is the metric of all items. Folds where a metric is undefined (NaN) are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, betaincinv

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LEVEL = 0.95
_CELLS = 4_000_000
"""Draws are made in blocks of at most this many counts, so that memory stays bounded for a large corpus."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A metric's ``value`` with its 95% interval ``[low, high]`` from ``n`` items; NaN where it is undefined."""

    value: float
    low: float
    high: float
    n: int

    def to_dict(self) -> dict[str, float | int | None]:
        """``{value, low, high, n}`` for JSON, with None for NaN."""
        numbers = {"value": self.value, "low": self.low, "high": self.high}
        return {**{key: x if np.isfinite(x) else None for key, x in numbers.items()}, "n": self.n}


def cluster_bootstrap(
    values: npt.ArrayLike,
    groups: Sequence[Hashable],
    seed: int = 0,
    n_boot: int = 1000,
    folds: Sequence[Hashable] | None = None,
) -> Interval:
    """The mean over folds of per-item values, such as 0 or 1 for wrong or right.

    Args:
        values: (n,), finite.
        groups: (n,), the cluster (task) of each item.
        seed: decides the draws.
        n_boot: number of replicates.
        folds: (n,), the fold that tested each item; None for one fold.
    """
    x = np.asarray(values, dtype=np.float64)
    return bootstrap_sums(np.stack([x, np.ones_like(x)], axis=1), _ratio, groups, seed, n_boot, folds)


def bootstrap_sums(
    parts: npt.ArrayLike,
    statistic: Callable[[Floats], Floats],
    groups: Sequence[Hashable],
    seed: int = 0,
    n_boot: int = 1000,
    folds: Sequence[Hashable] | None = None,
) -> Interval:
    """The mean over folds of a metric that is a function of sums over items (F1 of counts, ECE of sums per bin).

    Args:
        parts: (n, m), what each item adds to the m sums.
        statistic: metrics (...,) from sums (..., m); NaN where undefined.
        groups, seed, n_boot, folds: as in ``cluster_bootstrap``.
    """
    items = np.asarray(parts, dtype=np.float64)
    if not len(items):
        return Interval(np.nan, np.nan, np.nan, 0)
    group, n_groups = _codes(groups, len(items))
    fold, n_folds = _codes(folds, len(items))
    sums = np.zeros((n_groups, n_folds, items.shape[1]))
    np.add.at(sums, (group, fold), items)
    flat = sums.reshape(n_groups, -1)

    def means(counts: Floats) -> Floats:
        return _mean_over_folds(statistic((counts @ flat).reshape(len(counts), n_folds, -1)))

    value = float(means(np.ones((1, n_groups)))[0])
    return _interval(value, np.concatenate([means(block) for block in _draws(n_groups, seed, n_boot)]), len(items))


def share_of(top: int, bottom: int) -> Callable[[Floats], Floats]:
    """A statistic for ``bootstrap_sums``: one sum over another, NaN where that is 0."""

    def share(sums: Floats) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            return sums[..., top] / sums[..., bottom]

    return share


def bootstrap_any(
    statistic: Callable[[Ints], float],
    groups: Sequence[Hashable],
    seed: int = 0,
    n_boot: int = 200,
    folds: Sequence[Hashable] | None = None,
) -> Interval:
    """The mean over folds of any metric, such as an AUC; slower, since it is computed again for every replicate.

    Args:
        statistic: the metric from item indices (k,), in which an item can occur several times; NaN where undefined.
        groups, seed, n_boot, folds: as in ``cluster_bootstrap``.
    """
    n = len(groups)
    if not n:
        return Interval(np.nan, np.nan, np.nan, 0)
    group, n_groups = _codes(groups, n)
    fold, n_folds = _codes(folds, n)
    members = [np.flatnonzero(fold == k) for k in range(n_folds)]

    def mean(counts: Floats) -> float:
        drawn = (np.repeat(index, counts[group[index]].astype(np.int64)) for index in members)
        return float(_mean_over_folds(np.array([statistic(index) if len(index) else np.nan for index in drawn])))

    replicates = np.array([mean(counts) for block in _draws(n_groups, seed, n_boot) for counts in block])
    return _interval(mean(np.ones(n_groups)), replicates, n)


def bootstrap_counts(
    statistic: Callable[[Floats], Floats], groups: Sequence[Hashable], seed: int = 0, n_boot: int = 1000
) -> Interval:
    """Any metric of all items that can be computed of many replicates at once, such as a correlation.

    Args:
        statistic: metrics (m,) from how often each item counts in each of m replicates (m, n); NaN where undefined.
        groups, seed, n_boot: as in ``cluster_bootstrap``.
    """
    n = len(groups)
    if not n:
        return Interval(np.nan, np.nan, np.nan, 0)
    group, n_groups = _codes(groups, n)
    replicates = np.concatenate([statistic(counts[:, group]) for counts in _draws(n_groups, seed, n_boot)])
    return _interval(float(statistic(np.ones((1, n)))[0]), replicates, n)


def paired_bootstrap(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    groups: Sequence[Hashable],
    seed: int = 0,
    n_boot: int = 1000,
    folds: Sequence[Hashable] | None = None,
) -> Interval:
    """The difference of two predictors, a less b, from their values (n,) on the same items; as ``cluster_bootstrap``.

    Both are resampled together. An interval without 0 says that they differ.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(f"expected values on the same items, found {first.shape} and {second.shape}")
    return cluster_bootstrap(first - second, groups, seed, n_boot, folds)


class McNemar(NamedTuple):
    """Items that only a, and only b, got right; and the two-sided exact p-value, in (0, 1]."""

    only_a: int
    only_b: int
    p_value: float


def mcnemar(a: npt.ArrayLike, b: npt.ArrayLike) -> McNemar:
    """McNemar's exact test that two predictors, right or wrong (n,) on the same items, are equally often right.

    It takes the items as independent; where a task holds several, ``paired_bootstrap`` is the safer of the two.
    """
    first, second = np.asarray(a, dtype=bool), np.asarray(b, dtype=bool)
    if first.shape != second.shape:
        raise ValueError(f"expected answers on the same items, found {first.shape} and {second.shape}")
    only_a, only_b = int((first & ~second).sum()), int((~first & second).sum())
    discordant = only_a + only_b
    p_value = min(1.0, 2 * float(bdtr(min(only_a, only_b), discordant, 0.5))) if discordant else 1.0
    return McNemar(only_a, only_b, p_value)


def clopper_pearson(successes: int, n: int, confidence: float = LEVEL) -> float:
    """The exact one-sided lower bound of a proportion, in [0, 1], from ``successes`` of ``n``; 0 without success."""
    if not 0 <= successes <= n:
        raise ValueError(f"expected successes from 0 to {n}, found {successes}")
    return float(betaincinv(successes, n - successes + 1, 1 - confidence)) if successes else 0.0


def _ratio(sums: Floats) -> Floats:
    with np.errstate(invalid="ignore"):
        return sums[..., 0] / sums[..., 1]


def _mean_over_folds(metrics: Floats) -> Floats:
    """The mean over the last axis without NaN; NaN where all are."""
    defined = np.isfinite(metrics)
    with np.errstate(invalid="ignore"):
        return np.where(defined, metrics, 0.0).sum(axis=-1) / defined.sum(axis=-1)


def _draws(n_groups: int, seed: int, n_boot: int) -> Iterator[Floats]:
    """``n_boot`` rows of how often each cluster was drawn, (rows, n_groups) at a time."""
    rng = np.random.default_rng(seed)
    rows = max(1, _CELLS // n_groups)
    for start in range(0, n_boot, rows):
        shape = min(rows, n_boot - start)
        yield rng.multinomial(n_groups, np.full(n_groups, 1 / n_groups), size=shape).astype(np.float64)


def _codes(labels: Sequence[Hashable] | None, n: int) -> tuple[Ints, int]:
    """Labels as integers in their sorted order, so that the draws depend on the labels and not on the items' order."""
    if labels is None:
        return np.zeros(n, dtype=np.int64), 1
    if len(labels) != n:
        raise ValueError(f"expected a group and a fold for each of {n} items, found {len(labels)}")
    code = {label: k for k, label in enumerate(sorted(set(labels), key=repr))}
    return np.array([code[label] for label in labels], dtype=np.int64), len(code)


def _interval(value: float, replicates: Floats, n: int) -> Interval:
    defined = replicates[np.isfinite(replicates)]
    if not np.isfinite(value) or not len(defined):
        return Interval(value, np.nan, np.nan, n)
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, min(float(low), value), max(float(high), value), n)

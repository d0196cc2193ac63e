"""Array helpers for things in order that fall into groups: calls of a tool, identical calls, a turn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepsieve.data.features.index import Ints


@dataclass(frozen=True)
class Grouping:
    """Members (n,) in order, each of one group; members that don't count have group -1 and count for nobody.

    All results have shape (n,); positions are indices of members, -1 where there is none.
    """

    group: Ints

    @cached_property
    def _sorted(self) -> tuple[Ints, Ints]:
        order = np.argsort(self.group, kind="stable")
        group = self.group[order]
        starts = np.concatenate([[True], group[1:] != group[:-1]]) if len(group) else np.zeros(0, dtype=bool)
        begin = np.maximum.accumulate(np.where(starts, np.arange(len(group)), 0)) if len(group) else np.zeros(0, int)
        return order, begin

    @cached_property
    def before(self) -> Ints:
        """How many earlier members the group has."""
        order, begin = self._sorted
        found = np.empty(len(order), dtype=np.int64)
        found[order] = np.arange(len(order)) - begin
        return np.where(self.group >= 0, found, 0)

    @cached_property
    def after(self) -> Ints:
        """How many later members the group has."""
        size = np.bincount(np.maximum(self.group, 0), weights=self.group >= 0)
        return np.where(self.group >= 0, size[np.maximum(self.group, 0)].astype(np.int64) - 1 - self.before, 0)

    @cached_property
    def previous(self) -> Ints:
        """The last earlier member of the group."""
        order, begin = self._sorted
        found = np.empty(len(order), dtype=np.int64)
        place = np.arange(len(order)) - 1
        found[order] = np.where(place >= begin, order[place], -1)
        return np.where(self.group >= 0, found, -1)

    @cached_property
    def next(self) -> Ints:
        """The first later member of the group."""
        found = np.full(len(self.group), -1)
        mine = np.flatnonzero(self.previous >= 0)
        found[self.previous[mine]] = mine
        return found

    def any_before(self, flag: np.ndarray) -> np.ndarray:
        """Whether an earlier member of the group has the flag (n,)."""
        return self.count_before(flag) > 0

    def any_after(self, flag: np.ndarray) -> np.ndarray:
        """Whether a later member of the group has the flag (n,)."""
        return self.count_after(flag) > 0

    def count_before(self, flag: np.ndarray) -> Ints:
        """How many earlier members of the group have the flag (n,)."""
        order, begin = self._sorted
        running = np.concatenate([[0], np.cumsum(flag[order])]).astype(np.int64)
        found = np.empty(len(order), dtype=np.int64)
        found[order] = running[:-1] - running[begin] if len(order) else running[:-1]
        return np.where(self.group >= 0, found, 0)

    def count_after(self, flag: np.ndarray) -> Ints:
        """How many later members of the group have the flag (n,)."""
        total = np.bincount(np.maximum(self.group, 0), weights=np.where(self.group >= 0, flag, 0))
        rest = total[np.maximum(self.group, 0)].astype(np.int64) - self.count_before(flag) - flag
        return np.where(self.group >= 0, rest, 0)

    def max_before(self, value: np.ndarray) -> np.ndarray:
        """The greatest value (n,) among the earlier members of the group; -inf where there is none."""
        order, begin = self._sorted
        found = np.full(len(order), -np.inf)
        if len(order):
            found[order] = _max_so_far(value[order], begin)
        return np.where(self.group >= 0, found, -np.inf)

    def max_after(self, value: np.ndarray) -> np.ndarray:
        """The greatest value (n,) among the later members of the group; -inf where there is none."""
        return Grouping(self.group[::-1]).max_before(value[::-1])[::-1]


def _max_so_far(values: np.ndarray, begin: Ints) -> np.ndarray:
    """The greatest of the values (n,) from ``begin`` (n,) to just before each; -inf where there is none.

    Stretches follow each other: with ranks for values, raised by n from one stretch to the next, the maximum over all
    before is that of the stretch.
    """
    different, rank = np.unique(values, return_inverse=True)
    raised = rank + begin * len(values)
    best = np.concatenate([[-1], np.maximum.accumulate(raised)[:-1]])
    first = begin == np.arange(len(values))
    return np.where(first, -np.inf, different[np.where(first, 0, best - begin * len(values))])

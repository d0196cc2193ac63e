"""Predictions beside gold: the official metrics of every slice, and two sets of predictions on the same units."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepsieve.data.errors import DataError
from stepsieve.data.trajectory import Label, Reference, Trajectory
from stepsieve.eval import detection, metrics
from stepsieve.eval.detection import Detection
from stepsieve.eval.intervals import Interval, cluster_bootstrap, mcnemar, paired_bootstrap
from stepsieve.eval.metrics import Bools, Floats
from stepsieve.eval.results import DET, RET, Answer, Predictions


@dataclass(frozen=True)
class Items:
    """The units of one task that one set of predictions answers, with their gold; every list has n entries.

    Attributes:
        keys: what each unit is, for pairing two sets.
        runs: the trajectory of each.
        labels, answers: the gold and the prediction of each step (CLS, RET); empty for DET.
        triples: the predictions for each trajectory (DET); empty for CLS and RET.
        asked: how many units the data has. foreign: how many trajectories of the predictions it has not.
    """

    task: str
    name: str
    keys: list[Hashable]
    runs: list[Trajectory]
    labels: list[Label]
    answers: list[Answer]
    triples: list[Sequence[Detection] | None]
    asked: int
    foreign: int = 0

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: Iterable[int]) -> Items:
        """The units at these rows."""
        rows = list(rows)
        keep: dict[str, Any] = {
            name: [own[row] for row in rows] if (own := getattr(self, name)) else []
            for name in ("keys", "runs", "labels", "answers", "triples")
        }
        return replace(self, **keep)

    @property
    def groups(self) -> list[Hashable]:
        return [run.group for run in self.runs]

    def slices(self) -> dict[str, Bools]:
        """Masks (n,) by name, ``all`` first; a trajectory is in no slice by type or origin of a label."""
        return metrics.slices(
            domain=[run.domain for run in self.runs],
            subset=[run.subset for run in self.runs],
            agent=[run.agent for run in self.runs],
            n_messages=[len(run.messages) for run in self.runs],
            types=[label.type for label in self.labels] or None,
            synthetic=[label.synthetic for label in self.labels] or None,
        )

    def values(self) -> Floats:
        """(n,) the official score of each unit: 0 or 1 for a step, the mean P@K of a trajectory."""
        if self.task == DET:
            return detection.detection_scores(self.triples, self.gold)["avg_p@k"]
        return self.right().astype(np.float64)

    def right(self) -> Bools:
        """(n,) whether each step is right; for a trajectory whether its first prediction is."""
        if self.task == DET:
            return detection.detection_scores(self.triples, self.gold)["p@1"] > 0
        if self.task == RET:
            return metrics.retrieval_correct(self.labels, self.types, self.evidence)[0]
        return metrics.correct(
            metrics.type_indices(label.type for label in self.labels), metrics.type_indices(self.types)
        )

    @property
    def gold(self) -> list[tuple[Label, ...]]:
        return [run.labels or () for run in self.runs]

    @property
    def types(self) -> list[str | None]:
        return [answer.type for answer in self.answers]

    @property
    def evidence(self) -> list[Reference | None]:
        return [answer.evidence for answer in self.answers]

    def confidences(self) -> tuple[Floats, Bools] | None:
        """(m,) confidence and whether it was right, of the answers or of all triples; None where one is missing."""
        if self.task == DET:
            ranked = [(p, h) for p, h in zip(self.triples, self.gold, strict=True) if p]
            usable = [[detection.usable(d.confidence) for d in detection.rank(p)] for p, _ in ranked]
            levels = [d.confidence for p, _ in ranked for d in detection.rank(p) if detection.usable(d.confidence)]
            hits = [detection.detection_hits(p, gold)[use] for (p, gold), use in zip(ranked, usable, strict=True)]
            return (np.array(levels, dtype=np.float64), np.concatenate(hits)) if levels else None
        levels = [answer.confidence for answer in self.answers]
        if not levels or any(level is None for level in levels):
            return None
        return np.array(levels, dtype=np.float64), self.right()

    def report(self, seed: int, full: bool) -> dict[str, Interval]:
        """The task's metrics over all units; with ``full`` also those by type and of the confidences."""
        if self.task == DET:
            found = detection.detection_report(self.triples, self.gold, self.groups, seed=seed)
            return {name: value for name, value in found.items() if full or not name.endswith("/positives")}
        if self.task == RET:
            return metrics.retrieval_report(self.labels, self.types, self.evidence, self.groups, seed=seed)
        if not full:
            return {"accuracy": cluster_bootstrap(self.right(), self.groups, seed)}
        gold = metrics.type_indices(label.type for label in self.labels)
        answered = metrics.type_indices(self.types)
        known = self.confidences()
        return metrics.classification_report(gold, answered, self.groups, known[0] if known else None, seed=seed)


def match(predictions: Predictions, corpus: Sequence[Trajectory]) -> Items:
    """Predictions beside the gold of the units that they answer; trajectories that the data has not are counted.

    Raises:
        DataError: an answer for a step that has no label, or more answers than labels, or no unit in common.
    """
    runs = {run.id: run for run in corpus}
    answered = set(predictions.trajectories) | {trajectory for trajectory, _ in predictions.steps}
    foreign = len(answered - runs.keys())
    if predictions.task == DET:
        own = [run for run in corpus if run.id in predictions.trajectories]
        triples = [predictions.trajectories[run.id] for run in own]
        items = Items(DET, predictions.name, [run.id for run in own], own, [], [], triples, len(corpus), foreign)
    else:
        items = _match_steps(predictions, corpus, foreign)
    if not len(items):
        raise DataError(
            f"expected predictions for the data, found none among {len(answered)} trajectories", file=predictions.file
        )
    return items


def _match_steps(predictions: Predictions, corpus: Sequence[Trajectory], foreign: int) -> Items:
    asked = sum(len(run.labels or ()) for run in corpus)
    items = Items(predictions.task, predictions.name, [], [], [], [], [], asked, foreign)
    runs = {run.id: run for run in corpus}
    for (trajectory, step), answers in predictions.steps.items():
        if trajectory not in runs:
            continue
        labels = [label for label in runs[trajectory].labels or () if label.step == step]
        if len(answers) > len(labels):
            raise DataError(
                f"expected {len(labels) or 'no'} answer{'s' * (len(labels) != 1)} for step {list(step)}, which has "
                f"{len(labels)} label{'s' * (len(labels) != 1)}, found {len(answers)}",
                file=predictions.file,
                trajectory=trajectory,
                field="redundant_step_idx",
            )
        for number, (label, answer) in enumerate(zip(labels, answers, strict=False)):
            items.keys.append((trajectory, step, number))
            items.runs.append(runs[trajectory])
            items.labels.append(label)
            items.answers.append(answer)
    return items


# --- scores ----------------------------------------------------------------------------------------------------------

Scores = dict[str, dict[str, float | int | None]]
"""Slice -> metric -> value, ``all`` first; ``<metric>.low`` and ``<metric>.high`` are its 95% interval."""


def score(items: Items, seed: int = 0) -> Scores:
    """The official metrics of every slice."""
    return {
        name: _plain(items.take(np.flatnonzero(mask)).report(seed, full=name == "all"), int(mask.sum()))
        for name, mask in items.slices().items()
    }


def compare(first: Items, second: Items, seed: int = 0) -> Scores:
    """What the first scores more than the second, on the units that both answer, for every slice.

    ``difference`` is that of the official score, with a paired bootstrap over tasks. ``only_first``, ``only_second``
    and ``p_value`` are McNemar's test of the units right, in StepDet of the trajectories whose first prediction is.

    Raises:
        DataError: no unit in common.
    """
    place = {key: row for row, key in enumerate(second.keys)}
    common = [row for row, key in enumerate(first.keys) if key in place]
    if not common:
        raise DataError(f"expected units that both {first.name} and {second.name} answer, found none")
    a, b = first.take(common), second.take(place[first.keys[row]] for row in common)
    scores: Scores = {}
    for name, mask in a.slices().items():
        rows = np.flatnonzero(mask)
        values = a.values()[rows], b.values()[rows]
        difference = paired_bootstrap(*values, [a.groups[row] for row in rows], seed)
        test = mcnemar(a.right()[rows], b.right()[rows])
        scores[name] = {
            "first": float(values[0].mean()),
            "second": float(values[1].mean()),
            **_plain({"difference": difference}, len(rows)),
            "only_first": test.only_a,
            "only_second": test.only_b,
            "p_value": test.p_value,
        }
    return scores


def _plain(found: Mapping[str, Interval], n: int) -> dict[str, float | int | None]:
    values: dict[str, float | int | None] = {}
    for name, interval in found.items():
        record = interval.to_dict()
        values[name], values[f"{name}.low"], values[f"{name}.high"] = record["value"], record["low"], record["high"]
    return {**values, "n": n}

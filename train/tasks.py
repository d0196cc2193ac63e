"""The three tasks of RedundancyBench, and the registry of all.

The loop knows nothing of a task beyond what ``Task`` says. Those of ``judge`` and ``stop`` are in quality.py and
outlook.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepsieve.data.trajectory import Label, Reference, Trajectory
from stepsieve.eval import detection, metrics
from stepsieve.eval.intervals import bootstrap_sums, cluster_bootstrap, share_of
from stepsieve.models.decode import Prediction
from stepsieve.models.judge import CLS, DET, RET, Judge
from stepsieve.models.questions import ChoiceAnswer
from stepsieve.train.outlook import STOP_TASK
from stepsieve.train.quality import JUDGE_TASK
from stepsieve.train.task import Answered, Floats, Report, Task

# --- StepCls: step and evidence are given, the type is asked ---------------------------------------------------------


def ask_types(judge: Judge, runs: Sequence[Trajectory], known: Sequence[Trajectory]) -> Sequence[list[Any]]:
    return judge.classify_batch(runs, [[(label.step, label.evidence) for label in run.labels or ()] for run in runs])


def report_types(answered: Sequence[Answered], seed: int) -> Report:
    """StepCls in full over all labels, and the accuracy of each slice as ``accuracy[slice]``."""
    labels, runs, folds = _by_label(answered)
    answers: list[ChoiceAnswer] = [answer for item in answered for answer in item.answers]
    gold = metrics.type_indices(label.type for label in labels)
    predicted = metrics.type_indices(answer.choice for answer in answers)
    confidence = np.array([answer.confidence for answer in answers])
    groups = [run.group for run in runs]
    report = metrics.classification_report(gold, predicted, groups, confidence, folds, seed)
    return report | _sliced("accuracy", gold == predicted, labels, runs, folds, seed)


def type_points(answered: Sequence[Answered]) -> tuple[Floats, list[Hashable], list[Hashable]]:
    """1 for each label whose type was found, else 0."""
    labels, runs, folds = _by_label(answered)
    chosen = [answer.choice for item in answered for answer in item.answers]
    right = [label.type == choice for label, choice in zip(labels, chosen, strict=True)]
    return np.array(right, dtype=np.float64), [run.group for run in runs], folds


# --- EvidenceRet: the step is given, evidence and type are asked -----------------------------------------------------


def ask_evidence(judge: Judge, runs: Sequence[Trajectory], known: Sequence[Trajectory]) -> Sequence[list[Any]]:
    return judge.retrieve_batch(runs, [[label.step for label in run.labels or ()] for run in runs])


def report_evidence(answered: Sequence[Answered], seed: int) -> Report:
    """EvidenceRet over all labels; joint and evidence accuracy of each slice, ECE of the joint confidence."""
    labels, runs, folds = _by_label(answered)
    answers: list[Prediction] = [answer for item in answered for answer in item.answers]
    types, evidence = [answer.type for answer in answers], [answer.evidence for answer in answers]
    groups = [run.group for run in runs]
    joint, found = metrics.retrieval_correct(labels, types, evidence)
    confidence = np.array([answer.confidence for answer in answers])
    report = metrics.retrieval_report(labels, types, evidence, groups, folds, seed)
    report["ece"] = metrics.calibration_error(confidence, joint, groups, seed)
    report |= _sliced("joint_accuracy", joint, labels, runs, folds, seed)
    return report | _sliced("evidence_accuracy", found, labels, runs, folds, seed)


def evidence_points(answered: Sequence[Answered]) -> tuple[Floats, list[Hashable], list[Hashable]]:
    """1 for each label whose type and evidence were found, else 0."""
    labels, runs, folds = _by_label(answered)
    answers: list[Prediction] = [answer for item in answered for answer in item.answers]
    joint, _ = metrics.retrieval_correct(labels, [a.type for a in answers], [a.evidence for a in answers])
    return joint.astype(np.float64), [run.group for run in runs], folds


# --- StepDet: nothing is given ---------------------------------------------------------------------------------------


def ask_steps(judge: Judge, runs: Sequence[Trajectory], known: Sequence[Trajectory]) -> Sequence[list[Any]]:
    return judge.detect_batch(runs, everything=True)


def report_steps(answered: Sequence[Answered], seed: int) -> Report:
    """StepDet (official), each slice of trajectories, and localisation over all assistant steps."""
    runs = [item.run for item in answered]
    folds: list[Hashable] = [item.fold for item in answered]
    groups = [run.group for run in runs]
    gold = [run.labels or () for run in runs]
    returned = [[as_triple(p) for p in item.cutoff.returned(item.answers)] for item in answered]
    report = detection.detection_report(returned, gold, groups, folds, seed)
    average = detection.detection_scores(returned, gold)["avg_p@k"]
    for name, mask in _slices(runs).items():
        if name != "all":
            rows = np.flatnonzero(mask)
            own = [groups[row] for row in rows]
            report[f"avg_p@k[{name}]"] = cluster_bootstrap(average[rows], own, seed, folds=[folds[r] for r in rows])

    steps = [(item, prediction) for item in answered for prediction in item.answers]
    truth = [prediction.step in {label.step for label in item.run.labels or ()} for item, prediction in steps]
    scores = np.array([prediction.redundant for _, prediction in steps])
    step_groups: list[Hashable] = [item.run.group for item, _ in steps]
    step_folds: list[Hashable] = [item.fold for item, _ in steps]
    report |= detection.localisation_report(np.array(truth), scores, step_groups, step_folds, seed)
    hits = np.concatenate(
        [detection.detection_hits([as_triple(p) for p in item.answers], item.run.labels or ()) for item in answered]
    )
    confidence = np.array([prediction.confidence for _, prediction in steps])
    report["ece"] = metrics.calibration_error(confidence, hits, step_groups, seed)
    return report | _pruning(answered, seed)


def step_points(answered: Sequence[Answered]) -> tuple[Floats, list[Hashable], list[Hashable]]:
    """Avg P@K of each trajectory."""
    gold = [item.run.labels or () for item in answered]
    returned = [[as_triple(p) for p in item.cutoff.returned(item.answers)] for item in answered]
    average: Floats = detection.detection_scores(returned, gold)["avg_p@k"]
    return average, [item.run.group for item in answered], [item.fold for item in answered]


def _pruning(answered: Sequence[Answered], seed: int) -> Report:
    """What deleting every step above the safe cutoff would do: precision, recall, share of the agent's text saved."""
    rows = []
    for item in answered:
        pruned = {p.step for p in item.cutoff.prunable(item.answers)}
        gold = {label.step for label in item.run.labels or ()}
        saved = sum(_text_of(item.run, step) for step in pruned)
        whole = sum(len(m.content or "") for m in item.run.messages if m.role in ("assistant", "tool"))
        rows.append([len(pruned & gold), len(pruned), len(pruned & gold), len(gold), saved, whole])
    parts, groups = np.array(rows, dtype=np.float64), [item.run.group for item in answered]
    folds = [item.fold for item in answered]

    names = {"prune_precision": 0, "prune_recall": 2, "prune_saved": 4}
    return {
        name: bootstrap_sums(parts, share_of(column, column + 1), groups, seed, folds=folds)
        for name, column in names.items()
    }


def _text_of(run: Trajectory, step: Reference) -> int:
    """Characters that would go with a step: its result, and its message where it holds no other call."""
    call, result = step
    message = run.messages[call]
    own = len(message.content or "") if len(message.tool_calls) == 1 else 0
    return own + len(run.messages[result].content or "")


def as_triple(prediction: Prediction) -> detection.Detection:
    """A prediction as the official metric takes it."""
    return detection.Detection(prediction.step, prediction.type, prediction.evidence, prediction.confidence)


# --- shared ----------------------------------------------------------------------------------------------------------


def _by_label(answered: Sequence[Answered]) -> tuple[list[Label], list[Trajectory], list[Hashable]]:
    """Each label with its trajectory and the fold that tested it."""
    labels = [label for item in answered for label in item.run.labels or ()]
    runs = [item.run for item in answered for _ in item.run.labels or ()]
    folds: list[Hashable] = [item.fold for item in answered for _ in item.run.labels or ()]
    return labels, runs, folds


def _slices(runs: Sequence[Trajectory], labels: Sequence[Label] | None = None) -> dict[str, npt.NDArray[np.bool_]]:
    return metrics.slices(
        domain=[run.domain for run in runs],
        subset=[run.subset for run in runs],
        agent=[run.agent for run in runs],
        n_messages=[len(run.messages) for run in runs],
        types=None if labels is None else [label.type for label in labels],
        synthetic=None if labels is None else [label.synthetic for label in labels],
    )


def _sliced(
    metric: str,
    right: npt.NDArray[np.bool_],
    labels: Sequence[Label],
    runs: Sequence[Trajectory],
    folds: Sequence[Hashable],
    seed: int,
) -> Report:
    report = {}
    for name, mask in _slices(runs, labels).items():
        if name != "all":
            rows = np.flatnonzero(mask).tolist()
            groups = [runs[row].group for row in rows]
            report[f"{metric}[{name}]"] = cluster_bootstrap(right[rows], groups, seed, folds=[folds[r] for r in rows])
    return report


TASKS: dict[str, Task] = {
    CLS: Task(CLS, (CLS,), ask_types, report_types, "accuracy", type_points),
    RET: Task(RET, (CLS, RET), ask_evidence, report_evidence, "joint_accuracy", evidence_points),
    DET: Task(DET, (CLS, RET, DET), ask_steps, report_steps, "avg_p@k", step_points),
    JUDGE_TASK.name: JUDGE_TASK,
    STOP_TASK.name: STOP_TASK,
}

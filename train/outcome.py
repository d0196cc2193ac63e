"""Held-out predictions: of RedundancyBench's tasks in its runner's format, for eval/bench.py to set beside others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from stepsieve.data.trajectory import Label, Trajectory
from stepsieve.eval.results import RUNNER_TASKS
from stepsieve.eval.stop import to_record
from stepsieve.models.checkpoint import write_atomic
from stepsieve.models.judge import CLS, DET
from stepsieve.train.outlook import STOP, watched
from stepsieve.train.quality import JUDGE, level_records
from stepsieve.train.task import Answered


def write_predictions(path: Path, task: str, answered: Sequence[Answered]) -> None:
    """One result per label, or per trajectory for StepDet; for ``judge`` and ``stop`` one per trajectory, as
    eval/process.py and eval/stop.py read them."""
    if task == JUDGE:
        results = [level_records(item) for item in answered]
    elif task == STOP:
        results = [to_record(run) for run in watched(answered)]
    else:
        results = _of_runner(task, answered)
    content = {"metadata": {"task": RUNNER_TASKS.get(task, task), "model": "stepsieve"}, "results": results}
    write_atomic(path, orjson.dumps(content, option=orjson.OPT_INDENT_2))


def _of_runner(task: str, answered: Sequence[Answered]) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for item in answered:
        if task == DET:
            own = [prediction.to_dict() for prediction in item.cutoff.returned(item.answers)]
            results.append({**_identity(item.run), "predictions": own})
            continue
        for label, answer in zip(item.run.labels or (), item.answers, strict=True):
            row = {**_identity(item.run, label), "confidence": round(answer.confidence, 6)}
            if task == CLS:
                results.append({**row, "predicted_type": answer.choice})
            else:
                results.append({**row, "predicted_type": answer.type, "predicted_evidence_idx": list(answer.evidence)})
    return results


def _identity(run: Trajectory, label: Label | None = None) -> dict[str, Any]:
    if label is None:
        return {"identity": run.id, "trajectory_id": run.id}
    unit = f"{run.id}:{label.step[0]}-{label.step[1]}"
    return {"identity": unit, "trajectory_id": run.id, "redundant_step_idx": list(label.step)}

"""Outcomes as a result file of the benchmark's own runner, which eval/results.py reads and eval/bench.py scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepsieve.data.redundancybench import AUTOMATED, HUMAN
from stepsieve.data.trajectory import Label, Reference
from stepsieve.eval.detection import Detection
from stepsieve.eval.llm.cost import Price, total
from stepsieve.eval.llm.judge import Outcome
from stepsieve.eval.llm.prompts import Unit
from stepsieve.eval.results import CLS, RUNNER_TASKS, Answer

_DATASETS = {"human": HUMAN, "automated": AUTOMATED}


def result_file(
    task: str, model: str, given: str, units: Sequence[Unit], outcomes: Sequence[Outcome], price: Price | None
) -> dict[str, Any]:
    """The content of the file: one record per unit, in order, each with what it took beside what the format has.

    Args:
        given: which of ``prompts.INPUTS`` was asked. price: of the model; None where it isn't known.
    """
    metadata = {
        "task": RUNNER_TASKS[task],
        "model": model,
        "input": given,
        "requested_units": len(units),
        "usage": total(outcome.usage for outcome in outcomes).to_dict(price),
    }
    results = [
        {**_record(unit, outcome), "error": outcome.error, "usage": outcome.usage.to_dict(price)}
        for unit, outcome in zip(units, outcomes, strict=True)
    ]
    return {"metadata": metadata, "results": results}


def _record(unit: Unit, outcome: Outcome) -> dict[str, Any]:
    run = unit.run
    identity = {
        "identity": unit.identity,
        "trajectory_id": run.id,
        "domain": run.domain,
        "dataset_id": _DATASETS.get(run.subset, run.subset),
        "task_id": run.task_id,
    }
    if unit.label is None:
        triples = outcome.answer if isinstance(outcome.answer, list) else []
        gold = [triple(label.step, label.type, label.evidence) for label in run.labels or ()]
        return {**identity, "gold": gold, "predictions": [detected(own) for own in triples]}
    answer = outcome.answer if isinstance(outcome.answer, Answer) else Answer(None)
    record = {**identity, **_gold(unit.label), "predicted_type": answer.type}
    if unit.task != CLS:
        record["predicted_evidence_idx"] = None if answer.evidence is None else list(answer.evidence)
    return record if answer.confidence is None else {**record, "confidence": round(answer.confidence, 6)}


def _gold(label: Label) -> dict[str, Any]:
    return triple(label.step, label.type, label.evidence)


def triple(step: Reference | None, kind: str | None, evidence: Reference | None) -> dict[str, Any]:
    """The released form of a triple."""
    return {
        "redundant_step_idx": None if step is None else list(step),
        "redundant_step_type": kind,
        "evidence_step_idx": None if evidence is None else list(evidence),
    }


def detected(found: Detection) -> dict[str, Any]:
    """The released form of a predicted triple."""
    return {**triple(found.step, found.type, found.evidence), "confidence": found.confidence}

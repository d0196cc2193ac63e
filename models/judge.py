"""The public object: a checkpoint that answers about trajectories.

judge = Judge.from_pretrained()                     # the shipped checkpoint
judge.detect(trajectory)                            # ranked triples (step, type, evidence, confidence)
judge.retrieve(trajectory, step=(4, 5))             # type and evidence of a redundant step
judge.classify(trajectory, (4, 5), evidence=(2, 3)) # type of a redundant step, given its evidence
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepsieve.data.errors import DataError
from stepsieve.data.features import (
    BATCH,
    PAIR_FEATURES,
    RETRIEVAL_FEATURES,
    STEP_FEATURES,
    pair_features,
    retrieval_features,
    schema_hash,
    step_features,
)
from stepsieve.data.features.candidates import Candidates, candidates
from stepsieve.data.features.index import Index
from stepsieve.data.trajectory import REDUNDANCY_TYPES, Reference, Trajectory
from stepsieve.models import checkpoint
from stepsieve.models.calibrate import Platt, log_probabilities
from stepsieve.models.checkpoint import Head
from stepsieve.models.decode import Cutoff, Prediction, best_pairs
from stepsieve.models.questions import ChoiceAnswer

CLS, RET, DET = "cls", "ret", "det"

SCHEMAS: Mapping[str, str] = {
    CLS: schema_hash(PAIR_FEATURES),
    RET: schema_hash(RETRIEVAL_FEATURES),
    DET: schema_hash(STEP_FEATURES),
}
"""Head -> hash of the features that this version computes for it."""

WORTH_ASKING = 0.02
"""Below this probability of being redundant a step is not asked for its evidence: nine in ten of the work saved."""

PRETRAINED = Path(__file__).parent / "pretrained"


class Judge:
    """Heads of a checkpoint at work. Needs ``cls`` to classify, ``ret`` too to retrieve, ``det`` too to detect."""

    def __init__(self, heads: Mapping[str, Head]) -> None:
        self.heads = dict(heads)
        settings = self.heads[DET].settings if DET in self.heads else {}
        self.cutoff = Cutoff(**settings.get("cutoff", {}))
        self.triple = Platt(**settings.get("triple", {}))

    @classmethod
    def from_pretrained(cls, path: Path | str | None = None) -> Judge:
        """The judge of a checkpoint directory; without one the checkpoint that is shipped.

        Raises:
            DataError: no checkpoint there, a file that was changed, or heads of another version.
        """
        folder = PRETRAINED if path is None else Path(path)
        return cls(
            {task: checkpoint.load_head(folder, task, SCHEMAS) for task in checkpoint.head_names(folder, SCHEMAS)}
        )

    # --- one trajectory ----------------------------------------------------------------------------------------------

    def classify(self, trajectory: Trajectory, step: Reference, evidence: Reference) -> ChoiceAnswer:
        """The type of a redundant step, given its evidence (StepCls).

        Raises:
            KeyError: the step is not an answered interaction of the trajectory.
        """
        return self.classify_batch([trajectory], [[(step, evidence)]])[0][0]

    def retrieve(self, trajectory: Trajectory, step: Reference) -> Prediction:
        """The evidence and type of a redundant step (EvidenceRet).

        Raises:
            KeyError: the step is not an answered interaction of the trajectory.
        """
        return self.retrieve_batch([trajectory], [[step]])[0][0]

    def detect(self, trajectory: Trajectory) -> list[Prediction]:
        """The redundant steps of a trajectory, the most confident first (StepDet)."""
        return self.detect_batch([trajectory])[0]

    # --- many --------------------------------------------------------------------------------------------------------

    def classify_batch(
        self, trajectories: Sequence[Trajectory], pairs: Sequence[Sequence[tuple[Reference, Reference]]]
    ) -> list[list[ChoiceAnswer]]:
        """For each trajectory the answers for its (step, evidence) pairs."""
        head = self._head(CLS)
        matrices = pair_features(trajectories, pairs)
        table = head.predict(np.vstack(matrices)) if matrices else np.zeros((0, len(REDUNDANCY_TYPES)))
        answers = iter([ChoiceAnswer(REDUNDANCY_TYPES, row) for row in table])
        return [[next(answers) for _ in own] for own in pairs]

    def retrieve_batch(
        self, trajectories: Sequence[Trajectory], steps: Sequence[Sequence[Reference]]
    ) -> list[list[Prediction]]:
        """For each trajectory the evidence and type of its redundant steps."""
        found: list[list[Prediction]] = []
        for start in range(0, len(trajectories), BATCH):
            asked = steps[start : start + BATCH]
            index = Index(trajectories[start : start + BATCH])
            rows = np.array([index.row(run, step) for run, own in enumerate(asked) for step in own], dtype=np.int64)
            answers = self._evidence(index, rows, step_features(index), np.ones(len(rows)))
            found += [[next(answers) for _ in own] for own in asked]
        return found

    def detect_batch(self, trajectories: Sequence[Trajectory], everything: bool = False) -> list[list[Prediction]]:
        """For each trajectory its redundant steps, the most confident first.

        Args:
            everything: return every assistant step with its confidence instead of those that clear the cutoff.
        """
        found: list[list[Prediction]] = []
        for start in range(0, len(trajectories), BATCH):
            found += self._detect(trajectories[start : start + BATCH], everything)
        return found

    # --- how ---------------------------------------------------------------------------------------------------------

    def _head(self, task: str) -> Head:
        if task not in self.heads:
            raise DataError(f"expected a checkpoint with the head {task!r}, found {sorted(self.heads)}")
        return self.heads[task]

    def _detect(self, trajectories: Sequence[Trajectory], everything: bool) -> list[list[Prediction]]:
        index = Index(trajectories)
        steps = step_features(index)
        rows = np.flatnonzero(index.calls.assistant)
        redundant = self._head(DET).predict(steps[rows])[:, 1]
        run = index.calls.run[rows]
        if not everything:
            asked = (redundant >= WORTH_ASKING) | _best_of_run(run, redundant)
            rows, redundant, run = rows[asked], redundant[asked], run[asked]
        answers = list(self._evidence(index, rows, steps, redundant))
        confidence = self.triple.transform(np.array([answer.confidence for answer in answers]))
        found: list[list[Prediction]] = [[] for _ in trajectories]
        for place in np.argsort(-confidence, kind="stable"):
            found[run[place]].append(replace(answers[place], confidence=float(confidence[place])))
        return found if everything else [self.cutoff.returned(own) for own in found]

    def _evidence(
        self,
        index: Index,
        rows: npt.NDArray[np.int64],
        steps: npt.NDArray[np.float32],
        redundant: npt.NDArray[np.float64],
    ) -> Iterator[Prediction]:
        """The most probable type and evidence of each step; its confidence is multiplied by ``redundant``."""
        if not len(rows):
            return
        ret, cls = self._head(RET), self._head(CLS)
        asked = candidates(index, rows)
        features = retrieval_features(index, asked, steps)
        evidence = evidence_probabilities(ret, features, asked)
        leading = np.flatnonzero(_leaders(asked.question, evidence))
        types = cls.predict(features[leading, : len(PAIR_FEATURES)])
        found, kind, joint = best_pairs(asked.question[leading], evidence[leading], types)
        for row, place, number, probability, prior in zip(rows, leading[found], kind, joint, redundant, strict=True):
            step = (int(index.calls.call[row]), int(index.calls.result[row]))
            yield Prediction(
                step,
                REDUNDANCY_TYPES[number],
                asked.reference(index, int(place)),
                float(probability * prior),
                float(prior),
            )


def evidence_probabilities(head: Head, features: npt.NDArray[np.float32], asked: Candidates) -> npt.NDArray[np.float64]:
    """(n,) P(evidence | step) of each candidate: the scorer's odds, normalised over the candidates of each step."""
    logs = log_probabilities(head.scorer.predict_proba(features))
    offsets = np.append(np.flatnonzero(np.diff(asked.question, prepend=-1)), len(asked.question))
    return head.calibration.transform_grouped(logs[:, 1] - logs[:, 0], offsets)


def _leaders(question: npt.NDArray[np.int64], evidence: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """(n,) candidates that can still win: a type is at least 1/4 probable, so none below a quarter of the best can."""
    starts = np.flatnonzero(np.diff(question, prepend=-1))
    best = np.repeat(np.maximum.reduceat(evidence, starts), np.diff(np.append(starts, len(question))))
    return evidence >= best / len(REDUNDANCY_TYPES)


def _best_of_run(run: npt.NDArray[np.int64], value: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """(n,) marks the greatest value of each run, the first of equals; runs ascend."""
    order = np.lexsort((-np.arange(len(run)), value, run))
    marked = np.zeros(len(run), dtype=bool)
    marked[order[np.flatnonzero(np.diff(run[order], append=-1))]] = True
    return marked

"""The public object: a checkpoint that answers about trajectories.

judge = Judge.from_pretrained()                     # the shipped checkpoint
judge.detect(trajectory)                            # ranked triples (step, type, evidence, confidence)
judge.retrieve(trajectory, step=(4, 5))             # type and evidence of a redundant step
judge.classify(trajectory, (4, 5), evidence=(2, 3)) # type of a redundant step, given its evidence
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepsieve.data import references
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
from stepsieve.data.features.index import Bools, Floats, Index, Ints
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
"""Below this probability of being redundant a step is not asked for its evidence, which is most of the work."""

ROUNDING = 1e-9
"""More than a product and a logistic function of floats are ever off by."""

AT_ONCE = 512
"""Steps whose candidates are compared at once: what bounds the memory that a batch takes."""

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
        names = checkpoint.head_names(folder, SCHEMAS)
        heads = {task: checkpoint.load_head(folder, task, SCHEMAS) for task in names}
        try:
            return cls(heads)
        except (TypeError, ValueError, AttributeError) as error:
            wrong = f"expected the settings of a detection head: {error}"
            raise DataError(wrong, file=folder / "manifest.json") from None

    # --- one trajectory ----------------------------------------------------------------------------------------------

    def classify(self, trajectory: Trajectory, step: Reference, evidence: Reference) -> ChoiceAnswer:
        """The type of a redundant step, given its evidence (StepCls).

        Raises:
            DataError: the step is no answered assistant call of the trajectory, the evidence names nothing in it, or
                the checkpoint has not the head.
        """
        return self.classify_batch([trajectory], [[(step, evidence)]])[0][0]

    def retrieve(self, trajectory: Trajectory, step: Reference) -> Prediction:
        """The evidence and type of a redundant step (EvidenceRet).

        Raises:
            DataError: the step is no answered assistant call of the trajectory, or the checkpoint has not the heads.
        """
        return self.retrieve_batch([trajectory], [[step]])[0][0]

    def detect(self, trajectory: Trajectory) -> list[Prediction]:
        """The redundant steps of a trajectory, the most confident first (StepDet).

        Raises:
            DataError: the checkpoint has not the heads.
        """
        return self.detect_batch([trajectory])[0]

    # --- many --------------------------------------------------------------------------------------------------------

    def classify_batch(
        self, trajectories: Sequence[Trajectory], pairs: Sequence[Sequence[tuple[Reference, Reference]]]
    ) -> list[list[ChoiceAnswer]]:
        """For each trajectory the answers for its (step, evidence) pairs."""
        head = self._head(CLS)
        asked = [
            [(_step(run, step), _evidence(run, evidence)) for step, evidence in own]
            for run, own in zip(trajectories, pairs, strict=True)
        ]
        matrices = pair_features(trajectories, asked)
        table = head.predict(np.vstack(matrices)) if matrices else np.zeros((0, len(REDUNDANCY_TYPES)))
        answers = iter([ChoiceAnswer(REDUNDANCY_TYPES, row) for row in table])
        return [[next(answers) for _ in own] for own in asked]

    def retrieve_batch(
        self, trajectories: Sequence[Trajectory], steps: Sequence[Sequence[Reference]]
    ) -> list[list[Prediction]]:
        """For each trajectory the evidence and type of its redundant steps."""
        self._need(RET, CLS)
        asked = [[_step(run, step) for step in own] for run, own in zip(trajectories, steps, strict=True)]
        found: list[list[Prediction]] = []
        for start in range(0, len(trajectories), BATCH):
            some = asked[start : start + BATCH]
            index = Index(trajectories[start : start + BATCH])
            rows = np.array([index.row(run, step) for run, own in enumerate(some) for step in own], dtype=np.int64)
            answers = self._answers(index, rows, step_features(index), np.ones(len(rows)))
            found += [[next(answers) for _ in own] for own in some]
        return found

    def detect_batch(self, trajectories: Sequence[Trajectory], everything: bool = False) -> list[list[Prediction]]:
        """For each trajectory its redundant steps, the most confident first.

        Args:
            everything: return every assistant step with its confidence instead of those that clear the cutoff.
        """
        self._need(DET, RET, CLS)
        found: list[list[Prediction]] = []
        for start in range(0, len(trajectories), BATCH):
            found += self._detect(trajectories[start : start + BATCH], everything)
        return found

    # --- how ---------------------------------------------------------------------------------------------------------

    def _head(self, task: str) -> Head:
        if task not in self.heads:
            raise DataError(f"expected a checkpoint with the head {task!r}, found {sorted(self.heads)}")
        return self.heads[task]

    def _need(self, *tasks: str) -> None:
        for task in tasks:
            self._head(task)

    def _detect(self, trajectories: Sequence[Trajectory], everything: bool) -> list[list[Prediction]]:
        index = Index(trajectories)
        steps = step_features(index)
        rows = np.flatnonzero(index.calls.assistant)
        redundant = self._head(DET).predict(steps[rows])[:, 1]
        run = index.calls.run[rows]
        confidence = np.full(len(rows), -1.0)
        answers: dict[int, Prediction] = {}

        def ask(places: Ints) -> None:
            own = list(self._answers(index, rows[places], steps, redundant[places]))
            confidence[places] = self.triple.transform(np.array([answer.confidence for answer in own]))
            answers.update(zip(places.tolist(), own, strict=True))

        if everything:
            ask(np.arange(len(rows)))
        elif self.cutoff.prune:
            ask(np.flatnonzero(redundant >= (math.inf if self.cutoff.safe is None else self.cutoff.safe)))
        else:
            # No triple is surer than its step is redundant: what can't clear the threshold is left out, and asked only
            # where it could still be the best of its run, of which less is demanded.
            at_most = self.triple.transform(redundant) + ROUNDING
            least = min(self.cutoff.first, self.cutoff.threshold)
            worth = (redundant >= WORTH_ASKING) & (at_most >= least)
            first = worth & (at_most >= self.cutoff.threshold) | _best_of_run(run, redundant) & (at_most >= least)
            ask(np.flatnonzero(first))
            best = np.full(len(trajectories), -1.0)
            np.maximum.at(best, run, confidence)
            ask(np.flatnonzero(worth & ~first & (at_most >= best[run])))
        found: list[list[Prediction]] = [[] for _ in trajectories]
        for place in np.argsort(-confidence, kind="stable").tolist():
            if place in answers:
                found[run[place]].append(replace(answers[place], confidence=float(confidence[place])))
        return found if everything else [self.cutoff.returned(own) for own in found]

    def _answers(
        self, index: Index, rows: Ints, steps: npt.NDArray[np.float32], redundant: Floats
    ) -> Iterator[Prediction]:
        """The most probable type and evidence of each step; its confidence is multiplied by ``redundant``."""
        for start in range(0, len(rows), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            yield from self._some_answers(index, rows[some], steps, redundant[some])

    def _some_answers(
        self, index: Index, rows: Ints, steps: npt.NDArray[np.float32], redundant: Floats
    ) -> Iterator[Prediction]:
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


def _step(trajectory: Trajectory, step: Reference) -> Reference:
    """The step as a reference. Raises DataError unless it is an answered assistant call of the trajectory."""
    reference = references.parse(step)
    references.validate_step(reference, trajectory)
    return reference


def _evidence(trajectory: Trajectory, evidence: Reference) -> Reference:
    """The evidence as a reference. Raises DataError unless it names something in the trajectory."""
    reference = references.parse(evidence)
    references.validate_evidence(reference, trajectory)
    return reference


def evidence_probabilities(head: Head, features: npt.NDArray[np.float32], asked: Candidates) -> Floats:
    """(n,) P(evidence | step) of each candidate: the scorer's odds, normalised over the candidates of each step."""
    logs = log_probabilities(head.scorer.predict_proba(features))
    offsets = np.append(np.flatnonzero(np.diff(asked.question, prepend=-1)), len(asked.question))
    return head.calibration.transform_grouped(logs[:, 1] - logs[:, 0], offsets)


def _leaders(question: Ints, evidence: Floats) -> Bools:
    """(n,) candidates that can still win: a type is at least 1/4 probable, so none below a quarter of the best can."""
    starts = np.flatnonzero(np.diff(question, prepend=-1))
    best = np.repeat(np.maximum.reduceat(evidence, starts), np.diff(np.append(starts, len(question))))
    return evidence >= best / len(REDUNDANCY_TYPES)


def _best_of_run(run: Ints, value: Floats) -> Bools:
    """(n,) marks the greatest value of each run, the first of equals; runs ascend."""
    order = np.lexsort((-np.arange(len(run)), value, run))
    marked = np.zeros(len(run), dtype=bool)
    marked[order[np.flatnonzero(np.diff(run[order], append=-1))]] = True
    return marked

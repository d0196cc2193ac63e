"""The public object: a checkpoint that answers about trajectories.

judge = Judge.from_pretrained()                     # the shipped checkpoint
judge.detect(trajectory)                            # ranked triples (step, type, evidence, confidence)
judge.retrieve(trajectory, step=(4, 5))             # type and evidence of a redundant step
judge.classify(trajectory, (4, 5), evidence=(2, 3)) # type of a redundant step, given its evidence
judge.stage(trajectory, range(2, 8))                # quality of a stage, by dimension
judge.stop(prefix)                                  # P(success) and P(failure) of a run that is still going
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepsieve.data import references
from stepsieve.data.errors import DataError
from stepsieve.data.features import (
    BATCH,
    PAIR_FEATURES,
    PROGRESS_FEATURES,
    RETRIEVAL_FEATURES,
    STEP_FEATURES,
    index_pairs,
    retrieval_features,
    schema_hash,
    step_features,
)
from stepsieve.data.features.candidates import Candidates, candidates
from stepsieve.data.features.index import Bools, Floats, Index, Ints
from stepsieve.data.quality import LEVELS
from stepsieve.data.trajectory import REDUNDANCY_TYPES, Reference, Trajectory
from stepsieve.data.windows import run_window
from stepsieve.models import checkpoint
from stepsieve.models.calibrate import Platt, log_probabilities
from stepsieve.models.checkpoint import Head
from stepsieve.models.decode import Cutoff, Prediction, best_pairs
from stepsieve.models.fusion import score_columns
from stepsieve.models.outlook import FAILURE, SUCCESS, Bounds, Outlook, at_start, outlooks
from stepsieve.models.prompts import (
    Prompt,
    Reader,
    evidence_prompts,
    question_prompts,
    shortlist,
    step_prompts,
    type_prompts,
)
from stepsieve.models.questions import Answer, ChoiceAnswer, Noul, NoulAnswer, Question, Score, ScoreAnswer
from stepsieve.models.stages import QUALITY_FEATURES, Levels, StageScore, levels, stage_score

CLS, RET, DET = "cls", "ret", "det"

SCHEMAS: Mapping[str, str] = {
    CLS: schema_hash(PAIR_FEATURES),
    RET: schema_hash(RETRIEVAL_FEATURES),
    DET: schema_hash(STEP_FEATURES),
    **{name: schema_hash(features) for name, features in QUALITY_FEATURES.items()},
    **dict.fromkeys((SUCCESS, FAILURE), schema_hash(PROGRESS_FEATURES)),
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
    """Heads of a checkpoint at work.

    Needs ``cls`` to classify, ``ret`` too to retrieve, ``det`` too to detect; a head of a dimension to judge a stage;
    ``success`` and ``failure`` to stop.
    """

    def __init__(self, heads: Mapping[str, Head]) -> None:
        self.heads = dict(heads)
        settings = self.heads[DET].settings if DET in self.heads else {}
        self.cutoff = Cutoff(**settings.get("cutoff", {}))
        self.triple = Platt(**settings.get("triple", {}))
        self.pair = Platt(**(self.heads[RET].settings if RET in self.heads else {}).get("pair", {}))
        self.bounds = Bounds(**(self.heads[SUCCESS].settings if SUCCESS in self.heads else {}).get("bounds", {}))

    @classmethod
    def from_pretrained(cls, path: Path | str | None = None, device: str = "auto") -> Judge:
        """The judge of a checkpoint directory; without one the checkpoint that is shipped.

        Args:
            device: cpu, cuda, mps or auto: where its encoder computes, if it has one; trees stay on the CPU.

        Raises:
            DataError: no checkpoint there, a file that was changed, heads of another version, or no such device.
        """
        folder = PRETRAINED if path is None else Path(path)
        heads = checkpoint.load_heads(folder, SCHEMAS, device)
        try:
            return cls(heads)
        except (TypeError, ValueError, AttributeError) as error:
            wrong = f"expected the settings of a head: {error}"
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

    def stage(self, trajectory: Trajectory, messages: range | None = None) -> dict[str, StageScore]:
        """The quality of a stage in each dimension that the checkpoint has a head for; {} of one without an action.

        Args:
            trajectory: the run as far as it is known. messages: the stage's message indices; None: all of the run.

        Raises:
            DataError: the checkpoint has no such head.
        """
        of_stage: dict[str, dict[int, ScoreAnswer]] = {}
        for message, own in self.levels_batch([trajectory])[0].items():
            for name, answer in own.items() if messages is None or message in messages else ():
                of_stage.setdefault(name, {})[message] = answer
        return {name: stage_score(name, answers) for name, answers in of_stage.items()}

    def stop(self, prefix: Trajectory, known: Sequence[Trajectory] = ()) -> Outlook:
        """P(success) and P(failure) of a run that is still going; ``bounds`` says when that is enough to stop it.

        Args:
            prefix: the run so far. known: other runs of its task; what became of those with an outcome is used.

        Raises:
            DataError: the checkpoint has not the heads.
        """
        found = list(self.outlook_batch([prefix], [known])[0].values())
        return found[-1] if found else at_start(self.heads)

    def decide(self, state: Trajectory | str, questions: Sequence[Question]) -> list[Answer]:
        """Answers to any typed questions about a state, in one pass of the encoder.

        What was never trained gets an answer too; its probabilities are those of an untrained question, and nothing
        here has calibrated them. Steps are named by their message indices, as in ``[4, 5]``.

        Args:
            state: a run, of which a window is read, or a text, cut at its end.

        Raises:
            DataError: the checkpoint has no encoder.
        """
        encoder = next((head.encoder for head in self.heads.values() if head.encoder is not None), None)
        if encoder is None:
            raise DataError("expected a checkpoint with an encoder (backend encoder or fusion) for questions in words")
        if isinstance(state, Trajectory):
            window = run_window(Index([state]), encoder.count, encoder.window)
        else:
            window = ((state, encoder.window),)
        logits = encoder.logits(question_prompts(window, questions))
        return [_answer(question, own) for question, own in zip(questions, logits, strict=True)]

    # --- many --------------------------------------------------------------------------------------------------------

    def classify_batch(
        self, trajectories: Sequence[Trajectory], pairs: Sequence[Sequence[tuple[Reference, Reference]]]
    ) -> list[list[ChoiceAnswer]]:
        """For each trajectory the answers for its (step, evidence) pairs."""
        self._need(CLS)
        asked = [
            [(_step(run, step), _evidence(run, evidence)) for step, evidence in own]
            for run, own in zip(trajectories, pairs, strict=True)
        ]
        found: list[list[ChoiceAnswer]] = []
        for start in range(0, len(trajectories), BATCH):
            some = asked[start : start + BATCH]
            index = Index(trajectories[start : start + BATCH])
            flat = [(run, *pair) for run, own in enumerate(some) for pair in own]
            rows, features = index_pairs(index, flat)
            evidence = [reference for _, _, reference in flat]
            table = self._types(index, rows, evidence.copy, features)
            answers = iter([ChoiceAnswer(REDUNDANCY_TYPES, row) for row in table])
            found += [[next(answers) for _ in own] for own in some]
        return found

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
            answers = list(self._answers(index, rows, step_features(index), np.ones(len(rows))))
            confidence = self.pair.transform(np.array([answer.confidence for answer in answers])).tolist()
            sure = (replace(answer, confidence=own) for answer, own in zip(answers, confidence, strict=True))
            found += [[next(sure) for _ in own] for own in some]
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

    def levels_batch(self, trajectories: Sequence[Trajectory]) -> list[Levels]:
        """For each trajectory, of every message of its assistant the probability of each level, by dimension."""
        heads = {name: self.heads[name] for name in LEVELS if name in self.heads}
        if not heads:
            raise DataError(f"expected a checkpoint with a head of {', '.join(LEVELS)}, found {sorted(self.heads)}")
        return levels(heads, trajectories)

    def outlook_batch(
        self, trajectories: Sequence[Trajectory], known: Sequence[Sequence[Trajectory]]
    ) -> list[dict[int, Outlook]]:
        """For each trajectory and message of its assistant the outlook once that had closed.

        Args:
            known: for each trajectory other runs of its task.
        """
        self._need(SUCCESS, FAILURE)
        return outlooks(self.heads, trajectories, known)

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
        head = self._head(DET)
        own = steps[rows]
        redundant = head.predict(_beside(head, own, lambda to: step_prompts(index, rows, own, to)))[:, 1]
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

    def _types(
        self, index: Index, rows: Ints, evidence: Callable[[], list[Reference]], features: npt.NDArray[np.float32]
    ) -> Floats:
        """(n, 4) the probability of each type for (step, evidence) pairs with these ``PAIR_FEATURES``."""
        head = self._head(CLS)
        return head.predict(_beside(head, features, lambda to: type_prompts(index, rows, evidence(), features, to)))

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
        ret = self._head(RET)
        asked = candidates(index, rows)
        features = retrieval_features(index, asked, steps)
        table = features
        if ret.encoder is not None:
            offered = shortlist(index, rows, asked)
            table = _beside(
                ret, features, lambda to: evidence_prompts(index, rows, asked, offered, features, to), offered
            )
        evidence = evidence_probabilities(ret, table, asked)
        leading = np.flatnonzero(_leaders(asked.question, evidence))
        pairs = features[leading, : len(PAIR_FEATURES)]
        # References are for reading alone: the trees look at features, and this is their hot path.
        types = self._types(index, asked.row[leading], lambda: [asked.reference(index, int(k)) for k in leading], pairs)
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


def _answer(question: Question, logits: npt.NDArray[np.float32]) -> Answer:
    odds = np.exp(logits.astype(np.float64) - logits.max())
    probabilities = tuple((odds / odds.sum()).tolist())
    if isinstance(question, Noul):
        return NoulAnswer(probabilities[1])
    if isinstance(question, Score):
        return ScoreAnswer(question.levels, probabilities)
    return ChoiceAnswer(question.options, probabilities)


def _beside(
    head: Head,
    features: npt.NDArray[np.float32],
    prompts: Callable[[Reader], list[Prompt]],
    offered: Bools | None = None,
) -> npt.NDArray[np.float32]:
    """What a head takes: the features (n, d) and, for one that reads text, its encoder's scores beside them.

    Args:
        prompts: writes the questions for a reader.
        offered: (n,) where the rows are candidates, those that are options in the prompts.
    """
    encoder = head.encoder
    if encoder is None:
        return features
    names = len(head.features) - features.shape[1]
    scores = np.full((len(features), names), np.nan, dtype=np.float32)
    logits = encoder.logits(prompts(Reader(encoder.count, encoder.window)))
    if logits:
        scores[slice(None) if offered is None else offered] = score_columns(logits, offered is not None)
    return np.hstack([features, scores])


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

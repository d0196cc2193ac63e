"""The public object: a checkpoint that answers about trajectories.

judge = Judge.from_pretrained()                     # the shipped checkpoint
judge.detect(trajectory)                            # ranked triples (step, type, evidence, confidence)
judge.retrieve(trajectory, step=(4, 5))             # type and evidence of a redundant step
judge.classify(trajectory, (4, 5), evidence=(2, 3)) # type of a redundant step, given its evidence
judge.evidence(trajectory, (4, 5), [(2, 3), (-1,)]) # which of these is the evidence of a redundant step
judge.stage(trajectory, range(2, 8))                # quality of a stage, by dimension
judge.stop(prefix)                                  # P(success) and P(failure) of a run that is still going
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

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
from stepsieve.models.calibrate import Platt
from stepsieve.models.checkpoint import Head
from stepsieve.models.decode import Cutoff, Prediction, best_of_run, best_pairs, evidence_probabilities, leaders
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
from stepsieve.models.questions import Answer, ChoiceAnswer, Question, ScoreAnswer, answer_of
from stepsieve.models.stages import QUALITY_FEATURES, Levels, StageScore, levels, stage_score

if TYPE_CHECKING:
    from stepsieve.models.encoder import Encoder

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

    @property
    def encoder(self) -> Encoder | None:
        """What reads text; None where no head does."""
        return next((head.encoder for head in self.heads.values() if head.encoder is not None), None)

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

    def evidence(self, trajectory: Trajectory, step: Reference, candidates: Sequence[Reference]) -> ChoiceAnswer:
        """Which of some references is the evidence of a redundant step, given that one of them is.

        Args:
            candidates: at least two different references.

        Returns:
            an answer whose options are the candidates in their order, as text: ``"[2, 3]"``.

        Raises:
            DataError: the step is no answered assistant call of the trajectory, a candidate is none of what could be
                its evidence (as a joint reference that shares little with it), or the checkpoint has not the head.
        """
        return self.evidence_batch([trajectory], [[(step, candidates)]])[0][0]

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
        encoder = self.encoder
        if encoder is None:
            raise DataError("expected a checkpoint with an encoder (backend encoder or fusion) for questions in words")
        if isinstance(state, Trajectory):
            window = run_window(Index([state]), encoder.count, encoder.window)
        else:
            window = ((state, encoder.window),)
        logits = encoder.logits(question_prompts(window, questions))
        return [answer_of(question, own) for question, own in zip(questions, logits, strict=True)]

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

    def evidence_batch(
        self, trajectories: Sequence[Trajectory], asked: Sequence[Sequence[tuple[Reference, Sequence[Reference]]]]
    ) -> list[list[ChoiceAnswer]]:
        """For each trajectory which of some references is the evidence, for its (step, references) pairs."""
        self._need(RET)
        checked = [
            [(_step(run, step), _rivals(run, among)) for step, among in own]
            for run, own in zip(trajectories, asked, strict=True)
        ]
        found: list[list[ChoiceAnswer]] = []
        for start in range(0, len(trajectories), BATCH):
            some = checked[start : start + BATCH]
            index = Index(trajectories[start : start + BATCH])
            steps = step_features(index)
            flat = [(run, *pair) for run, own in enumerate(some) for pair in own]
            parts = (flat[first : first + AT_ONCE] for first in range(0, len(flat), AT_ONCE))
            answers = (answer for part in parts for answer in self._among(index, part, steps))
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
            first = worth & (at_most >= self.cutoff.threshold) | best_of_run(run, redundant) & (at_most >= least)
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
        asked, features, table = self._candidates(index, rows, steps)
        evidence = evidence_probabilities(self._head(RET), table, asked.question)
        leading = np.flatnonzero(leaders(asked.question, evidence))
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

    def _among(
        self, index: Index, asked: Sequence[tuple[int, Reference, Sequence[Reference]]], steps: npt.NDArray[np.float32]
    ) -> Iterator[ChoiceAnswer]:
        """Which of its references is the evidence, for each (run, step, references)."""
        rows = np.array([index.row(run, step) for run, step, _ in asked], dtype=np.int64)
        found, _, table = self._candidates(index, rows, steps)
        places: list[int] = []
        for number, (run, step, among) in enumerate(asked):
            known = found.places(index, number)
            for reference in among:
                if references.normalise(reference) not in known:
                    wrong = f"expected what could be the evidence of step {list(step)}, found {list(reference)}"
                    raise DataError(wrong, trajectory=index.trajectories[run].id)
                places.append(known[references.normalise(reference)])
        # All candidates are rivals in the features; the odds are then shared out among those that were asked for.
        question = np.repeat(np.arange(len(asked)), [len(among) for *_, among in asked])
        probabilities = iter(evidence_probabilities(self._head(RET), table[places], question).tolist())
        for *_, among in asked:
            yield ChoiceAnswer(tuple(str(list(own)) for own in among), tuple(next(probabilities) for _ in among))

    def _candidates(
        self, index: Index, rows: Ints, steps: npt.NDArray[np.float32]
    ) -> tuple[Candidates, npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """All that could be the evidence of steps, their features, and what the head takes of them (n, d)."""
        asked, head = candidates(index, rows), self._head(RET)
        features = retrieval_features(index, asked, steps)
        if head.encoder is None:
            return asked, features, features
        offered = shortlist(index, rows, asked)

        def prompts(to: Reader) -> list[Prompt]:
            return evidence_prompts(index, rows, asked, offered, features, to)

        return asked, features, _beside(head, features, prompts, offered)


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


def _rivals(trajectory: Trajectory, candidates: Sequence[Reference]) -> list[Reference]:
    """References to choose among. Raises DataError unless they are two or more different ones of the trajectory."""
    found = [_evidence(trajectory, own) for own in candidates]
    different = len(set(map(references.normalise, found)))
    if different < max(2, len(found)):
        wrong = f"expected at least two references, all different, found {different} of {len(found)}"
        raise DataError(wrong, trajectory=trajectory.id)
    return found

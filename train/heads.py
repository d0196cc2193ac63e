"""What each head learns: trajectories become examples, examples become rows of features with labels.

A head answers one kind of question: ``cls`` a choice over the four types for a step and its evidence, ``ret`` a choice
over candidate references for a step, ``det`` a noul for each assistant step. Those of ``judge`` and ``stop`` are in
quality.py and outlook.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepsieve.data.features import (
    PAIR_FEATURES,
    RETRIEVAL_FEATURES,
    STEP_FEATURES,
    index_pairs,
    retrieval_features,
    step_features,
)
from stepsieve.data.features.candidates import candidates
from stepsieve.data.references import normalise
from stepsieve.data.splits import AUTOMATED
from stepsieve.data.trajectory import REDUNDANCY_TYPES, Trajectory
from stepsieve.models.judge import CLS, DET, RET
from stepsieve.models.prompts import Reader, evidence_prompts, shortlist, step_prompts, type_prompts
from stepsieve.models.questions import Choice, Noul
from stepsieve.train.examples import Example, HeadSpec, batches
from stepsieve.train.outlook import OUTLOOK_HEADS
from stepsieve.train.quality import QUALITY_HEADS

# --- cls -------------------------------------------------------------------------------------------------------------

TYPE_QUESTION = Choice("Why was this step redundant, given this evidence?", REDUNDANCY_TYPES)


CONSENSUS = 0.1
"""Weight of a type that only models agreed on. Cross-validation: they are uneven where Incorrect and Exploratory meet,
and a scorer that takes them at their word is worse, on such labels too. Evidence and detection don't mind them."""


def type_examples(trajectories: Sequence[Trajectory], reader: Reader | None = None) -> list[list[Example]]:
    """One choice over the four types for each label of each trajectory."""
    found: list[list[Example]] = []
    for runs, index in batches(trajectories):
        asked = [(number, label) for number, run in enumerate(runs) for label in run.labels or ()]
        rows, features = index_pairs(index, [(number, label.step, label.evidence) for number, label in asked])
        evidence = [label.evidence for _, label in asked]
        prompts = reader and type_prompts(index, rows, evidence, features, reader)
        own: list[list[Example]] = [[] for _ in runs]
        for place, (number, label) in enumerate(asked):
            run, kind = runs[number], REDUNDANCY_TYPES.index(label.type)
            weight = CONSENSUS if run.subset == AUTOMATED else 1.0
            prompt = prompts[place] if prompts else None
            row = features[place : place + 1]
            own[number].append(Example(TYPE_QUESTION, row, kind, run.group, weight, label.step, prompt))
        found += own
    return found


# --- ret -------------------------------------------------------------------------------------------------------------

EVIDENCE_QUESTION = "What shows that this step was redundant?"


def evidence_examples(trajectories: Sequence[Trajectory], reader: Reader | None = None) -> list[list[Example]]:
    """One choice over all candidate references for each label of each trajectory."""
    found: list[list[Example]] = []
    for runs, index in batches(trajectories):
        asked = [(number, label) for number, run in enumerate(runs) for label in run.labels or ()]
        rows = np.array([index.row(number, label.step) for number, label in asked], dtype=np.int64)
        among = candidates(index, rows)
        features = retrieval_features(index, among, step_features(index))
        shown = shortlist(index, rows, among) if reader else np.ones(len(features), dtype=bool)
        prompts = reader and evidence_prompts(index, rows, among, shown, features, reader)
        bounds = np.searchsorted(among.question, np.arange(len(rows) + 1)).tolist()
        own: list[list[Example]] = [[] for _ in runs]
        for place, (number, label) in enumerate(asked):
            low, high = bounds[place], bounds[place + 1]
            options = [among.reference(index, candidate) for candidate in range(low, high)]
            gold = normalise(label.evidence)
            right = options.index(gold) if gold in options else -1
            question = Choice(EVIDENCE_QUESTION, tuple(str(list(option)) for option in options))
            prompt = prompts[place] if prompts else None
            matrix, group = features[low:high], runs[number].group
            own[number].append(Example(question, matrix, right, group, 1.0, label.step, prompt, shown[low:high]))
        found += own
    return found


# --- det -------------------------------------------------------------------------------------------------------------

STEP_QUESTION = Noul("Was this step redundant?")


def step_examples(trajectories: Sequence[Trajectory], reader: Reader | None = None) -> list[list[Example]]:
    """One noul for each answered assistant interaction of each annotated trajectory."""
    found: list[list[Example]] = []
    for runs, index in batches(trajectories):
        calls = index.calls
        annotated = np.array([run.labels is not None for run in runs])
        rows = np.flatnonzero(calls.assistant & annotated[calls.run])
        features = step_features(index)[rows]
        prompts = reader and step_prompts(index, rows, features, reader)
        redundant = [{label.step for label in run.labels or ()} for run in runs]
        own: list[list[Example]] = [[] for _ in runs]
        for place, row in enumerate(rows.tolist()):
            number, step = int(calls.run[row]), (int(calls.call[row]), int(calls.result[row]))
            label = int(step in redundant[number])
            prompt = prompts[place] if prompts else None
            matrix, group = features[place : place + 1], runs[number].group
            own[number].append(Example(STEP_QUESTION, matrix, label, group, 1.0, step, prompt))
        found += own
    return found


HEADS: dict[str, HeadSpec] = {
    CLS: HeadSpec(CLS, REDUNDANCY_TYPES, PAIR_FEATURES, False, 800, 3.0, type_examples),
    RET: HeadSpec(RET, ("other", "evidence"), RETRIEVAL_FEATURES, True, 150, 0.3, evidence_examples),
    DET: HeadSpec(DET, ("necessary", "redundant"), STEP_FEATURES, False, 400, 0.3, step_examples),
    **QUALITY_HEADS,
    **OUTLOOK_HEADS,
}

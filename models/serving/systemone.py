"""System One questions as work for the judge: :func:`ask` maps each onto an answer, or says that it can't.

A question names its task, step and evidence in ``instructions``, as an object

    {"task": "step_cls", "redundant_step_idx": [4, 5], "evidence_step_idx": [2, 3]}     choice: of which type is it?
    {"task": "evidence_ret", "redundant_step_idx": [4, 5]}       choice among references: which one is the evidence?
    {"task": "step_det", "redundant_step_idx": [4, 5]}                                  noul: is it redundant?

or in words with bracketed indices: "Of which type is the redundant step [4, 5], given the evidence [2, 3]?". Words are
taken for one of these only where they can mean one thing. Other words are read by the checkpoint's encoder, if it has
one: it answers any question, but nothing has calibrated its probabilities.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import fsum
from typing import Any

import orjson

from stepsieve.data.errors import DataError
from stepsieve.data.ingest import from_object
from stepsieve.data.jsonio import loads
from stepsieve.data.references import normalise
from stepsieve.data.trajectory import REDUNDANCY_TYPES, Trajectory
from stepsieve.models.judge import CLS, DET, RET
from stepsieve.models.questions import Answer, ChoiceAnswer, NoulAnswer
from stepsieve.models.serving import wire
from stepsieve.models.serving.refusals import CannotAnswer, Place, invalid
from stepsieve.models.serving.wire import BoxQuestion, ChoiceQuestion, NoulQuestion, Question
from stepsieve.models.serving.words import MAX_OPTIONS, as_asked, worded
from stepsieve.models.serving.work import (
    Found,
    Job,
    Model,
    Work,
    check_size,
    evidence_of,
    step_of,
    tokens,
)

Render = Callable[[Found], Answer]
"""Makes the answer to one question of what was found."""

STEP, EVIDENCE, TASK = "redundant_step_idx", "evidence_step_idx", "task"
TASKS = {
    "step_cls": CLS,
    "stepcls": CLS,
    "cls": CLS,
    "classify": CLS,
    "evidence_ret": RET,
    "evidenceret": RET,
    "ret": RET,
    "retrieve": RET,
    "step_det": DET,
    "stepdet": DET,
    "det": DET,
    "detect": DET,
}
"""What a task may be called."""

_STEMS = {kind: kind.split()[0][:8].lower() for kind in REDUNDANCY_TYPES}
"""Type -> the stem that names it: duplicat, abnormal, incorrec, explorat."""
_INDICES = re.compile(r"\[\s*-?\d+(?:\s*,\s*-?\d+)*\s*\]")
_MENTION = re.compile(r"evidence(?:[\s_]+steps?)?|step", re.IGNORECASE)
_NEGATION = re.compile(r"\b(?:not|non|no|never|neither|nor)\b|n't\b|n’t\b", re.IGNORECASE)
_REDUNDANT = re.compile(r"\bredundant\b", re.IGNORECASE)
_OTHERWISE = re.compile(
    r"\b(?:not|non|no|never|neither|nor|or|unless|without|necessary|needed|useful|other|rather|instead|than)\b|n't\b|n’t\b",
    re.IGNORECASE,
)
"""Words that can turn a question around, or make it another one."""


def read(body: object, size: int, model: Model) -> Job:
    """The work of a request of so many bytes, and what makes the response of what was found.

    Raises:
        Refused: a body that is none, a state that is no trajectory, or a question that can't be answered (422).
    """
    request = wire.read_request(body)
    can = can_answer(model)
    if request.assets:
        raise CannotAnswer("images can't be read", at=("assets",), can_answer=can)
    work = Work(state_trajectory(request.state, can))
    renders = {name: ask(question, work, model, ("questions", name)) for name, question in request.questions.items()}

    def reply(found: Found) -> dict[str, Any]:
        answers = {name: wire.dress(request.questions[name], render(found)) for name, render in renders.items()}
        return wire.response(model.name, answers, tokens(size), tokens(len(orjson.dumps(answers))))

    return Job(work, reply)


def can_answer(model: Model) -> list[str]:
    """What can be asked of the checkpoint, a phrase each."""
    phrases = []
    if model.can(CLS):
        types = ", ".join(REDUNDANCY_TYPES)
        fields = '{"task": "step_cls", "redundant_step_idx": [call, result], "evidence_step_idx": [call, result]}'
        phrases.append(f"choice among redundancy types ({types}) with the instructions {fields}")
    if model.can(RET):
        fields = '{"task": "evidence_ret", "redundant_step_idx": [call, result]}'
        phrases.append(f"choice among references such as [2, 3], [7] or [-1] with the instructions {fields}")
    if model.can(DET):
        fields = '{"task": "step_det", "redundant_step_idx": [call, result]}'
        phrases.append(f"noul whether a step is redundant, with the instructions {fields}")
    if model.judge.encoder is not None:
        phrases.append("any noul, choice or score in words, with probabilities that nothing has calibrated")
    return phrases


def state_trajectory(state: wire.Content, can: Sequence[str]) -> Trajectory:
    """The trajectory of a state: any form that ``data.ingest`` reads, as JSON or its text, or under ``trajectory``.

    Raises:
        Refused: plain text, and whatever else is no trajectory (422).
    """
    value: object = state
    policy: object = None
    at: Place = ("state",)
    if isinstance(value, dict) and "trajectory" in value:
        policy = value.get("policy")
        value, at = value["trajectory"], ("state", "trajectory")
    if isinstance(value, str):
        if value.lstrip()[:1] not in ("{", "["):
            raise CannotAnswer("plain text can't be judged, only the recorded run of an agent", at=at, can_answer=can)
        try:
            value = loads(value.encode())
        except DataError as error:
            raise invalid(str(error), at) from None
    if policy is not None and not isinstance(policy, str):
        raise invalid("expected text", ("state", "policy"))
    try:
        trajectory = from_object(value)
    except DataError as error:
        raise CannotAnswer(f"expected a recorded trajectory: {error}", at=at, can_answer=can) from None
    check_size(trajectory, at)
    return trajectory if policy is None else replace(trajectory, policy=policy)


def ask(question: Question, work: Work, model: Model, at: Place) -> Render:
    """Add to the work what the question needs; the answer is made of what is found then.

    Raises:
        Refused: it can't be answered, or names no step of the trajectory (422).
    """
    try:
        return _ask_head(question, work, model, at)
    except CannotAnswer:
        if model.judge.encoder is None or not isinstance(question.instructions, str):
            raise
    return _ask_encoder(question, question.instructions, work, at, can_answer(model))


def _ask_head(question: Question, work: Work, model: Model, at: Place) -> Render:
    """A question that a head was trained on."""
    can = can_answer(model)
    if question.instructions is None:
        raise CannotAnswer("the question has no instructions", at=at, can_answer=can)
    named, place = _named(question.instructions, question, can, (*at, "instructions"))
    if named[TASK] == CLS and isinstance(question, ChoiceQuestion):
        model.need(CLS, "a choice among types", can, at)
        return _ask_type(named, question, work, at, place, can)
    if named[TASK] == RET and isinstance(question, ChoiceQuestion):
        model.need(RET, "a choice among references", can, at)
        return _ask_evidence(named, question, work, at, place)
    if named[TASK] == DET and isinstance(question, NoulQuestion):
        model.need(DET, "whether a step is redundant", can, at)
        return _ask_redundant(named, question, work, at, place, can)
    raise CannotAnswer(f"a {question.type} question can't be answered for this task", at=at, can_answer=can)


def _ask_type(
    named: Mapping[str, object], question: ChoiceQuestion, work: Work, at: Place, place: Place, can: Sequence[str]
) -> Render:
    types = _types_of(question.criteria, (*at, "criteria"), can)
    step = step_of(named.get(STEP), work.trajectory, (*place, STEP))
    evidence = evidence_of(named.get(EVIDENCE), work.trajectory, (*place, EVIDENCE))
    number = len(work.pairs)
    work.pairs.append((step, evidence))
    return lambda found: _renamed(found.types[number], types)


def _ask_evidence(named: Mapping[str, object], question: ChoiceQuestion, work: Work, at: Place, place: Place) -> Render:
    step = step_of(named.get(STEP), work.trajectory, (*place, STEP))
    options = tuple(question.criteria)
    among = [evidence_of(option, work.trajectory, (*at, "criteria", option)) for option in options]
    if len(set(map(normalise, among))) < max(2, len(among)):
        raise invalid("expected at least two references, all different", (*at, "criteria"))
    number = len(work.among)
    work.among.append((step, among))
    return lambda found: replace(found.among[number], options=options)


def _ask_encoder(question: Question, words: str, work: Work, at: Place, can: Sequence[str]) -> Render:
    """A question in anyone's words."""
    try:
        asked = worded(question, words)
    except ValueError:
        message = f"expected a noul, or 2 to {MAX_OPTIONS} different options, described in words or not at all"
        raise CannotAnswer(message, at=(*at, "criteria"), can_answer=can) from None
    number = len(work.questions)
    work.questions.append(asked)
    return lambda found: as_asked(question, found.answers[number])


def _ask_redundant(
    named: Mapping[str, object], question: NoulQuestion, work: Work, at: Place, place: Place, can: Sequence[str]
) -> Render:
    criteria = question.criteria
    yes, no = (None, None) if criteria is None else (criteria.true, criteria.false)
    if (yes is not None and not _affirms(yes)) or (no is not None and _affirms(no)):
        message = 'expected criteria by which "true" means that the step is redundant'
        raise CannotAnswer(message, at=(*at, "criteria"), can_answer=can)
    step = step_of(named.get(STEP), work.trajectory, (*place, STEP))
    work.every = True
    return partial(_redundant, step=step)


def _redundant(found: Found, step: tuple[int, ...]) -> NoulAnswer:
    return NoulAnswer(next(own.redundant for own in found.every if own.step == step))


def _renamed(answer: ChoiceAnswer, types: Mapping[str, str]) -> ChoiceAnswer:
    """The answer under the names of the options; over fewer of them, given that it is one of these."""
    probability = dict(zip(answer.options, answer.probabilities, strict=True))
    own = [probability[kind] for kind in types.values()]
    if len(own) < len(answer.options):
        total = fsum(own)
        own = [value / total for value in own] if total > 0 else [1 / len(own)] * len(own)
    return ChoiceAnswer(tuple(types), tuple(own))


# --- what a question says --------------------------------------------------------------------------------------------


def _named(
    instructions: wire.Content, question: Question, can: Sequence[str], at: Place
) -> tuple[Mapping[str, object], Place]:
    """Task, step and evidence that the instructions name, and the place to report for them."""
    if isinstance(instructions, dict):
        task = instructions.get(TASK)
        known = TASKS.get(task.lower()) if isinstance(task, str) else None
        if known is None:
            raise CannotAnswer("expected a task that this checkpoint knows", at=(*at, TASK), can_answer=can)
        unknown = sorted(str(key)[:60] for key in instructions if key not in (TASK, STEP, EVIDENCE))
        if unknown:
            raise CannotAnswer(f"expected no {unknown[0]!r} beside the task", at=at, can_answer=can)
        return {**instructions, TASK: known}, at
    if isinstance(instructions, list) or isinstance(question, BoxQuestion):
        raise CannotAnswer("expected instructions as an object or in words", at=at, can_answer=can)
    return _in_words(instructions, question, can, at), at


def _in_words(words: str, question: Question, can: Sequence[str], at: Place) -> Mapping[str, object]:
    """Task, step and evidence of a question in words: brackets are what they follow, a "step" or "evidence"."""
    named: dict[str, object] = {}
    end = 0
    for found in _INDICES.finditer(words):
        mentions = _MENTION.findall(words[end : found.start()])
        end = found.end()
        default = EVIDENCE if STEP in named else STEP
        name = default if not mentions else EVIDENCE if mentions[-1][0] in "eE" else STEP
        if name in named:
            raise CannotAnswer("expected one step, and at most one evidence", at=at, can_answer=can)
        named[name] = found.group()
    if isinstance(question, ChoiceQuestion) and named.keys() == {STEP, EVIDENCE}:
        return {**named, TASK: CLS}
    if isinstance(question, NoulQuestion) and named.keys() == {STEP} and _affirms(words):
        return {**named, TASK: DET}
    message = "expected words that name the step, and the evidence of a choice, by bracketed message indices"
    raise CannotAnswer(f"{message}, and ask nothing else", at=at, can_answer=can)


def _affirms(content: wire.Content) -> bool:
    """Whether words say "redundant", and nothing that could turn or narrow it."""
    if not isinstance(content, str) or not _REDUNDANT.search(content):
        return False
    return not _OTHERWISE.search(content) and not _types_in(content)


def _types_of(criteria: Mapping[str, wire.Content | None], at: Place, can: Sequence[str]) -> dict[str, str]:
    """Option -> the type that it is: the one that its name holds, or else its description."""
    types: dict[str, str] = {}
    for option, description in criteria.items():
        if isinstance(description, dict):
            description = description.get("type")
        own = _types_in(option) or _type_described(description)
        if len(own) != 1:
            message = f"expected an option that names one redundancy type, found {option[:60]!r}"
            raise CannotAnswer(message, at=at, can_answer=can)
        if own[0] in types.values():
            raise CannotAnswer(f"expected one option for {own[0]}, found two", at=at, can_answer=can)
        types[option] = own[0]
    if len(types) < 2:
        raise CannotAnswer("expected at least two options", at=at, can_answer=can)
    return types


def _type_described(description: object) -> list[str]:
    """The type that a description opens with, or the ones that it names anywhere."""
    if not isinstance(description, str):
        return []
    opening = description.lstrip().lower()
    return [kind for kind, stem in _STEMS.items() if opening.startswith(stem)] or _types_in(description)


def _types_in(text: str) -> list[str]:
    """The types that a text names; all of them, which is to say none, where one is negated."""
    lowered = text.lower()
    places = {kind: lowered.find(stem) for kind, stem in _STEMS.items() if stem in lowered}
    if places and _NEGATION.search(lowered[: max(places.values())]):
        return list(_STEMS)
    return list(places)

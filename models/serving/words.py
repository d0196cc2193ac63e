"""Questions in anyone's words: what the encoder is asked, and its answer as the client has to read it."""

from __future__ import annotations

from dataclasses import replace

from stepsieve.models.questions import Answer, Choice, ChoiceAnswer, Noul, Question, ScoreAnswer
from stepsieve.models.serving import wire
from stepsieve.models.serving.wire import ChoiceQuestion, NoulCriteria, NoulQuestion, ScoreQuestion

MAX_OPTIONS = 32
"""Limit on the options of one question: they are read together, which takes memory by the square of their length."""


def worded(question: wire.Question, words: str) -> Question:
    """A question as the encoder is asked it: criteria stand in the question of a noul, and else in their option.

    Raises:
        ValueError: a box, criteria that are not text, or options that are not 2 to ``MAX_OPTIONS`` different ones.
    """
    if isinstance(question, NoulQuestion):
        criteria = question.criteria or NoulCriteria()
        said = [_described(name, own) for name, own in (("yes", criteria.true), ("no", criteria.false)) if own]
        return Noul(" ".join([words, *said]))
    if isinstance(question, ChoiceQuestion):
        options = [_described(name, said) for name, said in question.criteria.items()]
    elif isinstance(question, ScoreQuestion):
        options = [_described(str(level), said) for level, said in enumerate(question.criteria)]
    else:
        raise ValueError("expected a noul, a choice or a score")
    if len(options) > MAX_OPTIONS:
        raise ValueError(f"expected at most {MAX_OPTIONS} options, found {len(options)}")
    return Choice(words, tuple(options))


def as_asked(question: wire.Question, answer: Answer) -> Answer:
    """The answer by the client's names of the options, or the levels of its rubric."""
    if isinstance(answer, ChoiceAnswer) and isinstance(question, ScoreQuestion):
        return ScoreAnswer(tuple(range(len(question.criteria))), answer.probabilities)
    if isinstance(answer, ChoiceAnswer) and isinstance(question, ChoiceQuestion):
        return replace(answer, options=tuple(question.criteria))
    return answer


def _described(name: str, said: wire.Content | None) -> str:
    if said is not None and not isinstance(said, str):
        raise ValueError("expected criteria in words")
    return f"{name}: {said}" if said else name

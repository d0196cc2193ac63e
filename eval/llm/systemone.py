"""A System One model as a judge, through TypeSafe's own client: typed questions about a run instead of a prompt.

StepCls is a choice among the four types. EvidenceRet is that and a choice among the references that a run has. StepDet
is a noul for each step, then the two choices for those that are rather redundant than not. All questions about a run
share one request, which reads the run once. Their probabilities are the confidences.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from stepsieve.data import references
from stepsieve.data.errors import DataError, require
from stepsieve.data.jsonio import loads
from stepsieve.data.messages import write_message
from stepsieve.data.trajectory import REDUNDANCY_TYPES, Reference, Trajectory
from stepsieve.eval.detection import Detection
from stepsieve.eval.llm.cache import Cache
from stepsieve.eval.llm.cost import Usage, estimate
from stepsieve.eval.llm.endpoint import NO_KEY, Access, Kept, NoReply, Reply, refused, said
from stepsieve.eval.llm.judge import NOTHING, Outcome
from stepsieve.eval.llm.prompts import GUIDELINE, NO_POLICY, ORACLE_PLAN, Unit, plan, right
from stepsieve.eval.llm.transcript import transcript
from stepsieve.eval.results import CLS, DET, Answer
from stepsieve.models.prompts import TYPE_MEANINGS

Questions = dict[str, dict[str, Any]]

_LIKELY = 0.5
"""From this probability on a step is asked for its evidence and type."""


def state(run: Trajectory, given: str, exemplars: Sequence[Unit] = ()) -> dict[str, Any]:
    """What the questions are about: the run with its indices, and what the input adds to it (``prompts.INPUTS``)."""
    messages = [{**write_message(message), "index": index} for index, message in enumerate(run.messages)]
    about: dict[str, Any] = {"trajectory": {"messages": messages}, "guideline": GUIDELINE}
    if given != NO_POLICY and run.policy:
        about["policy"] = run.policy
    if given == ORACLE_PLAN:
        about["plan"] = plan(run)
    if exemplars:
        about["exemplars"] = [
            {"trajectory": transcript(unit.run), "about": _about(unit), "answer": right(unit)} for unit in exemplars
        ]
    return about


def _about(unit: Unit) -> list[Reference]:
    """What is given of the run beside itself."""
    return [] if unit.label is None else [unit.label.step, *([unit.label.evidence] if unit.task == CLS else ())]


def type_question(step: Reference, evidence: Reference | None = None) -> dict[str, Any]:
    """The choice among types; without its evidence the model has to find that by itself."""
    ending = f", given the evidence {list(evidence)}" if evidence else ""
    criteria = dict(zip(REDUNDANCY_TYPES, TYPE_MEANINGS, strict=True))
    instructions = f"Of which type is the redundant step {list(step)}{ending}?"
    return {"type": "choice", "instructions": instructions, "criteria": criteria}


def evidence_question(step: Reference, run: Trajectory) -> dict[str, Any]:
    """The choice among all single references of the run."""
    options = [str(list(reference)) for reference in references.candidates(run) if reference != step]
    instructions = f"What is the evidence that step {list(step)} is redundant?"
    return {"type": "choice", "instructions": instructions, "criteria": dict.fromkeys(options)}


def step_question(step: Reference) -> dict[str, Any]:
    """Whether a step is redundant."""
    return {"type": "noul", "instructions": f"Is step {list(step)} redundant?"}


class SystemOneJudge:
    """A judge that answers typed questions.

    Args:
        given: one of ``prompts.INPUTS``.
        exemplars: gives those of a run; empty but for few-shot.
    """

    def __init__(
        self, model: str, access: Access, replies: Cache, given: str, exemplars: Callable[[Trajectory], Sequence[Unit]]
    ) -> None:
        """Raises DataError: the client is not installed, or there is no key."""
        self._sdk = sdk = require("typesafe_sdk", "judges")
        self._refused = (sdk.TypeSafeAuthenticationError, sdk.TypeSafePermissionDeniedError, sdk.TypeSafeNotFoundError)
        self._model, self._given, self._exemplars = model, given, exemplars
        self._kept = Kept(replies)
        self._url = access.base_url
        key = access.key or (NO_KEY if access.base_url else None)
        retry = sdk.RetryPolicy(max_retries=access.retries, backoff_max=30.0, timeout=None)
        try:
            self._client = sdk.AsyncTypeSafeClient(
                api_key=key, base_url=access.base_url, model=model, retry=retry, timeout=access.timeout
            )
        except sdk.TypeSafeError:
            raise DataError("expected a key in $TYPESAFE_API_KEY, or --base-url URL, found neither") from None

    async def answer(self, unit: Unit) -> Outcome:
        """The outcome of a unit."""
        run, labels = unit.run, unit.run.labels or ()
        try:
            if unit.task == DET:
                return await self._detect(run)
            if unit.task == CLS:
                pairs = [(label.step, label.evidence) for label in labels]
                found = await self._ask(run, {_name(*pair): type_question(*pair) for pair in pairs})
                kind, sure = _choice(found, _name(unit.gold.step, unit.gold.evidence))
                return found.outcome(Answer(kind, None, sure))
            found = await self._ask(run, _pairs([label.step for label in labels], run))
            return found.outcome(Answer(*_pair(found, unit.gold.step)))
        except NoReply as error:
            return Outcome(None, f"no reply: {error}", replied=False)

    async def _detect(self, run: Trajectory) -> Outcome:
        steps = [step.reference for step in run.steps]
        if not steps:
            return Outcome([])
        first = await self._ask(run, {_name(step): step_question(step) for step in steps})
        redundant = {step: first.answers[_name(step)]["noul"] for step in steps}
        likely = [step for step in steps if redundant[step] >= _LIKELY]
        if not likely:
            return first.outcome([])
        second = await self._ask(run, _pairs(likely, run))
        triples = []
        for step in likely:
            kind, evidence, sure = _pair(second, step)
            triples.append(Detection(step, kind, evidence, sure * redundant[step]))
        return second.outcome(triples, first)

    async def close(self) -> None:
        """Wait for what is on its way, and close the connections."""
        await self._kept.settle()
        await self._client.aclose()

    async def _ask(self, run: Trajectory, questions: Questions) -> Found:
        body = {"state": state(run, self._given, self._exemplars(run)), "questions": questions}
        request = {"url": self._url, "model": self._model, **body}
        reply = await self._kept.reply(request, lambda: self._send(body))
        return Found(reply)

    async def _send(self, body: Mapping[str, Any]) -> Reply:
        started = time.monotonic()
        try:
            response = await self._client.system_one(**body)
        except self._refused as error:
            raise refused(error, self._url) from None
        except self._sdk.TypeSafeError as error:
            raise NoReply(said(error)) from None
        answers = {name: answer.model_dump(mode="json") for name, answer in response.answers.items()}
        for name, question in body["questions"].items():
            if not _fits(answers.get(name), question):
                raise NoReply(f"no answer that fits the question {name!r}")
        text = orjson.dumps(answers).decode()
        counts = response.usage.input_tokens, response.usage.output_tokens
        if counts[0] is None or counts[1] is None:
            sent = estimate(orjson.dumps(body).decode())
            return Reply(text, Usage(1, sent, 0, estimate(text), time.monotonic() - started, estimated=1))
        return Reply(text, Usage(1, counts[0], 0, counts[1], time.monotonic() - started))


class Found:
    """The answers to the questions of one request, by name."""

    def __init__(self, reply: Reply) -> None:
        self.answers: Mapping[str, Any] = loads(reply.text.encode())
        self._usage, self._kept = reply.usage, reply.kept

    def outcome(self, answer: Answer | list[Detection], before: Found | None = None) -> Outcome:
        """The outcome of a unit that this answered, after another request."""
        all_of_them = [found for found in (before, self) if found is not None]
        usage = sum((found._usage for found in all_of_them), NOTHING)
        spent = sum((found._usage for found in all_of_them if not found._kept), NOTHING)
        return Outcome(answer, None, usage, spent)


def _fits(answer: Any, question: Mapping[str, Any]) -> bool:
    """Whether it is an answer to such a question."""
    if answer is None or answer["type"] != question["type"]:
        return False
    return (
        answer["type"] != "choice" or answer["choice"] in question["criteria"].keys() & answer["probabilities"].keys()
    )


def _pairs(steps: Sequence[Reference], run: Trajectory) -> Questions:
    questions: Questions = {}
    for step in steps:
        questions[f"evidence {_name(step)}"] = evidence_question(step, run)
        questions[f"type {_name(step)}"] = type_question(step)
    return questions


def _name(*of: Reference) -> str:
    """The name of a question."""
    return " ".join("-".join(map(str, reference)) for reference in of)


def _pair(found: Found, step: Reference) -> tuple[str, Reference, float]:
    """Type and evidence of a step, and the product of their probabilities."""
    kind, sure = _choice(found, f"type {_name(step)}")
    evidence, surer = _choice(found, f"evidence {_name(step)}")
    return kind, references.parse(evidence), sure * surer


def _choice(found: Found, name: str) -> tuple[str, float]:
    answer = found.answers[name]
    return answer["choice"], answer["probabilities"][answer["choice"]]

"""A language model as a judge: units asked side by side, each with one chance to repair a reply that can't be used."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from stepsieve.data.errors import DataError
from stepsieve.eval.detection import Detection
from stepsieve.eval.llm import replies
from stepsieve.eval.llm.cost import Usage
from stepsieve.eval.llm.endpoint import Endpoint, Message, NoReply
from stepsieve.eval.llm.prompts import Unit
from stepsieve.eval.results import Answer

GIVE_UP = 10
"""After so many units in a row without a reply the endpoint counts as gone."""

NOTHING = Usage()
_T = TypeVar("_T")


@dataclass(frozen=True)
class Outcome:
    """What became of a unit.

    Attributes:
        answer: what was answered; None where nothing usable was, which counts as wrong.
        error: why not.
        usage: what it took when it was asked, in this run or an earlier one.
        spent: the part of it that this run took.
        replied: whether there was a reply at all; without one the unit is asked again next time.
    """

    answer: Answer | list[Detection] | None
    error: str | None = None
    usage: Usage = NOTHING
    spent: Usage = NOTHING
    replied: bool = True


class Judge(Protocol):
    """What answers units."""

    async def answer(self, unit: Unit) -> Outcome:
        """The outcome of a unit. Raises DataError where no unit could be answered (a wrong key, or address)."""

    async def close(self) -> None:
        """Close the connections."""


class ChatJudge:
    """A judge behind an OpenAI-compatible endpoint.

    Args:
        ask: gives the conversation that asks a unit.
    """

    def __init__(self, endpoint: Endpoint, ask: Callable[[Unit], list[Message]]) -> None:
        self._endpoint = endpoint
        self._ask = ask

    async def answer(self, unit: Unit) -> Outcome:
        """The outcome of a unit."""
        messages = self._ask(unit)
        usage = spent = NOTHING
        problem = ""
        for _ in range(2):
            try:
                reply = await self._endpoint.ask(messages)
            except NoReply as error:
                return Outcome(None, f"no reply: {error}", usage, spent, replied=False)
            usage += reply.usage
            spent += NOTHING if reply.kept else reply.usage
            try:
                return Outcome(replies.read(unit.task, reply.text, unit.run), None, usage, spent)
            except DataError as error:
                problem = str(error)
            messages = repair(messages, reply.text, problem)
        return Outcome(None, f"unusable reply: {problem}", usage, spent)

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()


def repair(messages: Sequence[Message], text: str, problem: str) -> list[Message]:
    """The conversation that asks once more after a reply that can't be used."""
    again = f"This reply can't be used: {problem}. Reply with the JSON that was asked for and nothing else."
    return [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": again}]


async def judged(
    judge: Judge, units: Sequence[Unit], at_once: int, advance: Callable[[], None] = lambda: None
) -> list[Outcome]:
    """The outcomes of units, in their order, so many of them asked at a time.

    Raises:
        DataError: the endpoint refuses every request, or answers none any more. What was answered is in the cache.
    """
    outcomes: dict[int, Outcome] = {}
    silent = 0

    async def one(number: int) -> None:
        nonlocal silent
        outcome = outcomes[number] = await judge.answer(units[number])
        silent = 0 if outcome.replied else silent + 1
        if silent == GIVE_UP:
            raise DataError(f"expected an endpoint that answers, found {GIVE_UP} units in a row with {outcome.error}")
        advance()

    try:
        await each(range(len(units)), one, at_once)
    finally:
        await judge.close()
    return [outcomes[number] for number in range(len(units))]


async def each(items: Iterable[_T], work: Callable[[_T], Awaitable[None]], at_once: int) -> None:
    """Work on all items, so many at a time; the first error ends it all."""
    queue = iter(items)

    async def worker() -> None:
        for item in queue:
            await work(item)

    workers = [asyncio.create_task(worker()) for _ in range(at_once)]
    try:
        await asyncio.gather(*workers)
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

"""A language model as a judge on RedundancyBench: any OpenAI-compatible endpoint, or a System One model.

    python eval/llm_judge.py --data DIR --task cls --model gpt-5.4-mini --output cls.json --dry-run   # what it costs
    python eval/llm_judge.py --data DIR --task cls --model gpt-5.4-mini --output cls.json
    python eval/llm_judge.py --data DIR --task det --model MODEL --base-url http://HOST:PORT/v1 --output det.json
    python eval/llm_judge.py --data DIR --task cls --api system-one --model MODEL --output jev.json
    python eval/bench.py --data DIR --predictions cls.json                                     # scores it

The key is in $OPENAI_API_KEY or $TYPESAFE_API_KEY. Replies are kept as they come (OUTPUT.cache): after a kill the same
command goes on, asks nothing twice and loses nothing. A reply that can't be used gets one chance to be repaired, and
then counts as wrong. The output is a result file of the benchmark's runner, with tokens, seconds and dollars beside it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from stepsieve.data.errors import DataError, Parser, run_cli
from stepsieve.data.ingest import load
from stepsieve.data.trajectory import Trajectory
from stepsieve.eval.llm.cache import Cache
from stepsieve.eval.llm.cost import Price, Usage, estimate, price_of, read_prices, total
from stepsieve.eval.llm.endpoint import Access, Endpoint
from stepsieve.eval.llm.judge import ChatJudge, Judge, Outcome, judged
from stepsieve.eval.llm.prompts import DEFAULT, FEW_SHOT, INPUTS, REPLY_TOKENS, Unit, conversation, exemplars, units
from stepsieve.eval.llm.records import result_file
from stepsieve.eval.llm.systemone import SystemOneJudge, state
from stepsieve.eval.results import TITLES
from stepsieve.models.checkpoint import write_atomic

OPENAI, SYSTEM_ONE = "openai", "system-one"


def _arguments() -> Namespace:
    parser = Parser("eval/llm_judge.py", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", required=True, metavar="DIR", help="annotated trajectories: a folder or a file")
    add("--task", required=True, choices=list(TITLES), help="StepCls, EvidenceRet or StepDet")
    add("--model", required=True, help="its name at the endpoint")
    add("--output", required=True, metavar="FILE", help="the result file, JSON")
    add("--input", choices=INPUTS, default=DEFAULT, help="what the judge is given (default: default)")
    add("--api", choices=[OPENAI, SYSTEM_ONE], default=OPENAI, help="how the endpoint is asked (default: openai)")
    add("--base-url", metavar="URL", help="the endpoint (default: the client's own)")
    add("--concurrency", type=int, default=8, metavar="N", help="units asked at a time (default: 8)")
    add("--retries", type=int, default=8, metavar="N", help="further tries where one fails in passing (default: 8)")
    add("--timeout", type=float, default=300, metavar="S", help="seconds of one try (default: 300)")
    add("--param", action="append", default=[], metavar="NAME=JSON", help="such as temperature=0, in each request")
    add("--prices", metavar="FILE", help="prices by model, YAML (default: configs/prices.yaml)")
    add("--cache", metavar="FILE", help="where replies are kept (default: OUTPUT.cache)")
    add("--seed", type=int, default=0, help="decides the folds that exemplars come from (default: 0)")
    add("--dry-run", action="store_true", help="ask nothing, say what it would take and cost")
    return parser.parse_args()


def parameters(given: Sequence[str]) -> dict[str, Any]:
    """Parameters of a request from ``NAME=JSON``; a value that is no JSON is text."""
    values: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not name or not equals or name in ("model", "messages", "stream", "n"):
            raise DataError(f"expected NAME=JSON such as temperature=0, found {each!r}", field="--param")
        try:
            values[name] = orjson.loads(value)
        except orjson.JSONDecodeError:
            values[name] = value
    return values


def check(concurrency: int, retries: int, timeout: float) -> None:
    """Raises DataError for a number that is out of range."""
    for name, value, least in (
        ("--concurrency", concurrency, 1),
        ("--retries", retries, 0),
        ("--timeout", timeout, 0.001),
    ):
        if not value >= least:
            raise DataError(f"expected a number from {least}, found {value}", field=name)


def main() -> None:
    arguments = _arguments()
    check(arguments.concurrency, arguments.retries, arguments.timeout)
    target = Path(arguments.output)
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise DataError("expected a file to write in a folder that is there", file=target)
    price = price_of(arguments.model, read_prices(Path(arguments.prices) if arguments.prices else None))
    corpus = [run for run in load(arguments.data) if run.labels is not None]
    asked = units(arguments.task, corpus)
    if not asked:
        raise DataError("expected annotated trajectories, found none", file=arguments.data)
    shown = exemplars(arguments.task, corpus, arguments.seed) if arguments.input == FEW_SHOT else {}

    def ask(unit: Unit) -> list[Any]:
        return conversation(unit, arguments.input, shown.get(unit.run.id, ()))

    # All are written before the first is sent: what can't be asked is found out at no cost.
    texts = [[str(message["content"]) for message in ask(unit)] for unit in asked]
    if arguments.dry_run:
        if arguments.api == SYSTEM_ONE:
            # A run is read once, however many questions there are about it.
            read = {unit.run.id: state(unit.run, arguments.input, shown.get(unit.run.id, ())) for unit in asked}
            texts = [[orjson.dumps(own).decode()] for own in read.values()]
        print(dry_run(arguments.task, texts, price))
        return
    with Cache(Path(arguments.cache) if arguments.cache else Path(f"{target}.cache")) as replies:
        judge = _judge(arguments, replies, ask, lambda run: shown.get(run.id, ()))
        outcomes, seconds = _asked(judge, asked, arguments.concurrency)
    content = result_file(arguments.task, arguments.model, arguments.input, asked, outcomes, price)
    write_atomic(target, orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    print(f"{summary(outcomes, price, seconds)}; written to {target}")
    silent = sum(not outcome.replied for outcome in outcomes)
    if silent:
        first = next(outcome.error for outcome in outcomes if not outcome.replied)
        raise DataError(f"{silent} of {len(asked)} units got {first}; the same command asks these again")


def _judge(
    arguments: Namespace,
    replies: Cache,
    ask: Callable[[Unit], list[Any]],
    shown: Callable[[Trajectory], Sequence[Unit]],
) -> Callable[[], Judge]:
    """What makes the judge: a client belongs to the event loop that it is made in."""
    access = Access(arguments.base_url, retries=arguments.retries, timeout=arguments.timeout)
    if arguments.api == SYSTEM_ONE:
        if arguments.param:
            raise DataError("expected no parameters for a System One model", field="--param")
        return lambda: SystemOneJudge(arguments.model, access, replies, arguments.input, shown)
    values = parameters(arguments.param)
    return lambda: ChatJudge(Endpoint(arguments.model, access, replies, values), ask)


def _asked(judge: Callable[[], Judge], asked: Sequence[Unit], at_once: int) -> tuple[list[Outcome], float]:
    """The outcomes, under a progress bar on a terminal, and how long it took."""
    console = Console(stderr=True)
    columns = (TextColumn("asking"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    started = time.perf_counter()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("asking", total=len(asked))

        async def run() -> list[Outcome]:
            return await judged(judge(), asked, at_once, lambda: progress.advance(bar))

        try:
            outcomes = asyncio.run(run())
        except KeyboardInterrupt:
            print("interrupted; the same command goes on from here", file=sys.stderr)
            sys.exit(130)
    return outcomes, time.perf_counter() - started


# --- what it costs ---------------------------------------------------------------------------------------------------


def dry_run(task: str, texts: Sequence[Sequence[str]], price: Price | None) -> str:
    """What requests of these texts would take, with tokens estimated from their length."""
    prompt = sum(estimate(text) for own in texts for text in own)
    usage = Usage(len(texts), prompt, 0, REPLY_TOKENS[task] * len(texts))
    return (
        f"{usage.requests:,} requests, about {usage.prompt:,} prompt and {usage.completion:,} reply tokens, "
        f"{dollars(usage, price)}; tokens are estimated at four bytes each, and hidden reasoning comes on top"
    )


def summary(outcomes: Sequence[Outcome], price: Price | None, seconds: float) -> str:
    """One line: what became of the units, and what they took, in all and in this run."""
    whole, now = (total(getattr(outcome, name) for outcome in outcomes) for name in ("usage", "spent"))
    unusable = sum(outcome.error is not None and outcome.replied for outcome in outcomes)
    estimated = f", tokens of {whole.estimated:,} requests estimated" if whole.estimated else ""
    return (
        f"{len(outcomes):,} units, {unusable:,} with an unusable reply; {whole.requests:,} requests "
        f"({whole.requests - now.requests:,} kept from before), {whole.prompt:,} prompt and {whole.completion:,} reply "
        f"tokens{estimated}, {dollars(whole, price)} ({dollars(now, price)} now) in {seconds:.1f} s"
    )


def dollars(usage: Usage, price: Price | None) -> str:
    """The cost in words."""
    return "no known price" if price is None else f"${price.of(usage):,.4f}"


if __name__ == "__main__":
    run_cli(main)

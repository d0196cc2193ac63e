"""Runs as experience: what was asked and which steps led there, as a text for the context of an agent on a like task.

    python eval/experience.py --data DIR --output experience.jsonl                # pruned by the shipped checkpoint
    python eval/experience.py --data DIR --predictions FILE --output experience.jsonl

One line for each run, whose texts differ in the steps alone:

    {"trajectory_id", "domain", "task_id", "agent", "outcome",
     "original": {"text", "steps", "tokens", "removed"}, "model": {...}, "gold": {...}}

*original* has every step; *model* and *gold* lack those that the model, or the labels, call redundant, but for what a
kept step uses (data/pruning.py). ``removed`` lists the steps that are gone by their original message indices. A variant
that nobody answered for is null. Tokens are estimates (eval/tokens.py).

The text comes from a template. Another writer, such as an LLM behind an endpoint, is any function of the same shape.
"""

from __future__ import annotations

from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from stepsieve.data.errors import DataError, Parser, run_cli
from stepsieve.data.features import BATCH
from stepsieve.data.ingest import load
from stepsieve.data.jsonio import dumps
from stepsieve.data.pruning import Pruned, prune_batch
from stepsieve.data.trajectory import Interaction, Trajectory
from stepsieve.eval import redundant
from stepsieve.eval.redundant import Choose, Steps
from stepsieve.eval.tokens import Estimate, best_estimate
from stepsieve.models.checkpoint import write_atomic

Write = Callable[[Trajectory], str]
"""A workflow text from a run, pruned or not."""

ORIGINAL, MODEL, GOLD = "original", "model", "gold"
LONGEST = 400
"""Of a text, arguments or a result so many characters are shown."""


def template(run: Trajectory) -> str:
    """The run as a numbered workflow: the first wish, then in order what was said, called and returned, cut to length.

    Calls of the user's side are shown as the user's: what they found out, the agent learned from what the user said.
    """
    lines = ["# Workflow from an earlier run", ""]
    wish = next((m.content for m in run.messages if m.role == "user" and m.content), None)
    if wish:
        lines += [f"Request: {_short(wish)}", ""]
    lines += [f"{number}. {line}" for number, line in enumerate(_steps(run), 1)]
    if run.outcome is not None:
        lines += ["", f"Outcome: {'the task was solved' if run.outcome >= 1 else 'the task was not solved'}."]
    return "\n".join(lines) + "\n"


def _steps(run: Trajectory) -> Iterator[str]:
    calls: dict[int, list[Interaction]] = {}
    for it in run.interactions:
        calls.setdefault(it.call_index, []).append(it)
    wish = next((index for index, m in enumerate(run.messages) if m.role == "user" and m.content), None)
    for index, message in enumerate(run.messages):
        if message.role in ("user", "assistant") and message.content and index != wish:
            speaker = "The user said" if message.role == "user" else "Say"
            yield f"{speaker}: {_short(message.content)}"
        for it in calls.get(index, ()):
            who = "Call" if it.call.requestor == "assistant" else "The user called"
            result = "no result" if it.result_index is None else _short(it.result) or "an empty result"
            arguments = _short(dumps(it.call.arguments).decode())
            yield f"{who} {it.call.name} with {arguments} -> {'error: ' if it.error else ''}{result}"


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= LONGEST else flat[: LONGEST - 1] + "…"


def experiences(
    runs: Sequence[Trajectory],
    variants: Mapping[str, Sequence[Steps | None]],
    estimate: Estimate,
    write: Write = template,
) -> Iterator[dict[str, Any]]:
    """One record for each run, as the command writes them.

    Args:
        variants: name -> the redundant steps of each run; None where nobody answered for it.
    """
    pruned = {name: prune_batch(runs, [own or () for own in steps]) for name, steps in variants.items()}
    for number, run in enumerate(runs):
        record: dict[str, Any] = {
            "trajectory_id": run.id,
            "domain": run.domain,
            "task_id": run.task_id,
            "agent": run.agent,
            "outcome": run.outcome,
        }
        for name, steps in variants.items():
            record[name] = None if steps[number] is None else _variant(pruned[name][number], estimate, write)
        yield record


def _variant(pruned: Pruned, estimate: Estimate, write: Write) -> dict[str, Any]:
    text = write(pruned.trajectory)
    return {
        "text": text,
        "steps": len(pruned.trajectory.steps),
        "tokens": round(float(estimate.count([text])[0])),
        "removed": [list(step) for step in pruned.removed],
    }


def _records(data: str, choose: Choose) -> Iterator[dict[str, Any]]:
    estimate, runs = best_estimate(), load(data)
    while batch := list(islice(runs, BATCH)):
        nothing: list[Steps | None] = [()] * len(batch)
        yield from experiences(batch, {ORIGINAL: nothing, MODEL: choose(batch), GOLD: redundant.gold(batch)}, estimate)


def _arguments() -> Namespace:
    parser = Parser("eval/experience.py", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="DIR", help="trajectories: a folder or a file")
    redundant.add_arguments(parser)
    parser.add_argument("--output", required=True, metavar="FILE", help="the JSON Lines to write")
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    source = redundant.source(arguments, safe=True)
    records = list(_records(arguments.data, source.choose))
    if not records:
        raise DataError("expected trajectories, found none", file=arguments.data)
    write_atomic(Path(arguments.output), b"".join(orjson.dumps(record) + b"\n" for record in records))
    print(f"model: {source.name}; tokens {best_estimate().name}")
    for name in (ORIGINAL, MODEL, GOLD):
        own = [record[name] for record in records if record[name] is not None]
        steps, tokens = (sum(variant[key] for variant in own) for key in ("steps", "tokens"))
        print(f"{name}: {len(own):,} runs, {steps:,} steps, {tokens:,} tokens")


if __name__ == "__main__":
    run_cli(main)

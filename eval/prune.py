"""Runs without their redundant steps, as OpenAI chat JSON Lines.

    python eval/prune.py --data runs.jsonl --output pruned.jsonl                     # what is safe to delete
    python eval/prune.py --data DIR --predictions FILE --output pruned.jsonl         # what a file predicts
    python eval/prune.py --data DIR --gold --output pruned.jsonl                     # what the labels say

A line is {"trajectory_id", "messages"}; the messages keep the rules of the API (data/openai_chat.py), which is checked
before a line is written. A redundant step whose result a kept step uses stays (data/pruning.py).

Beside it, in <output>.report.jsonl, a line for each run says what became of it, in indices of the original:
{"trajectory_id", "messages", "removed", "retained", "user_side", "loose"}: the index of each message (null for a policy
that became the first one), the steps that are gone, those that stayed with the step that uses them, the calls of the
user's side, which no agent sees, and calls without a result or results without a call.
"""

from __future__ import annotations

from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from stepsieve.data.errors import DataError, Parser, run_cli
from stepsieve.data.features import BATCH
from stepsieve.data.ingest import load
from stepsieve.data.jsonio import dumps, write_files
from stepsieve.data.openai_chat import chat, check_chat
from stepsieve.data.pruning import Pruned, prune_batch
from stepsieve.data.trajectory import Trajectory
from stepsieve.eval import redundant
from stepsieve.eval.redundant import Choose, Source, gold


def lines(run: Trajectory, pruned: Pruned) -> tuple[dict[str, Any], dict[str, Any]]:
    """The run's line of the output, and of the report.

    Raises:
        DataError: arguments that JSON can't hold.
    """
    messages, sources = chat(pruned)
    try:
        check_chat(messages)
    except DataError as error:
        raise error.at(trajectory=run.id) from None
    left_out = [it.reference for it in pruned.trajectory.interactions if not _shown(pruned.trajectory, it.call_index)]
    user_side = [[pruned.kept[index] for index in reference] for reference in left_out]
    report = {
        "trajectory_id": run.id,
        "messages": sources,
        "removed": [list(step) for step in pruned.removed],
        "retained": [{"step": list(step), "used_by": list(by)} for step, by in pruned.retained.items()],
        "user_side": user_side,
        "loose": list(pruned.loose),
    }
    return {"trajectory_id": run.id, "messages": messages}, report


def _shown(run: Trajectory, call_index: int) -> bool:
    return run.messages[call_index].role == "assistant"


def pruned_lines(data: str, choose: Choose) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The two lines of every run of a corpus; a run that nobody answered for stays whole.

    Raises:
        DataError: a run that can't be used.
    """
    runs = load(data)
    while batch := list(islice(runs, BATCH)):
        steps = [own or () for own in choose(batch)]
        for run, pruned in zip(batch, prune_batch(batch, steps), strict=True):
            yield lines(run, pruned)


def _arguments() -> Namespace:
    parser = Parser("eval/prune.py", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="DIR", help="trajectories: a folder or a file of any format")
    redundant.add_arguments(parser)
    parser.add_argument("--gold", action="store_true", help="the steps that the data's own labels name")
    parser.add_argument("--output", required=True, metavar="FILE", help="the JSON Lines to write")
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    if arguments.gold and (arguments.predictions or arguments.checkpoint):
        raise DataError("expected --gold, --predictions or --checkpoint, found two of them")
    source = Source("the gold labels", gold) if arguments.gold else redundant.source(arguments, safe=True)
    output = Path(arguments.output)
    made = list(pruned_lines(arguments.data, source.choose))
    if not made:
        raise DataError("expected trajectories, found none", file=arguments.data)
    report = output.with_name(f"{output.name}.report.jsonl")
    write_files({output: b"".join(dumps(line) for line, _ in made), report: b"".join(dumps(own) for _, own in made)})
    removed, retained, loose = (sum(len(own[key]) for _, own in made) for key in ("removed", "retained", "loose"))
    print(
        f"{len(made):,} runs without {removed:,} steps of {source.name}; {retained:,} more stay, as they are used; "
        f"{loose:,} loose calls and results left out; written to {output} and {report.name}"
    )


if __name__ == "__main__":
    run_cli(main)

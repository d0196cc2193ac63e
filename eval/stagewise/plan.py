"""Milestone graphs of a corpus's tasks from a model, as a file for eval/stagewise/run.py --graphs.

    OPENAI_API_KEY=... python eval/stagewise/plan.py --data DIR --config FILE --out graphs.jsonl

The endpoint and the model stand in the file (keys as in configs/stagewise.yaml). Each reply is kept in endpoint.cache,
so the same command asks nothing twice, and works from recorded replies where no endpoint is given.
"""

from __future__ import annotations

from argparse import Namespace, RawDescriptionHelpFormatter
from pathlib import Path

from stepsieve.data.errors import DataError, Parser, run_cli
from stepsieve.data.jsonio import dumps
from stepsieve.eval.stagewise import check_installed
from stepsieve.models.checkpoint import write_atomic


def _arguments() -> Namespace:
    parser = Parser("eval/stagewise/plan.py", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", required=True, metavar="PATH", help="runs whose tasks to plan: a folder or a file, any known format")
    add("--config", metavar="FILE", help="YAML with keys of configs/stagewise.yaml")
    add("--out", required=True, metavar="FILE", help="the graphs, JSON Lines")
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    check_installed()
    from stepsieve.eval.stagewise import corpus, settings
    from stepsieve.eval.stagewise.consensus import consensus
    from stepsieve.eval.stagewise.llm import Endpoint
    from stepsieve.eval.stagewise.planner import candidates

    options = settings.read(arguments.config)
    endpoint = Endpoint(options.endpoint)
    runs = corpus.read(arguments.data)
    views = corpus.views_of(runs)
    # One plan for a task: what its user said first in the first of its runs.
    tasks = {run.group: views[run.id] for run in reversed(runs) if run.task_id}
    lines, problems = [], []
    for (domain, task), view in sorted(tasks.items()):
        found = candidates(view, endpoint, options.candidates)
        try:
            graph = consensus(found, view)
            lines.append(dumps({"domain": domain, "task_id": task, "graph": graph.to_dict()}))
        except DataError as error:
            problems.append(f"no graph for task {domain}/{task}: {error}")
    if not lines:
        raise DataError(problems[0] if problems else f"expected runs with a task id in {arguments.data}, found none")
    write_atomic(Path(arguments.out), b"".join(lines))
    print(
        "\n".join([*problems, f"{len(lines)} graphs of {len(tasks)} tasks, {endpoint.asked} replies: {arguments.out}"])
    )


if __name__ == "__main__":
    run_cli(main)

"""Stage-wise evaluation of a corpus: a report per run and per agent.

    python eval/stagewise/run.py --data DIR --out DIR                        # graphs from the other runs of each task
    python eval/stagewise/run.py --data DIR --graphs FILE --out DIR          # graphs of eval/stagewise/plan.py
    python eval/stagewise/run.py --data DIR --judges llm --config FILE --out DIR

Judges: tier1 reads structure alone; tier12 adds a model that judges a stage in one pass; llm adds a specialist for each
dimension. Thresholds and the endpoint stand in configs/stagewise.yaml; --config FILE changes any of them.

OUT/runs.jsonl has a line per run, those without a graph and the reason too; OUT/agents.json what is said of each agent
and of all together; OUT/report.md the tables.
"""

from __future__ import annotations

import io
import time
from argparse import Namespace, RawDescriptionHelpFormatter
from pathlib import Path

import orjson
from rich.console import Console

from stepsieve.data.errors import Parser, run_cli
from stepsieve.data.jsonio import dumps
from stepsieve.eval.stagewise import check_installed
from stepsieve.models.checkpoint import write_atomic

WIDTH = 160
"""Columns of the tables where the output is no terminal."""


def _arguments() -> Namespace:
    parser = Parser("eval/stagewise/run.py", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", required=True, metavar="PATH", help="runs: a folder or a file, any known format")
    add("--graphs", metavar="FILE", help="milestone graphs as JSON Lines (default: from the other runs of each task)")
    add("--judges", choices=["tier1", "tier12", "llm"], default="tier1", help="who judges stages (default: tier1)")
    add("--config", metavar="FILE", help="YAML with keys of configs/stagewise.yaml")
    add("--out", required=True, metavar="DIR", help="where the reports go")
    return parser.parse_args()


def main() -> None:
    started = time.perf_counter()
    arguments = _arguments()
    check_installed()
    from stepsieve.eval.stagewise import corpus, evaluate, settings
    from stepsieve.eval.stagewise.ladders import ladder_of

    options = settings.read(arguments.config)
    judges, endpoint = ladder_of(arguments.judges, options)
    reviewed = evaluate.review(corpus.read_cases(arguments.data, arguments.graphs), judges, options)
    found = evaluate.summary(reviewed, options, endpoint.asked if endpoint else 0)

    console = Console(width=None if Console().is_terminal else WIDTH)
    page = Console(file=io.StringIO(), width=WIDTH)
    for table in evaluate.tables(found):
        console.print(table)
        page.print(table)
    for line in evaluate.lines(found):
        console.print(line, highlight=False)
        page.print(line, highlight=False)
    out = Path(arguments.out)
    write_atomic(out / "runs.jsonl", b"".join(dumps(own.to_dict()) for own in reviewed))
    write_atomic(out / "agents.json", orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n")
    assert isinstance(page.file, io.StringIO)
    write_atomic(out / "report.md", f"# Stage-wise evaluation\n\n```\n{page.file.getvalue()}```\n".encode())
    console.print(f"{time.perf_counter() - started:.1f} s; reports in {out}", highlight=False)


if __name__ == "__main__":
    run_cli(main)

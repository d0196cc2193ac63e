"""The benchmark: official StepCls, EvidenceRet and StepDet of a checkpoint or of prediction files on annotated data.

    python eval/bench.py --data DIR --checkpoint DIR                     # ours
    python eval/bench.py --data DIR --predictions FILE [FILE ...]        # anyone's
    python eval/bench.py --data DIR --checkpoint DIR --predictions FILE  # both, and the difference, paired

A prediction file is a result file of the benchmark's own runner (classify, retrieve or detect) or the JSON Lines of
eval/predict.py (StepDet). Each is scored on the units it answers. Where two are for one task, the first is compared
with each other one on the units that both answer: paired bootstrap over tasks, and McNemar's exact test.
"""

from __future__ import annotations

from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from stepsieve.data.errors import DataError, Parser, require, run_cli
from stepsieve.data.ingest import load
from stepsieve.data.trajectory import Label, Reference, Trajectory
from stepsieve.eval import report
from stepsieve.eval.detection import Detection
from stepsieve.eval.results import CLS, DET, RET, TITLES, Answer, Predictions, distinct, read
from stepsieve.eval.scores import Scores, compare, match, score
from stepsieve.models import checkpoint
from stepsieve.models.judge import Judge

# --- predictions of a checkpoint: one function per task --------------------------------------------------------------


def classify_with(judge: Judge, corpus: Sequence[Trajectory]) -> dict[str, Any]:
    """StepCls: the type of every labelled step, given its evidence."""
    answers = judge.classify_batch(corpus, [[(label.step, label.evidence) for label in _labels(run)] for run in corpus])
    return _by_step(corpus, [[Answer(own.choice, None, own.confidence) for own in asked] for asked in answers])


def retrieve_with(judge: Judge, corpus: Sequence[Trajectory]) -> dict[str, Any]:
    """EvidenceRet: the type and the evidence of every labelled step."""
    answers = judge.retrieve_batch(corpus, [[label.step for label in _labels(run)] for run in corpus])
    return _by_step(corpus, [[Answer(own.type, own.evidence, own.confidence) for own in asked] for asked in answers])


def detect_with(judge: Judge, corpus: Sequence[Trajectory]) -> dict[str, Any]:
    """StepDet: the triples of every trajectory that clear the checkpoint's own cutoff."""
    answers = judge.detect_batch(corpus)
    triples = [[Detection(own.step, own.type, own.evidence, own.confidence) for own in found] for found in answers]
    return {"trajectories": dict(zip((run.id for run in corpus), triples, strict=True))}


def _labels(run: Trajectory) -> Sequence[Label]:
    return run.labels or ()


def _by_step(corpus: Sequence[Trajectory], answers: Sequence[Sequence[Answer]]) -> dict[str, Any]:
    steps: dict[tuple[str, Reference], list[Answer]] = {}
    for run, own in zip(corpus, answers, strict=True):
        for label, answer in zip(_labels(run), own, strict=True):
            steps.setdefault((run.id, label.step), []).append(answer)
    return {"steps": steps}


FROM_CHECKPOINT: dict[str, Callable[[Judge, Sequence[Trajectory]], dict[str, Any]]] = {
    CLS: classify_with,
    RET: retrieve_with,
    DET: detect_with,
}
"""Head -> what makes the predictions of its task, as the fields of ``Predictions`` that hold them."""


def predict_all(judge: Judge, folder: Path, corpus: Sequence[Trajectory]) -> list[Predictions]:
    """The predictions of a checkpoint for every task that it has the head of.

    Raises:
        DataError: a head that another one needs is not there.
    """
    tasks = [task for task in FROM_CHECKPOINT if task in judge.heads]
    return [Predictions(task, folder.name, str(folder), **FROM_CHECKPOINT[task](judge, corpus)) for task in tasks]


def seen_in_training(judge: Judge, corpus: Sequence[Trajectory]) -> int:
    """How many trajectories solve a task that one of the heads was trained on."""
    trained = {digest for head in judge.heads.values() for digest in head.provenance.get("tasks", ())}
    return sum(checkpoint.group_digest(run.group) in trained for run in corpus)


# --- the command -----------------------------------------------------------------------------------------------------


def _arguments() -> Namespace:
    parser = Parser("eval/bench.py", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="DIR", help="annotated trajectories: a folder or a file")
    parser.add_argument("--checkpoint", metavar="DIR", help="a checkpoint directory; all its heads are measured")
    parser.add_argument("--predictions", nargs="+", default=[], metavar="FILE", help="result files or JSON Lines")
    parser.add_argument("--json", metavar="FILE", help="write {task: {slice: {metric: value}}}")
    parser.add_argument("--out", metavar="DIR", help="write bench.md and plots (PNG; needs matplotlib, extra: plots)")
    parser.add_argument("--seed", type=int, default=0, help="decides the bootstrap draws (default: 0)")
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    if not arguments.checkpoint and not arguments.predictions:
        raise DataError("expected --checkpoint DIR or --predictions FILE, found neither")
    if arguments.out:
        require("matplotlib", "plots")
    if arguments.seed < 0:
        raise DataError(f"expected a number from 0, found {arguments.seed}", field="--seed")
    if arguments.json and any(Path(path).resolve() == Path(arguments.json).resolve() for path in arguments.predictions):
        raise DataError("expected an output that is not among the inputs", file=arguments.json)
    console = Console(width=None if Console().is_terminal else 120)
    corpus = [run for run in load(arguments.data) if run.labels is not None]
    if not corpus:
        raise DataError("expected annotated trajectories, found none", file=arguments.data)

    made: list[Predictions] = []
    if arguments.checkpoint:
        folder = Path(arguments.checkpoint)
        judge = Judge.from_pretrained(folder)
        made += predict_all(judge, folder, corpus)
        if seen := seen_in_training(judge, corpus):
            warning = f"{seen} of {len(corpus)} trajectories solve a task that this checkpoint was trained on"
            console.print(f"warning: {warning}; its figures here are not held out", style="yellow", highlight=False)
    made += [read(path) for path in arguments.predictions]
    sets = [match(predictions, corpus) for predictions in distinct(made)]

    results: dict[str, Scores] = {}
    shown: list[tuple[str, str, Scores]] = []
    for task in TITLES:
        own = [items for items in sets if items.task == task]
        for number, items in enumerate(own):
            scores = score(items, arguments.seed)
            results[task if number == 0 else f"{task} ({items.name})"] = scores
            shown.append(
                (task, report.coverage(TITLES[task], items.name, len(items), items.asked, items.foreign), scores)
            )
        for items in own[1:]:
            scores = compare(own[0], items, arguments.seed)
            results[f"{task}: {own[0].name} - {items.name}"] = scores
            title = f"{TITLES[task]}: {own[0].name} (first) and {items.name} (second), on the units that both answer"
            shown.append(("compare", title, scores))
    standings = report.standings({(items.name, items.task): float(items.values().mean()) for items in sets})

    for task, title, scores in shown:
        console.print(report.bench_table(task, title, scores))
    console.print(report.standings_table(standings))
    if arguments.json:
        content = orjson.dumps(results, option=orjson.OPT_INDENT_2) + b"\n"
        checkpoint.write_atomic(Path(arguments.json), content)
    if arguments.out:
        from stepsieve.eval.plots import draw

        out = Path(arguments.out)
        images = [name for items in sets for name in draw(items, out)]
        checkpoint.write_atomic(out / "bench.md", report.bench_markdown(shown, standings, images).encode())
        console.print(f"report in {out}/bench.md", highlight=False)


if __name__ == "__main__":
    run_cli(main)

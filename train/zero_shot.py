"""What the encoder answers where it was not trained: other wordings of its questions, and a task it never saw.

python train/zero_shot.py --data DIR

Fits two encoders on each training fold of a split: one on all three tasks, asked again in a wording that training never
showed, and with its options renamed; and one without EvidenceRet, asked for evidence. Prints accuracy beside the mean
confidence: an honest answer to a question never trained on is less sure of itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table as RichTable

from stepsieve.data.errors import run_cli
from stepsieve.data.simulate import simulate
from stepsieve.data.splits import default_splits, make_folds
from stepsieve.data.windows import Pieces
from stepsieve.eval.intervals import cluster_bootstrap
from stepsieve.models.checkpoint import write_atomic
from stepsieve.models.encoder import Encoder
from stepsieve.models.judge import CLS, DET, RET
from stepsieve.models.prompts import Lesson, Prompt, Reader
from stepsieve.train.config import TrainConfig, parse
from stepsieve.train.examples import Table, tabulate
from stepsieve.train.heads import HEADS
from stepsieve.train.loop import UNFINISHED, load_corpus
from stepsieve.train.reading import Reading

RENAMED: tuple[Pieces, ...] = (
    (("superfluous copy of earlier work", 20),),
    (("hiccup of the system, later retried", 20),),
    (("mistake in what was asked", 20),),
    (("look-up that led nowhere", 20),),
)
"""The four types in words that no training question has."""


def main() -> None:
    config = parse("cls", __doc__)
    console = Console(stderr=True)
    runs = load_corpus(config.data, config, console)
    split = (config.splits or default_splits(runs))[0]
    rows = []
    for name, trained in {"all tasks": (CLS, RET, DET), "without ret": (CLS, DET)}.items():
        reading = _reading(config, trained)
        asked = _asked(runs, reading.encoder, trained)
        corpus = [tabulate(HEADS[head], runs, reader=reading.reader) for head in trained]
        found: dict[str, list[tuple[float, float, float, tuple[str, str]]]] = {}
        for fold in make_folds(runs, split, config.seed, config.folds):
            encoder = reading.fitted(corpus, runs, fold.train)
            for label, table in asked.items():
                found.setdefault(label, []).extend(_answers(encoder, table, runs, fold.test))
        rows += [(name, label, *_figures(own, config.seed)) for label, own in found.items()]
    _show(rows, split, Path(config.out))


def _reading(config: TrainConfig, heads: Sequence[str]) -> Reading:
    simulated = simulate(config.encoder.simulated, config.seed + 1)
    states = Path(config.out) / UNFINISHED
    specs = [HEADS[name] for name in heads]
    return Reading(config.encoder, specs, simulated, config.seed, config.device, states, lambda entry: None)


def _asked(runs: Sequence, encoder: Encoder, trained: Sequence[str]) -> dict[str, Table]:
    """The questions as trained, in the wording that never is, with renamed options, and of the task left out."""
    usual, other = Reader(encoder.count, encoder.window), Reader(encoder.count, encoder.window, wording=-1)
    if RET not in trained:
        words = tabulate(HEADS[RET], runs, reader=usual)
        alone = _changed(words, lambda prompt: replace(prompt, facts=None))
        return {"ret, never trained": words, "ret, never trained, words alone": alone}
    asked = {}
    for head in trained:
        asked[f"{head}, as trained"] = tabulate(HEADS[head], runs, reader=usual)
        asked[f"{head}, held-out wording"] = tabulate(HEADS[head], runs, reader=other)
    renamed = asked[f"{CLS}, held-out wording"]
    asked[f"{CLS}, held-out wording and options"] = _changed(renamed, lambda prompt: replace(prompt, options=RENAMED))
    return asked


def _changed(table: Table, change: Callable[[Prompt], Prompt]) -> Table:
    return replace(table, lessons=tuple(Lesson(change(own.prompt), own.label, own.weight) for own in table.lessons))


def _answers(
    encoder: Encoder, table: Table, runs: Sequence, test: np.ndarray
) -> list[tuple[float, float, float, tuple[str, str]]]:
    """For each question about a test run: right, the confidence, the chance of a guess, and the task."""
    of = table.of(test)
    numbers, first = np.unique(of.example, return_index=True)
    lessons = [table.lessons[number] for number in numbers]
    found = []
    for lesson, row, z in zip(lessons, first, encoder.logits([own.prompt for own in lessons]), strict=True):
        p = np.exp(z - z.max())
        p /= p.sum()
        found.append((float(p.argmax() == lesson.label), float(p.max()), 1 / len(p), runs[of.trajectory[row]].group))
    return found


def _figures(own: Sequence[tuple[float, float, float, tuple[str, str]]], seed: int) -> tuple[str, str, str, int]:
    right, sure, chance = (np.array([item[k] for item in own]) for k in range(3))
    interval = cluster_bootstrap(right, [item[3] for item in own], seed)
    shown = f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
    return shown, f"{sure.mean():.3f}", f"{chance.mean():.3f}", len(own)


def _show(rows: Sequence[tuple], split: str, out: Path) -> None:
    names = ("trained on", "asked", "accuracy", "mean confidence", "guessing", "n")
    table = RichTable(title=f"zero-shot, {split}", title_justify="left")
    for name in names:
        table.add_column(name)
    for row in rows:
        table.add_row(*map(str, row))
    Console(width=max(Console().width, 130)).print(table)
    path = out / "zero_shot.json"
    write_atomic(path, orjson.dumps([dict(zip(names, row, strict=True)) for row in rows], option=orjson.OPT_INDENT_2))
    print(f"zero-shot: {len(rows)} measurements in {path}")


if __name__ == "__main__":
    run_cli(main)

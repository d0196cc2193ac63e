"""The one training loop: fit, calibrate on held-out folds, evaluate on grouped folds, refit on everything, save.

``Task`` (what to ask) x backend (what answers) x split (on what) -> a checkpoint, metrics.json and report.md.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from stepsieve.data.errors import DataError, require
from stepsieve.data.ingest import load
from stepsieve.data.simulate import simulate
from stepsieve.data.splits import Fold, default_splits, make_folds
from stepsieve.data.trajectory import Trajectory
from stepsieve.eval.report import comparison, markdown_report, metrics_table
from stepsieve.models import checkpoint
from stepsieve.models.fusion import TEXT_BACKENDS
from stepsieve.train.config import TrainConfig
from stepsieve.train.fit import Training
from stepsieve.train.heads import HEADS
from stepsieve.train.outcome import write_predictions
from stepsieve.train.reading import Reading
from stepsieve.train.tasks import Answered, Report, Task, gain

UNFINISHED = ".unfinished"
"""Folder for the states of unfinished fine-tuning, in the output folder: a run that was killed goes on from them."""


@dataclass
class Cost:
    """What a backend took on a split.

    Attributes:
        training: seconds, over all folds. megabytes: of its checkpoint, the encoder's base included.
        answers, seconds: how many answers it gave, by task, and in what time, features included.
    """

    training: float = 0.0
    megabytes: float = 0.0
    answers: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, task: str, answers: int, seconds: float) -> None:
        self.answers[task] = self.answers.get(task, 0) + answers
        self.seconds[task] = self.seconds.get(task, 0.0) + seconds

    def to_dict(self) -> dict[str, Any]:
        rates = {task: n / max(self.seconds[task], 1e-9) for task, n in self.answers.items()}
        return {"training_s": self.training, "megabytes": self.megabytes, "answers_per_s": rates}


def train(tasks: Sequence[Task], config: TrainConfig) -> None:
    """Run tasks that share their heads: measure every split, then train on everything and save."""
    started = time.perf_counter()
    console = Console(stderr=True)
    out = Path(config.out)
    known = _known_metrics(out)
    corpus = load_corpus(config.data, config, console)
    source = load_corpus(config.train, config, console) if config.train else None
    simulated = _augmentation(config, corpus, source)
    heads = list(dict.fromkeys(head for task in tasks for head in task.heads))
    # All folds before the first training: a split that can't be made is found out at once.
    chosen = {
        split: make_folds(corpus, split, config.seed, config.folds) for split in config.splits or default_splits(corpus)
    }
    if source is not None:
        chosen = {
            f"{_label(config.train)}-to-{split}": [_from_source(fold, corpus, source) for fold in folds]
            for split, folds in chosen.items()
        }

    results: dict[str, dict[str, dict[str, Report]]] = {task.name: {} for task in tasks}
    predicted: dict[tuple[str, str], list[Answered]] = {}
    costs: dict[str, dict[str, Cost]] = {}
    with _tracking(tasks, config) as log, _progress(console) as progress:
        reading = _reading(heads, config, out, log, progress)
        training = Training(corpus if source is None else source, heads, simulated, config, reading)
        for split, folds in chosen.items():
            bar = progress.add_task(split, total=len(folds) * len(config.backends))
            answered: dict[str, dict[str, list[Answered]]] = {}
            for backend in config.backends:
                advance = partial(progress.advance, bar)
                answered[backend], cost = _held_out(tasks, training, corpus, folds, backend, advance)
                costs.setdefault(split, {})[backend] = cost
            for task in tasks:
                ours = answered[config.backend][task.name]
                reports = {backend: task.report(own[task.name], config.seed) for backend, own in answered.items()}
                for backend in config.backends[:-1]:
                    theirs = answered[backend][task.name]
                    reports[config.backend][f"gain[{backend}]"] = gain(task, ours, theirs, config.seed)
                results[task.name][split] = reports
                predicted[task.name, split] = ours
            if reading is not None:
                reading.forget()
            log(
                {
                    f"{name}/{split}/{backend}/{metric}": interval.value
                    for name, splits in results.items()
                    for backend, report in splits[split].items()
                    for metric, interval in report.items()
                }
            )
        progress.add_task("final model", total=None)
        judge = training.fit(config.backend, np.arange(len(training.runs)))
    if not _is_first_process():
        return

    for name, head in judge.heads.items():
        data = {"data": _label(config.train or config.data), "simulated_trajectories": len(simulated)}
        measured = {split: reports[config.backend] for split, reports in results.get(name, {}).items()}
        whole = {split: {k: v for k, v in report.items() if "[" not in k} for split, report in measured.items()}
        checkpoint.save(out, replace(head, provenance={**head.provenance, **data}), _plain(whole))
    for (name, split), items in predicted.items():
        write_predictions(out / "predictions" / f"{name}-{split}-{config.backend}.json", name, items)
    _write_reports(out, results, known, costs, config)
    shutil.rmtree(out / UNFINISHED, ignore_errors=True)
    # A pipe has no width of its own, and a number cut short is worse than a long line.
    for task in tasks:
        Console(width=max(Console().width, 150)).print(metrics_table(task.name, results[task.name]))
    more = f" and {len(simulated)} simulated ones" if simulated else ""
    seconds = time.perf_counter() - started
    names = ", ".join(task.name for task in tasks)
    print(
        f"{names}: trained on {len(training.runs)} trajectories{more} in {seconds:.1f} s; "
        f"checkpoint in {out}, metrics in {out}/metrics.json, report in {out}/report.md"
    )


def _held_out(
    tasks: Sequence[Task],
    training: Training,
    corpus: Sequence[Trajectory],
    folds: Sequence[Fold],
    backend: str,
    advance: Callable[[], None],
) -> tuple[dict[str, list[Answered]], Cost]:
    """What judges answer about the test trajectories of each fold, by task; each is trained on the fold's rest."""
    answered: dict[str, list[Answered]] = {task.name: [] for task in tasks}
    cost = Cost()
    for fold in folds:
        tested = [corpus[i] for i in fold.test]
        if not any(run.labels for run in tested):
            raise DataError(f"expected labelled steps in test fold {fold.name}, found none")
        started = time.perf_counter()
        judge = training.fit(backend, fold.train)
        cost.training += time.perf_counter() - started
        for task in tasks:
            started = time.perf_counter()
            answers = task.ask(judge, tested)
            cost.add(task.name, sum(map(len, answers)), time.perf_counter() - started)
            pairs = zip(tested, answers, strict=True)
            answered[task.name] += [Answered(run, fold.name, own, judge.cutoff) for run, own in pairs]
        advance()
    cost.megabytes = checkpoint.size(judge.heads) / 1e6
    return answered, cost


def _is_first_process() -> bool:
    """Of several that train together (``accelerate launch``), the one that writes."""
    return os.environ.get("RANK", "0") == "0"


def _reading(
    heads: Sequence[str], config: TrainConfig, out: Path, log: Callable[[dict[str, float]], None], progress: Progress
) -> Reading | None:
    """The encoders, if one of the backends reads text."""
    if not set(config.backends) & set(TEXT_BACKENDS):
        return None
    bars: dict[str, TaskID] = {}

    def show(entry: dict[str, Any]) -> None:
        name = str(entry.pop("stage"))
        if entry["step"] == 1 or name not in bars:
            bars.setdefault(name, progress.add_task(name, total=entry["steps"]))
        progress.update(bars[name], completed=entry["step"], total=entry["steps"])
        log({f"{name}/{key}": value for key, value in entry.items() if key != "steps"})

    # Other runs than those that join the training sets: on these the encoder's scores are to be honest.
    shown = simulate(config.encoder.simulated, config.seed + 1)
    specs = [HEADS[name] for name in heads]
    return Reading(config.encoder, specs, shown, config.seed, config.device, out / UNFINISHED, show)


def _progress(console: Console) -> Progress:
    """A bar on a terminal; elsewhere nothing, so that an error is all that stderr holds."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def load_corpus(source: str, config: TrainConfig, console: Console) -> list[Trajectory]:
    """The annotated trajectories of a corpus, or simulated ones.

    Raises:
        DataError: nothing there, nothing annotated, or, unless ``on_error`` is skip, a trajectory that can't be used.
    """
    if source == "simulated":
        trajectories = simulate(config.simulated, config.seed)
    else:
        problems: list[DataError] = []
        report = problems.append if config.on_error == "skip" else None
        trajectories = list(load(source, report=report))
        for problem in problems:
            console.print(f"skipped: {problem}", style="yellow", markup=False, highlight=False, soft_wrap=True)
        if problems:
            console.print(f"left out: {len(problems)} files or trajectories; {len(trajectories)} can be used")
    annotated = [trajectory for trajectory in trajectories if trajectory.labels is not None]
    if not annotated:
        raise DataError(f"expected annotated trajectories, found none among {len(trajectories)}", file=source)
    return annotated


def _augmentation(
    config: TrainConfig, corpus: Sequence[Trajectory], source: Sequence[Trajectory] | None
) -> list[Trajectory]:
    """Simulated trajectories that join real ones in training; none where all of the training is simulated.

    A corpus can be simulated too, and lie in a folder: its tasks are left out, for some of them are tested.
    """
    if not config.augment or "simulated" in (config.train or config.data):
        return []
    tested = {trajectory.group for trajectory in corpus}
    return [t for t in simulate(config.augment, config.seed) if t.labels and t.group not in tested]


def _from_source(fold: Fold, corpus: Sequence[Trajectory], source: Sequence[Trajectory]) -> Fold:
    """The fold with the other corpus as its training set, without the tasks that it tests."""
    tested = {corpus[i].group for i in fold.test}
    return Fold(fold.name, np.array([i for i, t in enumerate(source) if t.group not in tested]), fold.test)


def _label(source: str | None) -> str:
    """A corpus by the last part of its path: where it lay on a machine is nobody's business."""
    return Path(source or "").name or "data"


def _known_metrics(out: Path) -> dict[str, Any]:
    """What metrics.json of an earlier run holds: read before the training, so that no run ends in vain.

    Raises:
        DataError: it is not such a file, or the folder can't be one.
    """
    there = next(folder for folder in (out, *out.parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise DataError("expected a folder that can be written", file=out)
    path = out / "metrics.json"
    try:
        known = orjson.loads(path.read_bytes()) if path.exists() else {}
    except orjson.JSONDecodeError:
        known = None
    if not isinstance(known, dict) or not all(isinstance(splits, dict) for splits in known.values()):
        raise DataError("expected the metrics of an earlier run as JSON", file=path)
    return known


def _plain(reports: dict[str, Report]) -> dict[str, Any]:
    """Reports by any key as JSON values."""
    return {key: {name: interval.to_dict() for name, interval in report.items()} for key, report in reports.items()}


def _settings(config: TrainConfig) -> dict[str, Any]:
    """The settings without where something lay."""
    settings = asdict(config)
    for name in ("base", "start"):
        settings["encoder"][name] = settings["encoder"][name] and Path(settings["encoder"][name]).name
    return settings


def _write_reports(
    out: Path,
    results: dict[str, dict[str, dict[str, Report]]],
    known: dict[str, Any],
    costs: dict[str, dict[str, Cost]],
    config: TrainConfig,
) -> None:
    """metrics.json, report.md, and costs as JSON and as a table; in metrics.json other tasks and splits are kept.

    Costs have a file of their own: they are never twice the same, and metrics are.
    """
    measured = {task: {split: _plain(own) for split, own in splits.items()} for task, splits in results.items()}
    for task, splits in measured.items():
        known.setdefault(task, {}).update(splits)
    content = orjson.dumps(known, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)
    checkpoint.write_atomic(out / "metrics.json", content)
    spent = {split: {backend: cost.to_dict() for backend, cost in own.items()} for split, own in costs.items()}
    checkpoint.write_atomic(out / "costs.json", orjson.dumps(spent, option=orjson.OPT_INDENT_2))
    checkpoint.write_atomic(out / "costs.md", comparison(measured, spent).encode())
    checkpoint.write_atomic(out / "report.md", markdown_report(known, _settings(config)).encode())


@contextmanager
def _tracking(tasks: Sequence[Task], config: TrainConfig) -> Iterator[Callable[[dict[str, float]], None]]:
    """A function that logs values by name: to Weights & Biases where asked for, else nowhere."""
    if config.wandb == "off" or not _is_first_process():
        yield lambda values: None
        return
    wandb = require("wandb", "wandb")
    run = wandb.init(
        project="stepsieve",
        name="-".join(task.name for task in tasks),
        mode=config.wandb,
        config=asdict(config),
        dir=config.out,
        settings=wandb.Settings(silent=True),
    )
    try:
        yield run.log
    finally:
        run.finish(exit_code=1 if sys.exc_info()[0] else 0)

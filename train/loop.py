"""The one training loop: fit, calibrate on held-out folds, evaluate on grouped folds, refit on everything, save.

``Task`` (what to ask) x backend (what answers) x split (on what) -> a checkpoint, metrics.json and report.md.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
from rich.console import Console
from rich.progress import Progress

from stepsieve.data.errors import DataError, require
from stepsieve.data.features import schema_hash
from stepsieve.data.ingest import load
from stepsieve.data.simulate import simulate
from stepsieve.data.splits import Fold, assign_groups, default_splits, make_folds
from stepsieve.data.trajectory import Trajectory
from stepsieve.eval.intervals import Interval
from stepsieve.eval.report import markdown_report, metrics_table
from stepsieve.models import checkpoint
from stepsieve.models.calibrate import Temperature
from stepsieve.models.checkpoint import Head
from stepsieve.models.scorer import BASELINES, create
from stepsieve.train.config import TrainConfig
from stepsieve.train.tasks import Example, Task

Report = dict[str, Interval]


@dataclass(frozen=True)
class Table:
    """Examples as arrays: features (n, d), labels (n,), weights (n,), and the trajectory (n,) that each belongs to."""

    examples: list[Example]
    features: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]
    trajectory: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.examples)

    def take(self, rows: npt.NDArray[np.int64]) -> Table:
        """The examples at these rows."""
        return Table(
            [self.examples[row] for row in rows],
            self.features[rows],
            self.labels[rows],
            self.weights[rows],
            self.trajectory[rows],
        )

    def of(self, trajectories: npt.NDArray[np.int64]) -> Table:
        """The examples of these trajectories."""
        return self.take(np.flatnonzero(np.isin(self.trajectory, trajectories)))


def train(task: Task, config: TrainConfig) -> None:
    """Run a task: measure every split, then train on everything and save."""
    started = time.perf_counter()
    console = Console(stderr=True)
    corpus = load_corpus(config.data, config, console)
    table = tabulate(task, corpus)
    source = load_corpus(config.train, config, console) if config.train else None
    extra = tabulate(task, _augmentation(config, source), config.augment_weight)
    training = tabulate(task, source) if source is not None else table
    backends = [name for name in (*BASELINES, config.backend) if name != config.backend] + [config.backend]

    results: dict[str, dict[str, Report]] = {}
    with _tracking(task, config) as log, Progress(console=console, transient=True) as progress:
        for split in config.split or default_splits(corpus):
            name = split if source is None else f"{_label(config.train)}-to-{split}"
            folds = make_folds(corpus, split, config.seed, config.folds)
            if source is not None:
                folds = [_from_source(fold, corpus, source) for fold in folds]
            bar = progress.add_task(f"{task.name} {name}", total=len(folds) * len(backends))
            predictions: dict[str, list[npt.NDArray[np.float64]]] = {backend: [] for backend in backends}
            tested: list[Example] = []
            fold_of: list[str] = []
            for fold in folds:
                test = table.of(fold.test)
                tested += test.examples
                fold_of += [fold.name] * len(test)
                for backend in backends:
                    head = fit(task, backend, training.of(fold.train), extra, config)
                    predictions[backend].append(head.predict(test.features))
                    progress.advance(bar)
            if not tested:
                raise DataError(f"expected labelled steps in the test folds of split {split}, found none")
            results[name] = {
                backend: task.report(tested, np.vstack(predictions[backend]), fold_of, config.seed)
                for backend in backends
            }
            log(name, results[name])

        progress.add_task(f"{task.name} final model", total=None)
        head = fit(task, config.backend, training, extra, config)
    out = Path(config.out)
    own = {
        split: {name: interval.to_dict() for name, interval in reports[config.backend].items()}
        for split, reports in results.items()
    }
    checkpoint.save(out, head, own)
    _write_reports(out, task, results, config)
    Console().print(metrics_table(task.name, results))
    print(
        f"{task.name}: trained on {len(training) + len(extra)} steps in {time.perf_counter() - started:.1f} s; "
        f"checkpoint in {out}/{task.name}, metrics in {out}/metrics.json, report in {out}/report.md"
    )


def fit(task: Task, backend: str, table: Table, extra: Table, config: TrainConfig) -> Head:
    """A calibrated head: the temperature is fitted on inner folds that the inner models did not see.

    ``extra`` joins every training set, inner ones too, and is never calibrated or tested on.
    """
    names = tuple(feature.name for feature in task.features)

    def scorer_on(rows: Table) -> Any:
        scorer = create(backend, names, len(task.classes), config.seed, **config.options(backend))
        scorer.fit(
            np.vstack([rows.features, extra.features]),
            np.concatenate([rows.labels, extra.labels]),
            np.concatenate([rows.weights, extra.weights]),
        )
        return scorer

    if not len(table):
        raise DataError("expected labelled steps to train on, found none")
    inner = _inner_folds(table, config)
    held_out = np.zeros((len(table), len(task.classes)))
    for fold in np.unique(inner) if len(set(inner.tolist())) > 1 else ():
        rows = np.flatnonzero(inner == fold)
        held_out[rows] = scorer_on(table.take(np.flatnonzero(inner != fold))).predict_proba(table.features[rows])
    calibration = Temperature.fit(held_out, table.labels, table.weights) if held_out.any() else Temperature()
    provenance = {
        "data": _label(config.train or config.data),
        "seed": config.seed,
        "steps": len(table),
        "simulated_steps": len(extra),
        "options": config.options(backend),
        "tasks": sorted({checkpoint.group_digest(example.group) for example in table.examples}),
    }
    return Head(
        task.name, backend, scorer_on(table), calibration, task.classes, names, schema_hash(task.features), provenance
    )


def tabulate(task: Task, trajectories: Sequence[Trajectory], weight: float = 1.0) -> Table:
    """The examples of a corpus as arrays."""
    found = task.examples(trajectories)
    examples = [example for own in found for example in own]
    features = np.array([example.features for example in examples], dtype=np.float32)
    return Table(
        examples,
        features.reshape(len(examples), len(task.features)),
        np.array([example.label for example in examples], dtype=np.int64),
        np.array([example.weight * weight for example in examples], dtype=np.float64),
        np.repeat(np.arange(len(found)), [len(own) for own in found]),
    )


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
            console.print(f"skipped: {problem}", style="yellow", highlight=False)
        if problems:
            console.print(f"skipped {len(problems)} of {len(problems) + len(trajectories)} trajectories")
    annotated = [trajectory for trajectory in trajectories if trajectory.labels is not None]
    if not annotated:
        raise DataError(f"expected annotated trajectories, found none among {len(trajectories)}", file=source)
    return annotated


def _augmentation(config: TrainConfig, source: Sequence[Trajectory] | None) -> list[Trajectory]:
    """Simulated trajectories that join real ones in training; none where all of the training is simulated."""
    if config.augment and "simulated" not in (config.train or config.data):
        return [t for t in simulate(config.augment, config.seed) if t.labels]
    return []


def _from_source(fold: Fold, corpus: Sequence[Trajectory], source: Sequence[Trajectory]) -> Fold:
    """The fold with the other corpus as its training set, without the tasks that it tests."""
    tested = {corpus[i].group for i in fold.test}
    return Fold(fold.name, np.array([i for i, t in enumerate(source) if t.group not in tested]), fold.test)


def _inner_folds(table: Table, config: TrainConfig) -> npt.NDArray[np.int64]:
    """(n,) the inner fold of each example: grouped by task; all 0 where there are fewer tasks than folds."""
    runs = list({example.trajectory.id: example.trajectory for example in table.examples}.values())
    if len({run.group for run in runs}) < config.inner_folds:
        return np.zeros(len(table), dtype=np.int64)
    assigned = assign_groups(runs, config.inner_folds, config.seed)
    return np.array([assigned[example.group] for example in table.examples], dtype=np.int64)


def _label(source: str | None) -> str:
    """A corpus by the last part of its path: where it lay on a machine is nobody's business."""
    return Path(source or "").name or "data"


def _write_reports(out: Path, task: Task, results: dict[str, dict[str, Report]], config: TrainConfig) -> None:
    """metrics.json and report.md; other tasks and splits that stand in metrics.json already are kept."""
    path = out / "metrics.json"
    known: dict[str, Any] = {}
    if path.exists():
        try:
            known = orjson.loads(path.read_bytes())
        except orjson.JSONDecodeError:
            raise DataError("expected the metrics of an earlier run as JSON", file=path) from None
    for split, reports in results.items():
        known.setdefault(task.name, {})[split] = {
            backend: {name: interval.to_dict() for name, interval in report.items()}
            for backend, report in reports.items()
        }
    checkpoint.write_atomic(path, orjson.dumps(known, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n")
    checkpoint.write_atomic(out / "report.md", markdown_report(known, asdict(config)).encode())


@contextmanager
def _tracking(task: Task, config: TrainConfig) -> Iterator[Any]:
    """A function that logs a split's metrics: to Weights & Biases where asked for, else nowhere."""
    if config.wandb == "off":
        yield lambda split, reports: None
        return
    wandb = require("wandb", "wandb")
    run = wandb.init(
        project="stepsieve", name=task.name, mode=config.wandb, config=asdict(config), dir=str(Path(config.out))
    )

    def log(split: str, reports: dict[str, Report]) -> None:
        for backend, report in reports.items():
            run.log({f"{split}/{backend}/{name}": interval.value for name, interval in report.items()})

    try:
        yield log
    finally:
        run.finish(exit_code=1 if sys.exc_info()[0] else 0, quiet=True)

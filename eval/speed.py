"""How long features and prediction take, beside ``orjson.loads`` of the same bytes, on one core.

    python -m stepsieve.eval.speed                               # simulated trajectories, a model trained on the fly
    python -m stepsieve.eval.speed --data DIR --checkpoint DIR
    python -m stepsieve.eval.speed --backend encoder [--checkpoint DIR] [--onnx FOLDER]   # see encoder_speed.py
    python -m stepsieve.eval.speed --corpus [--data DIR] [--plot FILE]                    # see corpus_speed.py

*Prediction* is StepCls on every labelled step. A checkpoint with all heads is also timed at *detection*: StepDet on
every trajectory, its features included. Times are CPU time of this process, the least of several repeats, with every
library held to one thread. Each repeat reads the files anew, so that nothing is left over from the one before.
"""

from __future__ import annotations

import time
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from stepsieve.data import redundancybench
from stepsieve.data.errors import DataError, Parser, run_cli
from stepsieve.data.features import PAIR_FEATURES, pair_features
from stepsieve.data.ingest import load
from stepsieve.data.simulate import simulate
from stepsieve.data.trajectory import REDUNDANCY_TYPES, Trajectory
from stepsieve.eval import corpus_speed, encoder_speed
from stepsieve.models import checkpoint
from stepsieve.models.calibrate import Temperature
from stepsieve.models.checkpoint import Head
from stepsieve.models.judge import CLS, DET, RET, SCHEMAS, Judge
from stepsieve.models.scorer import create

T = TypeVar("T")
BAR = 8.0
"""Features and prediction are to take at most this many times the time of ``orjson.loads``."""


@dataclass(frozen=True)
class Speed:
    """Seconds of CPU time for all trajectories, and what they were.

    Attributes:
        parse: ``orjson.loads`` of the files. read: reading them as trajectories.
        features, predict: structured features, and probabilities from them.
        detect: StepDet of every trajectory; None without a checkpoint that can.
    """

    trajectories: int
    steps: int
    megabytes: float
    parse: float
    read: float
    features: float
    predict: float
    detect: float | None = None

    @property
    def ratio(self) -> float:
        """Features and prediction as a multiple of parsing."""
        return (self.features + self.predict) / self.parse

    def to_dict(self) -> dict[str, float]:
        """Seconds per 1,000 trajectories, the ratio, and the size of what was measured."""
        names = ("parse", "read", "features", "predict", "detect")
        seconds = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {
            **{f"{name}_s_per_1000": value * 1000 / self.trajectories for name, value in seconds.items()},
            "ratio": self.ratio,
            "trajectories": self.trajectories,
            "steps": self.steps,
            "megabytes": self.megabytes,
        }


def measure(data: Path, folder: Path | None, repeats: int = 20) -> Speed:
    """Times of a corpus, the least of ``repeats``; without a checkpoint a small model is trained first.

    Raises:
        DataError: no such corpus, nothing labelled in it, or no usable checkpoint.
    """
    files = [data] if data.is_file() else sorted(path for path in data.rglob("*.json") if path.is_file())
    contents = [path.read_bytes() for path in files]
    with threadpool_limits(1):
        corpus = list(load(data))
        steps = sum(len(run.labels or ()) for run in corpus)
        if not steps:
            raise DataError(f"expected labelled steps, found none in {len(corpus)} trajectories", file=data)
        judge = Judge.from_pretrained(folder) if folder else Judge({CLS: _small(corpus)})
        if CLS not in judge.heads:
            raise DataError(f"expected a checkpoint with the head {CLS!r}, found {sorted(judge.heads)}", file=folder)
        detects = {CLS, RET, DET} <= judge.heads.keys()
        times: dict[str, list[float]] = {"parse": [], "read": [], "features": [], "predict": [], "detect": []}
        for _ in range(repeats):
            _timed(times["parse"], lambda: [orjson.loads(content) for content in contents])
            fresh = _unread(_timed(times["read"], lambda: list(load(data))))
            rows = _timed(times["features"], partial(_features, fresh))
            _timed(times["predict"], partial(judge.heads[CLS].predict, rows))
            if detects:
                _timed(times["detect"], partial(judge.detect_batch, _unread(fresh)))
    size = sum(map(len, contents)) / 1e6
    return Speed(len(corpus), steps, size, **{name: min(seconds) for name, seconds in times.items() if seconds})


def _features(corpus: Sequence[Trajectory]) -> np.ndarray:
    pairs = [[(label.step, label.evidence) for label in run.labels or ()] for run in corpus]
    return np.vstack(pair_features(corpus, pairs))


def _unread(corpus: Sequence[Trajectory]) -> list[Trajectory]:
    """The trajectories without what they had already worked out: pairing calls with results counts as features."""
    return [Trajectory(**{name: getattr(run, name) for name in Trajectory.__dataclass_fields__}) for run in corpus]


def _small(corpus: Sequence[Trajectory]) -> Head:
    """A gbdt of the usual size, trained on these very steps: as fast as any other, and good for nothing else."""
    names = tuple(feature.name for feature in PAIR_FEATURES)
    scorer = create("gbdt", names, len(REDUNDANCY_TYPES), threads=1)
    labels = [REDUNDANCY_TYPES.index(label.type) for run in corpus for label in run.labels or ()]
    scorer.fit(_features(corpus), np.array(labels, dtype=np.int64), np.ones(len(labels)))
    return Head(CLS, "gbdt", scorer, Temperature(), REDUNDANCY_TYPES, names, SCHEMAS[CLS])


def _timed(seconds: list[float], work: Callable[[], T]) -> T:
    """What the work returns; its CPU time is appended."""
    started = time.process_time()
    done = work()
    seconds.append(time.process_time() - started)
    return done


def _table(speed: Speed, name: str) -> Table:
    size = f"{speed.trajectories} trajectories, {speed.steps} labelled steps, {speed.megabytes:.1f} MB"
    title = f"{name}: {size}; one core"
    table = Table(title=title, title_justify="left")
    for column in ("", "s per 1,000 trajectories", "times orjson.loads"):
        table.add_column(column, justify="right" if column else "left")
    rows = {
        "orjson.loads": speed.parse,
        "features": speed.features,
        "prediction": speed.predict,
        "features and prediction": speed.features + speed.predict,
        "reading, beside": speed.read,
    }
    if speed.detect is not None:
        rows["detection, features included"] = speed.detect
    for row, seconds in rows.items():
        table.add_row(row, f"{seconds * 1000 / speed.trajectories:.3f}", f"{seconds / speed.parse:.1f}")
    return table


def _arguments() -> Namespace:
    form = RawDescriptionHelpFormatter
    parser = Parser("python -m stepsieve.eval.speed", description=__doc__, formatter_class=form)
    parser.add_argument("--corpus", action="store_true", help="time predict.py on a corpus of the benchmark's size")
    parser.add_argument("--backend", choices=("gbdt", "encoder"), default="gbdt", help="what is timed (default: gbdt)")
    parser.add_argument("--data", metavar="DIR", help="annotated trajectories: a folder or a file (default: simulated)")
    parser.add_argument("--checkpoint", metavar="DIR", help="a checkpoint directory (default: train a model first)")
    parser.add_argument("--simulated", type=int, default=200, metavar="N", help="how many to simulate (default: 200)")
    parser.add_argument("--repeats", type=int, metavar="N", help="the least time of N counts (default: 20; encoder: 3)")
    parser.add_argument("--onnx", metavar="FOLDER", help="the encoder as models.export wrote it (default: export it)")
    parser.add_argument("--plot", metavar="FILE", help="with --corpus: draw its growth, as SVG or PNG")
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON")
    return parser.parse_args()


_UNUSED = {
    "--corpus": ("onnx", "repeats"),
    "--backend gbdt": ("onnx", "plot"),
    "--backend encoder": ("data", "plot"),
}
"""What is timed -> the flags that mean nothing then."""


def main() -> None:
    arguments = _arguments()
    for name in ("simulated", "repeats"):
        number = getattr(arguments, name)
        if number is not None and number < 1:
            raise DataError(f"expected at least 1, found {number}", field=f"--{name}")
    kind = "--corpus" if arguments.corpus else f"--backend {arguments.backend}"
    for name in _UNUSED[kind]:
        if getattr(arguments, name):
            raise DataError(f"expected nothing with {kind}", field=f"--{name}")
    if arguments.corpus:
        corpus_speed.run(arguments)
        return
    if arguments.backend == "encoder":
        encoder_speed.run(arguments)
        return
    repeats = arguments.repeats or 20
    folder = Path(arguments.checkpoint) if arguments.checkpoint else None
    if arguments.data:
        speed = measure(Path(arguments.data), folder, repeats)
    else:
        with TemporaryDirectory() as temporary:
            redundancybench.write(simulate(arguments.simulated, 0), Path(temporary))
            speed = measure(Path(temporary), folder, repeats)
    console = Console(width=None if Console().is_terminal else 120)
    console.print(_table(speed, Path(arguments.data).name if arguments.data else "simulated"))
    verdict = "within" if speed.ratio <= BAR else "over"
    print(f"features and prediction take {speed.ratio:.1f} times orjson.loads: {verdict} the bar of {BAR:.0f}")
    if speed.detect is not None:
        print(f"detection takes {speed.detect * 1000 / speed.trajectories:.2f} s per 1,000 trajectories on one core")
    if arguments.json:
        content = orjson.dumps(speed.to_dict(), option=orjson.OPT_INDENT_2) + b"\n"
        checkpoint.write_atomic(Path(arguments.json), content)


if __name__ == "__main__":
    run_cli(main)

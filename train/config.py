"""The settings of a training run. Each script has a YAML in configs/ with the same keys, each explained there."""

from __future__ import annotations

import inspect
import sys
from argparse import RawDescriptionHelpFormatter
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from typing import Any, Literal, NoReturn

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace

from stepsieve.data.errors import DataError
from stepsieve.models.scorer import BASELINES

TINY, INFINITY = 1e-9, float("inf")


@dataclass
class GbdtOptions:
    """Settings of the gbdt backend.

    Args:
        rounds: trees per class.
        learning_rate: shrinkage of each tree.
        leaves: leaves per tree at most.
        min_leaf: examples per leaf at least.
        feature_fraction: share of the features drawn for each tree.
        row_fraction: share of the examples drawn for each tree.
        l2: penalty on leaf values.
        threads: threads of LightGBM; the result does not depend on it. Trees as small as these gain nothing from a
            second, and lose much where it has to share its core.
    """

    rounds: int = 200
    learning_rate: float = 0.06
    leaves: int = 12
    min_leaf: int = 10
    feature_fraction: float = 0.3
    row_fraction: float = 0.8
    l2: float = 2.0
    threads: int = 1

    def __post_init__(self) -> None:
        _check(self, "gbdt", rounds=(1, INFINITY), leaves=(2, 131072), min_leaf=(0, INFINITY), l2=(0, INFINITY))
        _check(self, "gbdt", learning_rate=(TINY, INFINITY), feature_fraction=(TINY, 1), row_fraction=(TINY, 1))
        _check(self, "gbdt", threads=(1, 1024))


@dataclass
class LinearOptions:
    """Settings of the linear backend.

    Args:
        c: inverse strength of the L2 penalty.
    """

    c: float = 0.3

    def __post_init__(self) -> None:
        _check(self, "linear", c=(TINY, INFINITY))


@dataclass
class Stage:
    """How the encoder is trained on one source of examples.

    Args:
        tune: what is trained: the scorer alone over the frozen encoder, a low-rank adapter too (lora), or all of it
            (full); none leaves the stage out.
        epochs: passes over the examples at most.
        rate: greatest learning rate; it rises over a tenth of the steps, then falls along a cosine.
        decay: weight decay of AdamW.
        batch_tokens: tokens of a batch, padding included.
        accumulate: batches whose gradients make one step.
        patience: epochs without a better validation loss before it stops.
    """

    tune: Literal["none", "scorer", "lora", "full"] = "scorer"
    epochs: int = 1
    rate: float = 1e-3
    decay: float = 0.01
    batch_tokens: int = 8192
    accumulate: int = 1
    patience: int = 2

    def __post_init__(self) -> None:
        _check(self, "encoder", epochs=(1, INFINITY), rate=(TINY, INFINITY), decay=(0, INFINITY))
        _check(self, "encoder", batch_tokens=(64, INFINITY), accumulate=(1, INFINITY), patience=(0, INFINITY))


@dataclass
class EncoderOptions:
    """Settings of the encoder and fusion backends.

    Args:
        base: the encoder to start from: minilm (no download), a folder, or an id of the hub; auto: minilm on a CPU, a
            ModernBERT on a GPU.
        window: tokens of a state; the rest of a run is left out, the least relevant first.
        rank: rank of the low-rank adapter.
        precision: float32, bf16 or fp16; auto: bf16 or fp16 on a GPU.
        start: a checkpoint whose encoder is trained on, in the place of pretraining.
        simulated: simulated runs to pretrain on; others than those that join the training sets.
        pretrain: training on simulated runs, once.
        finetune: training on the runs of a training set.
    """

    base: str = "auto"
    window: int = 256
    rank: int = 16
    precision: Literal["auto", "float32", "bf16", "fp16"] = "auto"
    start: str | None = None
    simulated: int = 300
    pretrain: Stage = field(default_factory=lambda: Stage("lora", epochs=1, rate=1e-3))
    finetune: Stage = field(default_factory=lambda: Stage("scorer", epochs=30, batch_tokens=2048, patience=6))

    def __post_init__(self) -> None:
        _check(self, "encoder", window=(32, 8192), simulated=(1, INFINITY), rank=(1, 1024))


@dataclass
class TrainConfig:
    """Settings of a training run.

    Args:
        data: what to measure on and, unless train is given, to train on: a corpus (folder or file), or "simulated".
        train: train on this corpus alone, a folder, a file or "simulated"; data is then for testing only.
        split: how to divide the data; several names, as in "[human-cv, auto-cv]", are measured one after another. By
            default the cross-validations that the corpus allows.
        backend: which model to train.
        baselines: measure the simpler models beside it.
        out: folder to write the checkpoint, metrics.json and report.md to.
        seed: decides the simulation, the folds, the models and the intervals.
        folds: number of folds of the cross-validations.
        inner_folds: folds inside a training set on which its model is calibrated.
        simulated: number of trajectories to simulate where data or train is "simulated".
        augment: simulated trajectories added to every training set of a real corpus; 0 for none.
        min_precision: detect for safe pruning: return only steps above the cutoff at which this share of redundant
            steps was reached on held-out folds with 95% certainty. Without it the cutoff is the best for the metric.
        wrong_stops: stop as early as this share of wrongly stopped runs allows, by held-out folds.
        on_error: what to do with a trajectory that can't be used: stop, or report it, count it and go on.
        wandb: log metrics to Weights & Biases; offline needs no key.
        device: where an encoder computes: cpu, cuda, mps or auto.
        gbdt: settings of the gbdt backend.
        linear: settings of the linear backend.
        encoder: settings of the encoder and fusion backends.
    """

    data: str = "simulated"
    train: str | None = None
    split: str | list[str] | None = None
    backend: Literal["gbdt", "encoder", "fusion", "linear", "rules", "majority"] = "gbdt"
    baselines: bool = True
    out: str = "runs/cls"
    seed: int = 0
    folds: int = 5
    inner_folds: int = 3
    simulated: int = 400
    augment: int = 800
    min_precision: float | None = None
    wrong_stops: float = 0.05
    on_error: Literal["raise", "skip"] = "raise"
    wandb: Literal["off", "offline", "online"] = "off"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    gbdt: GbdtOptions = field(default_factory=GbdtOptions)
    linear: LinearOptions = field(default_factory=LinearOptions)
    encoder: EncoderOptions = field(default_factory=EncoderOptions)

    def __post_init__(self) -> None:
        _check(self, "", seed=(0, 2**31 - 1), folds=(2, INFINITY), inner_folds=(1, INFINITY))
        if self.min_precision is not None:
            _check(self, "", min_precision=(0, 1))
        _check(self, "", wrong_stops=(0, 1))
        _check(self, "", simulated=(0, INFINITY), augment=(0, INFINITY))

    @property
    def splits(self) -> list[str]:
        """The names of the splits asked for; none where the corpus decides."""
        return [self.split] if isinstance(self.split, str) else list(self.split or ())

    @property
    def backends(self) -> list[str]:
        """What is measured, the model to train last."""
        others = {"fusion": ("gbdt", "encoder"), "encoder": ("gbdt",)}.get(self.backend, ())
        return [name for name in (*BASELINES, *others) if self.baselines and name != self.backend] + [self.backend]

    def options(self, backend: str) -> dict[str, Any]:
        """Constructor options of a backend."""
        settings: dict[str, GbdtOptions | LinearOptions] = {
            "gbdt": self.gbdt,
            "fusion": self.gbdt,
            "linear": self.linear,
        }
        return asdict(settings[backend]) if backend in settings else {}


class _Help(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Descriptions keep their lines, which show how a script is called."""


class _Parser(ArgumentParser):
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """One line, as for every other bad input."""
        raise DataError(f"{message} (see {self.prog} --help)")


def _check(settings: object, group: str, **bounds: tuple[float, float]) -> None:
    """Raises DataError where a setting is outside its bounds, both included; NaN always is."""
    for name, (low, high) in bounds.items():
        value = getattr(settings, name)
        if not low <= value <= high:
            wanted = ("above 0" if low == TINY else f"from {low:,}") + ("" if high == INFINITY else f" to {high:,}")
            raise DataError(f"expected a number {wanted}, found {value}", field=".".join(filter(None, (group, name))))


def _with_underscores(argument: str) -> str:
    """``--min-precision`` as ``--min_precision``: both spellings of a key are taken."""
    name, equals, value = argument.partition("=")
    return name.replace("-", "_").replace("__", "--", 1) + equals + value if name.startswith("--") else argument


def parse(script: str, description: str | None, arguments: list[str] | None = None) -> TrainConfig:
    """Settings from ``configs/<script>.yaml``, then ``--config FILE``, then the command line, the last one winning.

    Raises:
        DataError: an unknown key, or a value that is none.
    """
    parser = _Parser(
        prog=f"train/{script}.py",
        description=inspect.cleandoc(description or ""),
        formatter_class=_Help,
        default_config_files=[str(files("stepsieve.configs").joinpath(f"{script}.yaml"))],
    )
    parser.add_argument("--config", action="config", help="a YAML file with any of the keys below")
    parser.add_class_arguments(TrainConfig)
    given = sys.argv[1:] if arguments is None else arguments
    settings = parser.instantiate(parser.parse_args([_with_underscores(argument) for argument in given]))
    values = vars(settings) if isinstance(settings, Namespace) else dict(settings)
    names = TrainConfig.__dataclass_fields__
    return TrainConfig(**{name: value for name, value in values.items() if name in names})

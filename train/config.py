"""The settings of a training run. Each script has a YAML in configs/ with the same keys, each explained there."""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from typing import Any, Literal

from jsonargparse import ArgumentParser, Namespace


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
        threads: threads of LightGBM; the result does not depend on it.
    """

    rounds: int = 150
    learning_rate: float = 0.06
    leaves: int = 12
    min_leaf: int = 5
    feature_fraction: float = 0.4
    row_fraction: float = 0.8
    l2: float = 1.0
    threads: int = 2


@dataclass
class LinearOptions:
    """Settings of the linear backend.

    Args:
        c: inverse strength of the L2 penalty.
    """

    c: float = 0.3


@dataclass
class TrainConfig:
    """Settings of a training run.

    Args:
        data: what to measure on and, unless train is given, to train on: a corpus (folder or file), or "simulated".
        train: train on this corpus alone, a folder, a file or "simulated"; data is then for testing only.
        split: how to divide the data; several names are measured one after another. By default the cross-validations
            that the corpus allows.
        backend: which model to train; the baselines (majority, rules, linear) are measured beside it.
        out: folder to write the checkpoint, metrics.json and report.md to.
        seed: decides the simulation, the folds, the models and the intervals.
        folds: number of folds of the cross-validations.
        inner_folds: folds inside a training set on which its model is calibrated.
        simulated: number of trajectories to simulate where data or train is "simulated".
        augment: simulated trajectories added to every training set of a real corpus; 0 for none.
        augment_weight: weight of a simulated example there, against 1 for a real one.
        on_error: what to do with a trajectory that can't be used: stop, or report it, count it and go on.
        wandb: log metrics to Weights & Biases; offline needs no key.
        gbdt: settings of the gbdt backend.
        linear: settings of the linear backend.
    """

    data: str = "simulated"
    train: str | None = None
    split: list[str] | None = None
    backend: Literal["gbdt", "linear", "rules", "majority"] = "gbdt"
    out: str = "runs/cls"
    seed: int = 0
    folds: int = 5
    inner_folds: int = 3
    simulated: int = 400
    augment: int = 400
    augment_weight: float = 1.0
    on_error: Literal["raise", "skip"] = "raise"
    wandb: Literal["off", "offline", "online"] = "off"
    gbdt: GbdtOptions = field(default_factory=GbdtOptions)
    linear: LinearOptions = field(default_factory=LinearOptions)

    def options(self, backend: str) -> dict[str, Any]:
        """Constructor options of a backend."""
        settings = {"gbdt": self.gbdt, "linear": self.linear}.get(backend)
        return asdict(settings) if settings is not None else {}


def parse(script: str, description: str | None, arguments: list[str] | None = None) -> TrainConfig:
    """Settings from ``configs/<script>.yaml``, then ``--config FILE``, then the command line, the last one winning."""
    parser = ArgumentParser(
        prog=f"train/{script}.py",
        description=inspect.cleandoc(description or ""),
        default_config_files=[str(files("stepsieve.configs").joinpath(f"{script}.yaml"))],
    )
    parser.add_argument("--config", action="config", help="a YAML file with any of the keys below")
    parser.add_class_arguments(TrainConfig)
    settings = parser.instantiate_classes(parser.parse_args(arguments))
    values = vars(settings) if isinstance(settings, Namespace) else dict(settings)
    names = TrainConfig.__dataclass_fields__
    return TrainConfig(**{name: value for name, value in values.items() if name in names})

"""All thresholds of the evaluator. ``configs/stagewise.yaml`` has the same keys, each explained there."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path

from jsonargparse import ArgumentParser
from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, PositiveFloat, PositiveInt

from stepsieve.data.errors import DataError

CONFIG = "stagewise.yaml"


@dataclass(frozen=True)
class Policy:
    """Which tier judges the next stage.

    Args:
        confident_margin: how far a stage must score above the pass threshold for the next one to be judged cheaply.
        confident_uncertainty: the uncertainty that no dimension may exceed for that.
        expensive_below: a dimension that scored less is judged by a specialist.
        raise_below: a dimension that scored less is judged one tier above the base.
        raise_uncertainty: a dimension that is at least so uncertain is judged one tier above the base.
    """

    confident_margin: ClosedUnitInterval = 0.05
    confident_uncertainty: ClosedUnitInterval = 0.20
    expensive_below: ClosedUnitInterval = 0.40
    raise_below: ClosedUnitInterval = 0.60
    raise_uncertainty: ClosedUnitInterval = 0.45


@dataclass(frozen=True)
class Stops:
    """When a run is ended.

    Args:
        fatal_severity: a call on a minefield of at least this severity ends the run before it has a result.
        broken_calls: so many ill-formed calls in a row end it.
        low_score: a stage that scores less counts as low.
        low_stages: so many low stages in a row end it.
        stagnation: so many closed actions in a row that settle no milestone end it.
    """

    fatal_severity: ClosedUnitInterval = 0.95
    broken_calls: PositiveInt = 3
    low_score: ClosedUnitInterval = 0.40
    low_stages: PositiveInt = 2
    stagnation: PositiveInt = 16


@dataclass(frozen=True)
class Candidates:
    """How many candidate graphs a model is asked for.

    Args:
        wanted: valid candidates to stop at.
        batches: requests at most.
    """

    wanted: PositiveInt = 6
    batches: PositiveInt = 4


@dataclass(frozen=True)
class EndpointSettings:
    """An OpenAI-compatible endpoint. The key comes from the environment variable ``OPENAI_API_KEY``.

    Args:
        base_url: its address; without one, only recorded replies are used.
        model: the model to ask.
        cache: folder of recorded replies; new ones are added to it.
        timeout: seconds to wait for a reply.
    """

    base_url: str | None = None
    model: str = ""
    cache: str = "runs/stagewise/replies"
    timeout: PositiveFloat = 120.0


@dataclass(frozen=True)
class Settings:
    """Settings of stage-wise evaluation.

    Args:
        pass_threshold: how well a call must match a milestone to settle it.
        alpha: how much a low score raises a dimension's weight.
        beta: how much uncertainty raises it.
        dynamic_weights: move the weights of the dimensions from stage to stage.
        dynamic_tiers: choose the tier of each dimension from the stage before; without it all are judged cheaply.
        stopping: end a run where a criterion says so; without it every run is reviewed to its end.
        policy: thresholds of the tiers.
        stops: thresholds of the stops.
        candidates: limits on asking for candidate graphs.
        endpoint: where models are asked.
    """

    pass_threshold: ClosedUnitInterval = 0.80
    alpha: NonNegativeFloat = 1.0
    beta: NonNegativeFloat = 1.0
    dynamic_weights: bool = True
    dynamic_tiers: bool = True
    stopping: bool = True
    policy: Policy = field(default_factory=Policy)
    stops: Stops = field(default_factory=Stops)
    candidates: Candidates = field(default_factory=Candidates)
    endpoint: EndpointSettings = field(default_factory=EndpointSettings)


def read(path: str | None = None) -> Settings:
    """The settings of ``configs/stagewise.yaml``, changed by those of another YAML file.

    Raises:
        DataError: no such file, an unknown key, a value of another type.
    """
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_class_arguments(Settings)
    given = [str(files("stepsieve.configs").joinpath(CONFIG)), *([] if path is None else [path])]
    if path is not None and not Path(path).is_file():
        raise DataError("expected a file that can be read", file=path)
    try:
        made = vars(parser.instantiate(parser.parse_args([f"--config={file}" for file in given])))
    except Exception as error:
        raise DataError(f"expected the keys of {CONFIG}, found an error: {error}", file=path) from None
    return Settings(**{field.name: made[field.name] for field in fields(Settings)})

"""What requests take: tokens, seconds, and dollars by a table of prices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from stepsieve.data.errors import DataError
from stepsieve.data.jsonio import expect

_BYTES = 4
"""About so many bytes of English text or JSON make a token."""
_MILLION = 1_000_000


@dataclass(frozen=True)
class Usage:
    """What one or several requests took.

    Attributes:
        requests: how many were answered.
        prompt, cached, completion: tokens as the endpoint counts them; cached ones are part of the prompt.
        seconds: from sending to the whole reply, waits for another try included.
        estimated: how many of the requests came back without counts, so that their tokens are estimated here.
    """

    requests: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    seconds: float = 0.0
    estimated: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})

    def to_dict(self, price: Price | None) -> dict[str, Any]:
        """For JSON, with the dollars; None where the price is not known."""
        record = {**asdict(self), "seconds": round(self.seconds, 3)}
        return {**record, "dollars": None if price is None else round(price.of(self), 8)}


def total(usages: Iterable[Usage]) -> Usage:
    """What they took together; the seconds are a sum, of requests that may have run side by side."""
    return sum(usages, Usage())


@dataclass(frozen=True)
class Price:
    """US dollars per million tokens. ``cached`` is what a part of the prompt costs that the endpoint had kept."""

    input: float
    output: float
    cached: float

    def of(self, usage: Usage) -> float:
        """US dollars."""
        fresh = usage.prompt - usage.cached
        spent = fresh * self.input + usage.cached * self.cached + usage.completion * self.output
        return spent / _MILLION


def read_prices(path: Path | None = None) -> dict[str, Price]:
    """Prices by model, from a YAML file; without one those of ``configs/prices.yaml``.

    Raises:
        DataError: no such file, or something in it that is no price.
    """
    source = path or Path(str(files("stepsieve.configs").joinpath("prices.yaml")))
    try:
        table = yaml.safe_load(source.read_text(encoding="utf-8"))
        records = expect(table, dict, "prices by model", "prices")
        return {str(name): _price(record, str(name)) for name, record in records.items()}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"expected YAML, found an error: {error}", file=source) from None
    except DataError as error:
        raise error.at(file=source) from None


def _price(record: object, name: str) -> Price:
    numbers = expect(record, dict, "a price such as {input: 1, output: 4}", name)
    unknown = sorted(str(key) for key in numbers if key not in ("input", "output", "cached"))
    if unknown:
        raise DataError(f"expected input, output and cached, found {unknown[0]!r}", field=name)
    for part in ("input", "output", *(("cached",) if "cached" in numbers else ())):
        value = expect(numbers.get(part), (int, float), "dollars per million tokens", f"{name}.{part}")
        if not 0 <= value < float("inf"):
            raise DataError(f"expected dollars per million tokens, found {value}", field=f"{name}.{part}")
    return Price(numbers["input"], numbers["output"], numbers.get("cached", numbers["input"]))


def price_of(model: str, prices: Mapping[str, Price]) -> Price | None:
    """The price of a model, by its name, also without its vendor (``vendor/model``) and the date at its end."""
    plain = model.rpartition("/")[2]
    undated = re.sub(r"[-@]\d{4}-?\d{2}-?\d{2}$", "", plain)
    return next((prices[name] for name in (model, plain, undated) if name in prices), None)


def estimate(text: str) -> int:
    """About how many tokens a text is, at four bytes each; no tokenizer is asked."""
    return -(-len(text.encode()) // _BYTES)

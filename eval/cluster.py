"""Scoring on Ray, on a laptop or a cluster: one actor per core, or per GPU where a head reads text.

The pieces that this process reads go to the actors in turn, and results come back in the same order, as those of the
processes in work.py do. A Ray Dataset would have to read in a task of its own, which sees no standard input, is fused
with an actor or merges pieces to large blocks unless told otherwise, and takes twice as long to start. Nodes need the
package and the same paths: the checkpoint, and files small enough to be read by whoever scores them.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

from stepsieve.data.errors import DataError, require
from stepsieve.eval.sources import Piece
from stepsieve.eval.work import Options, Predictor, Scored, cores, in_order

RETRIES = 3
"""So often a piece goes to a worker again when one died over it."""
EVERYWHERE = {"RAY_USAGE_STATS_ENABLED": "0"}
"""Environment that Ray reads: nothing is sent to its makers."""
ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Likewise, where Ray is started here: it listens to this machine alone, on every system as it always does on those."""


def score_on_ray(
    pieces: Iterable[Piece], options: Options, reads_text: bool, address: str | None, workers: int | None
) -> Generator[Scored, None, None]:
    """The results of the pieces, in order. What a worker had that died is scored again.

    Args:
        reads_text: the checkpoint has heads with an encoder.
        address: of a running cluster; None: ``$RAY_ADDRESS``, or else Ray is started here, for as long as this takes.
        workers: at most so many actors; None: as many as there are free cores, or GPUs.

    Raises:
        DataError: no Ray, no cluster at the address, no GPU where one is asked for, or workers that die and die again.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    with connected(address, workers) as ray:
        free = ray.available_resources() if address else ray.cluster_resources()
        own, room = share(free, options.device if reads_text else "cpu")
        options = replace(options, device="cuda" if own["num_gpus"] else "cpu")
        actor = ray.remote(max_restarts=-1, max_task_retries=RETRIES, **own)(_Scorer)
        actors = [actor.remote(options, os.getcwd()) for _ in range(min(workers or room, room))]
        turn = cycle(actors)

        def result(reference: Any) -> Scored:
            try:
                scored: Scored = ray.get(reference)
                return scored
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.RayError as error:
                reason = str(error).splitlines()[0]
                raise DataError(f"expected workers that live: {reason}; the same command goes on from here") from None

        yield from in_order(pieces, lambda piece: next(turn).piece.remote(piece), result, len(actors))


class _Scorer:
    """What an actor is. Its predictor is made with the first piece: what is wrong with it then is that one's result."""

    def __init__(self, options: Options, folder: str) -> None:
        """``folder``: what relative paths start from."""
        self._options, self._folder = options, folder
        self._predictor: Predictor | None = None

    def piece(self, piece: Piece) -> Scored:
        """Raises DataError: a file, or the checkpoint, is not on this node."""
        if self._predictor is None:
            with suppress(OSError):
                os.chdir(self._folder)
            self._predictor = Predictor(self._options)
        for item in piece.content:
            if isinstance(item, Path) and not item.exists():
                raise DataError(f"expected the file on each node, found none on {platform.node()}", file=item)
        return self._predictor.piece(piece)


def share(free: Mapping[str, float], device: str) -> tuple[dict[str, int], int]:
    """What an actor takes of a cluster, and for how many there is room.

    Raises:
        DataError: the device is cuda, and no GPU is free.
    """
    gpus = int(free.get("GPU", 0))
    if device == "cuda" and not gpus:
        raise DataError("expected a free GPU in the cluster, found none", field="--device")
    if device != "cpu" and gpus:
        return {"num_cpus": 1, "num_gpus": 1}, gpus
    return {"num_cpus": 1, "num_gpus": 0}, max(1, int(free.get("CPU", 0)))


@contextmanager
def connected(address: str | None, workers: int | None) -> Iterator[Any]:
    """Ray, connected to a cluster, or started on this machine alone; a connection that there is already stays.

    Raises:
        DataError: Ray is not installed, or nothing to connect to.
    """
    if address:
        _check(address)
    for name, value in (EVERYWHERE if address else EVERYWHERE | ALONE).items():
        os.environ.setdefault(name, value)
    ray = require("ray", "ray")
    if ray.is_initialized():
        yield ray
        return
    own = {} if address else {"num_cpus": workers or cores(), "include_dashboard": False}
    try:
        ray.init(address or "local", **own, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        where = f"a Ray cluster at {address!r}" if address else "Ray to start"
        raise DataError(f"expected {where}, found an error: {error}", field="--ray-address") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check(address: str) -> None:
    """Raises DataError where nothing listens at HOST:PORT: Ray itself would go on trying for many minutes."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError, OverflowError) as error:
        raise DataError(
            f"expected the HOST:PORT of a Ray cluster, found {address!r}: {error}", field="--ray-address"
        ) from None

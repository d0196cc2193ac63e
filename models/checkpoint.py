"""A checkpoint directory: ``manifest.json`` and one folder per head. No pickle, and nothing in it is executed.

The manifest holds versions, and for each head its backend, classes, feature schema, calibration and the sha256 of each
file; beside the heads the provenance (data, seed, settings) and the metrics measured when it was trained.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from stepsieve.data.errors import DataError
from stepsieve.models import calibrate
from stepsieve.models.scorer import Floats, Probabilities, Scorer, create

FORMAT = "stepsieve-checkpoint"
VERSION = 1


@dataclass(frozen=True)
class Head:
    """One trained task: a scorer, its calibration, and what its columns and classes mean.

    Attributes:
        task: "cls", "ret", ...
        backend: name of the scorer's backend.
        classes: what each column of the probabilities means.
        features: names of the feature columns, in order.
        schema: hash of the feature schema that the scorer was trained on.
    """

    task: str
    backend: str
    scorer: Scorer
    calibration: calibrate.Temperature
    classes: tuple[str, ...]
    features: tuple[str, ...]
    schema: str
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def predict(self, features: Floats) -> Probabilities:
        """Calibrated probabilities (n, n_classes) from features (n, n_features) float32."""
        if features.shape[1] != len(self.features):
            raise ValueError(f"head {self.task} takes {len(self.features)} features, found {features.shape[1]}")
        if not len(features):
            return np.zeros((0, len(self.classes)))
        return self.calibration.transform(self.scorer.predict_proba(features))


def save(folder: Path, head: Head, metrics: Mapping[str, Any]) -> Path:
    """Write a head into a checkpoint, beside the heads that are there already. Atomic: all of it, or as it was.

    Returns:
        the folder of the head, ``folder/<task>``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    manifest = _read_manifest(folder) if (folder / "manifest.json").exists() else _empty_manifest()
    target, fresh = folder / head.task, folder / f".{head.task}.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    head.scorer.save(fresh)
    manifest["heads"][head.task] = {
        "backend": head.backend,
        "classes": list(head.classes),
        "features": list(head.features),
        "schema": head.schema,
        "calibration": head.calibration.to_dict(),
        "files": {path.name: _sha256(path) for path in sorted(fresh.iterdir())},
        "provenance": dict(head.provenance),
        "metrics": dict(metrics),
    }
    shutil.rmtree(target, ignore_errors=True)
    os.replace(fresh, target)
    write_atomic(folder / "manifest.json", orjson.dumps(manifest, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))
    return target


def load_head(folder: Path, task: str, schemas: Mapping[str, str]) -> Head:
    """Read one head of a checkpoint.

    Args:
        folder: the checkpoint directory.
        task: which head.
        schemas: task -> hash of the feature schema of this version.

    Raises:
        DataError: no checkpoint there, no such head, a file that was changed, or features of another version.
    """
    manifest = _read_manifest(folder)
    record = manifest["heads"].get(task)
    if record is None:
        raise DataError(f"expected a head {task!r}, found {sorted(manifest['heads'])}", file=folder / "manifest.json")
    if record["schema"] != schemas[task]:
        raise DataError(
            f"head {task!r} was trained on feature schema {record['schema']}, this version computes {schemas[task]}: "
            "train it again",
            file=folder / "manifest.json",
        )
    for name, digest in record["files"].items():
        path = folder / task / name
        if Path(name).name != name or not path.is_file() or _sha256(path) != digest:
            raise DataError("expected the file that the manifest names, found none or another", file=path)
    scorer = create(record["backend"], record["features"], len(record["classes"]))
    scorer.load(folder / task)
    calibration = calibrate.from_dict(record["calibration"])
    assert isinstance(calibration, calibrate.Temperature)
    return Head(
        task,
        record["backend"],
        scorer,
        calibration,
        tuple(record["classes"]),
        tuple(record["features"]),
        record["schema"],
        record["provenance"],
    )


def group_digest(group: tuple[str, str]) -> str:
    """A short hash of a (domain, task) group: a manifest can say which tasks it was trained on without naming them."""
    return hashlib.sha256("\n".join(group).encode()).hexdigest()[:10]


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        fresh.write_bytes(content)
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def _empty_manifest() -> dict[str, Any]:
    return {"format": FORMAT, "version": VERSION, "heads": {}}


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    try:
        manifest = orjson.loads(path.read_bytes())
    except OSError:
        raise DataError("expected a checkpoint directory with manifest.json, found none", file=folder) from None
    except orjson.JSONDecodeError:
        raise DataError("expected JSON", file=path) from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
        raise DataError(f"expected format {FORMAT!r} version {VERSION}", file=path)
    heads: Any = manifest.get("heads")
    needed: Sequence[str] = ("backend", "classes", "features", "schema", "calibration", "files", "provenance")
    if not isinstance(heads, dict) or not all(isinstance(h, dict) and set(needed) <= set(h) for h in heads.values()):
        raise DataError(f"expected heads with {', '.join(needed)}", file=path, field="heads")
    return manifest


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

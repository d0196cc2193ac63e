"""A checkpoint directory: ``manifest.json``, one folder per head, and one per encoder that heads read text with.

No pickle, and nothing in it is executed.

The manifest holds versions, and for each head its backend, classes, feature schema, calibration and the sha256 of each
file; beside the heads the provenance (data, seed, settings) and the metrics measured when it was trained.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from stepsieve.data.errors import DataError
from stepsieve.models import calibrate
from stepsieve.models.scorer import Floats, Probabilities, Scorer, create

if TYPE_CHECKING:
    from stepsieve.models.encoder import Encoder

FORMAT = "stepsieve-checkpoint"
VERSION = 1
ENCODER = "encoder-"
"""How the folder of an encoder begins; a hash of its weights follows."""


@dataclass(frozen=True)
class Head:
    """One trained task: a scorer, its calibration, and what its columns and classes mean.

    Attributes:
        task: "cls", "ret", ...
        backend: name of the scorer's backend.
        classes: what each column of the probabilities means.
        features: names of the feature columns, in order.
        schema: hash of the feature schema that the scorer was trained on.
        provenance: what it was trained on and how.
        settings: what else the task needs at work, such as thresholds; JSON.
        encoder: what reads text for a head that takes its scores as columns; heads of one judge share one.
    """

    task: str
    backend: str
    scorer: Scorer
    calibration: calibrate.Temperature
    classes: tuple[str, ...]
    features: tuple[str, ...]
    schema: str
    provenance: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    encoder: Encoder | None = None

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
    encoder = {} if head.encoder is None else {"encoder": _save_encoder(folder, head.encoder, manifest["heads"])}
    target, fresh, old = (folder / name for name in (head.task, f".{head.task}.new", f".{head.task}.old"))
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    is_new = not target.exists()
    try:
        fresh.mkdir()
        head.scorer.save(fresh)
        manifest["heads"][head.task] = {**_record(head, fresh, metrics), **encoder}
        content = orjson.dumps(manifest, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
        if not is_new:
            os.replace(target, old)
        os.replace(fresh, target)
        write_atomic(folder / "manifest.json", content)
    except BaseException:
        # The manifest is the last to change: as long as it is the old one, the old head goes with it.
        if is_new or old.exists():
            shutil.rmtree(target, ignore_errors=True)
        if old.exists():
            os.replace(old, target)
        raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    used = {record.get("encoder", {}).get("folder") for record in manifest["heads"].values()}
    for other in folder.glob(f"{ENCODER}*"):
        if other.name not in used:
            shutil.rmtree(other, ignore_errors=True)
    return target


def _save_encoder(folder: Path, encoder: Encoder, records: Mapping[str, Any]) -> dict[str, Any]:
    """Write an encoder into a folder of its own, named by its weights; what the manifest says of it.

    A folder of this name is kept as it is only where its files are those that a head's record has; otherwise it is
    written again, and the records of the heads that read with it are brought up to date.
    """
    target = folder / f"{ENCODER}{encoder.fingerprint()}"
    found = {"folder": target.name, "files": _digests(target)}
    own = [record for record in records.values() if record.get("encoder", {}).get("folder") == target.name]
    if found in [record["encoder"] for record in own]:
        return found
    fresh = folder / f".{target.name}.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    encoder.save(fresh)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(fresh, target)
    found["files"] = _digests(target)
    for record in own:
        record["encoder"] = found
    return found


def _record(head: Head, folder: Path, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What the manifest says of a head whose files lie in ``folder``."""
    return {
        "backend": head.backend,
        "classes": list(head.classes),
        "features": list(head.features),
        "schema": head.schema,
        "calibration": head.calibration.to_dict(),
        "files": _digests(folder),
        "provenance": dict(head.provenance),
        "settings": dict(head.settings),
        "metrics": dict(metrics),
    }


def head_names(folder: Path, known: Container[str]) -> list[str]:
    """The heads of a checkpoint that are known, by name.

    Raises:
        DataError: no checkpoint there, or none of its heads is known.
    """
    return _known(folder, _read_manifest(folder)["heads"], known)


def _known(folder: Path, records: Mapping[str, Any], known: Container[str]) -> list[str]:
    names = sorted(name for name in records if name in known)
    if not names:
        raise DataError(f"expected a head of this version, found {sorted(records)}", file=folder / "manifest.json")
    return names


def load_heads(folder: Path, schemas: Mapping[str, str], device: str = "auto") -> dict[str, Head]:
    """Read the heads of a checkpoint; those that read text share their encoder, on a device.

    Args:
        folder: the checkpoint directory.
        schemas: task -> hash of the feature schema of this version.

    Raises:
        DataError: no checkpoint there, none of its heads is known, a file that was changed, features of another
            version, or no such device.
    """
    records = _read_manifest(folder)["heads"]
    heads = {task: _checked_head(folder, records, task, schemas) for task in _known(folder, records, schemas)}
    encoders: dict[str, Encoder] = {}
    for task, head in heads.items():
        record = records[task].get("encoder")
        if record is not None:
            name = str(record.get("folder"))
            if name not in encoders:
                encoders[name] = _read_encoder(folder, record, device)
            heads[task] = replace(head, encoder=encoders[name])
    return heads


def load_encoder(folder: Path, device: str = "auto") -> Encoder:
    """Read the encoder of a checkpoint.

    Raises:
        DataError: no checkpoint there, no encoder in it, or a file that was changed.
    """
    for record in _read_manifest(folder)["heads"].values():
        if "encoder" in record:
            return _read_encoder(folder, record["encoder"], device)
    raise DataError("expected a checkpoint with an encoder", file=folder)


def _read_encoder(folder: Path, record: Mapping[str, Any], device: str) -> Encoder:
    from stepsieve.models.encoder import Encoder, pick_device

    name = str(record.get("folder"))
    if Path(name).name != name or not name.startswith(ENCODER):
        raise DataError(f"expected the folder of an encoder, found {name!r}", file=folder / "manifest.json")
    for file, digest in record["files"].items():
        path = folder / name / file
        inside = ".." not in Path(file).parts and not Path(file).is_absolute()
        if not inside or not path.is_file() or _sha256(path) != digest:
            wrong = f"expected the file {file!r} as the manifest has it, found none or another"
            raise DataError(wrong, file=folder / name)
    return Encoder.load(folder / name).to(pick_device(device))


def load_head(folder: Path, task: str, schemas: Mapping[str, str]) -> Head:
    """Read one head of a checkpoint, without its encoder.

    Args:
        folder: the checkpoint directory.
        task: which head.
        schemas: task -> hash of the feature schema of this version.

    Raises:
        DataError: no checkpoint there, no such head, a file that was changed, or features of another version.
    """
    return _checked_head(folder, _read_manifest(folder)["heads"], task, schemas)


def _checked_head(folder: Path, records: Mapping[str, Any], task: str, schemas: Mapping[str, str]) -> Head:
    record = records.get(task)
    if record is None:
        raise DataError(f"expected a head {task!r}, found {sorted(records)}", file=folder / "manifest.json")
    if record["schema"] != schemas[task]:
        raise DataError(
            f"head {task!r} was trained on feature schema {record['schema']}, this version computes {schemas[task]}: "
            "train it again",
            file=folder / "manifest.json",
        )
    try:
        return _read_head(folder / task, task, record)
    except DataError as error:
        raise error.at(file=folder / task) from None
    except Exception as error:
        # Hashes that match say nothing of who wrote the files: whatever a reader trips over is bad input.
        raise DataError(f"expected a head as save writes it, found an error: {error}", file=folder / task) from None


def _read_head(folder: Path, task: str, record: Mapping[str, Any]) -> Head:
    for name, digest in record["files"].items():
        path = folder / name
        if Path(name).name != name or not path.is_file() or _sha256(path) != digest:
            raise DataError(f"expected the file {name!r} as the manifest has it, found none or another", file=folder)
    scorer = create(record["backend"], record["features"], len(record["classes"]))
    scorer.load(folder)
    calibration = calibrate.from_dict(record["calibration"])
    if not isinstance(calibration, calibrate.Temperature):
        raise ValueError(f"expected a temperature, found {record['calibration']['kind']}")
    return Head(
        task,
        record["backend"],
        scorer,
        calibration,
        tuple(record["classes"]),
        tuple(record["features"]),
        record["schema"],
        record["provenance"],
        record.get("settings", {}),
    )


def group_digest(group: tuple[str, str]) -> str:
    """A short hash of a (domain, task) group: a manifest can say which tasks it was trained on without naming them."""
    return hashlib.sha256("\n".join(group).encode()).hexdigest()[:10]


def size(heads: Mapping[str, Head]) -> int:
    """Bytes that heads take on disk, an encoder that they share once."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for head in heads.values():
            save(folder, head, {})
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


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


def _digests(folder: Path) -> dict[str, str]:
    """The sha256 of each file below a folder, by its path there; of none where there is no folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _sha256(path) for path in paths}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

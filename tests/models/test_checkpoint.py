"""Checkpoints: what is written is read back; whatever else lies there is one line of error; nothing is executed."""

import hashlib
import pickle
from dataclasses import replace

import numpy as np
import orjson
import pytest

from stepsieve.data.errors import DataError
from stepsieve.models import checkpoint
from stepsieve.models.calibrate import Temperature
from stepsieve.models.checkpoint import Head, load_head, save
from stepsieve.models.scorer import create

NAMES = ("a.one", "a.two", "a.three")
CLASSES = ("x", "y", "z")
SCHEMAS = {"cls": "0123", "det": "4567"}
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(60, 3)).astype(np.float32)
LABELS = np.arange(60) % 3


def head(backend="linear", task="cls", seed=0):
    options = {"rounds": 3, "threads": 1} if backend == "gbdt" else {}
    scorer = create(backend, NAMES, len(CLASSES), seed, **options)
    scorer.fit(FEATURES, LABELS, np.ones(60))
    return Head(task, backend, scorer, Temperature(2.0), CLASSES, NAMES, SCHEMAS[task], {"seed": seed})


class Failing:
    """A scorer that writes half of itself."""

    def save(self, folder):
        (folder / "half").write_text("half")
        raise OSError("no space left")


def manifest(folder):
    return orjson.loads((folder / "manifest.json").read_bytes())


def rewrite(folder, **changes):
    """Change the record of head cls in the manifest, and keep the hashes true."""
    record = manifest(folder)
    record["heads"]["cls"].update(changes)
    (folder / "manifest.json").write_bytes(orjson.dumps(record))


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fails(folder, task="cls", schemas=SCHEMAS):
    with pytest.raises(DataError) as caught:
        load_head(folder, task, schemas)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("backend", ["majority", "linear", "gbdt"])
def test_a_head_is_read_back_as_it_was(backend, tmp_path):
    saved = head(backend)
    assert save(tmp_path, saved, {"cv": {}}) == tmp_path / "cls"
    loaded = load_head(tmp_path, "cls", SCHEMAS)
    np.testing.assert_array_equal(loaded.predict(FEATURES), saved.predict(FEATURES))
    np.testing.assert_allclose(loaded.predict(FEATURES).sum(axis=1), 1)
    assert replace(loaded, scorer=saved.scorer) == saved
    assert loaded.predict(FEATURES[:0]).shape == (0, 3)
    with pytest.raises(ValueError, match="3 features"):
        loaded.predict(FEATURES[:, :2])


def test_heads_stand_beside_each_other_and_are_replaced_one_by_one(tmp_path):
    save(tmp_path, head(), {})
    save(tmp_path, head(task="det"), {})
    before = content(tmp_path / "det")
    save(tmp_path, head("gbdt"), {})
    assert sorted(manifest(tmp_path)["heads"]) == ["cls", "det"]
    assert content(tmp_path / "det") == before
    assert load_head(tmp_path, "cls", SCHEMAS).backend == "gbdt"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cls", "det", "manifest.json"]
    assert [path.name for path in (tmp_path / "cls").iterdir()] == ["model.txt"]


def test_the_same_head_is_written_as_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        save(tmp_path / name, head("gbdt"), {"cv": 1})
    assert content(tmp_path / "a") == content(tmp_path / "b")


@pytest.mark.parametrize("there", [True, False])
def test_a_save_that_fails_leaves_what_was_there(there, tmp_path, monkeypatch):
    if there:
        save(tmp_path, head(), {})
    before = content(tmp_path)
    with pytest.raises(OSError, match="no space"):
        save(tmp_path, replace(head(), scorer=Failing()), {})
    with pytest.raises(TypeError):
        save(tmp_path, replace(head(), provenance={"not": object()}), {})

    def full(path, content):
        raise OSError("no space left")

    monkeypatch.setattr(checkpoint, "write_atomic", full)
    with pytest.raises(OSError, match="no space"):
        save(tmp_path, head("gbdt"), {})
    assert content(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == (["cls", "manifest.json"] if there else [])


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "metrics.json"
    checkpoint.write_atomic(path, b"old")
    with pytest.raises(TypeError):
        checkpoint.write_atomic(path, "text")
    assert content(tmp_path) == {"metrics.json": b"old"}


# --- an encoder ------------------------------------------------------------------------------------------------------


@pytest.fixture
def reading(tiny_base):
    """Heads that share an encoder, by task."""
    from stepsieve.models.encoder import Encoder

    encoder = Encoder.from_base(tiny_base, window=40)
    return {task: replace(head("majority", task), encoder=encoder) for task in SCHEMAS}


def append(path):
    path.write_bytes(path.read_bytes() + b" ")


@pytest.mark.parametrize(
    "spoil",
    [append, lambda path: path.unlink(), lambda path: path.with_name("more").write_text("more")],
    ids=["changed", "missing", "one more"],
)
def test_an_encoder_that_is_not_as_it_was_is_written_again(spoil, reading, tmp_path):
    save(tmp_path, reading["cls"], {})
    whole = content(tmp_path)
    (folder,) = tmp_path.glob("encoder-*")
    spoil(folder / "scorer.safetensors")
    save(tmp_path, reading["det"], {})
    found = content(tmp_path)
    assert {name: found[name] for name in whole if name != "manifest.json"} == {
        name: own for name, own in whole.items() if name != "manifest.json"
    }
    assert f"{folder.name}/more" not in found
    heads = checkpoint.load_heads(tmp_path, SCHEMAS, "cpu")
    assert heads["cls"].encoder is heads["det"].encoder is not None
    assert {path.name for path in tmp_path.iterdir()} == {"cls", "det", "manifest.json", folder.name}


def test_what_lies_where_an_encoder_is_to_lie_is_not_taken_for_it(reading, tmp_path):
    (tmp_path / f"encoder-{reading['cls'].encoder.fingerprint()}").mkdir()
    save(tmp_path, reading["cls"], {})
    assert checkpoint.load_encoder(tmp_path, "cpu").fingerprint() == reading["cls"].encoder.fingerprint()


def test_an_encoder_written_by_another_version_stays_that_of_all_its_heads(reading, tmp_path):
    """Files can differ where the weights do not: records of heads that share them follow."""
    save(tmp_path, reading["cls"], {})
    (folder,) = tmp_path.glob("encoder-*")
    config = folder / "base" / "config.json"
    append(config)
    record = manifest(tmp_path)
    record["heads"]["cls"]["encoder"]["files"]["base/config.json"] = hashlib.sha256(config.read_bytes()).hexdigest()
    (tmp_path / "manifest.json").write_bytes(orjson.dumps(record))
    kept = config.read_bytes()
    save(tmp_path, reading["det"], {})
    assert config.read_bytes() == kept  # as a record has it
    append(config)
    save(tmp_path, reading["det"], {})
    assert config.read_bytes() == kept[:-1]
    assert sorted(checkpoint.load_heads(tmp_path, SCHEMAS, "cpu")) == ["cls", "det"]


# --- what is no checkpoint, or none any more -------------------------------------------------------------------------


def test_nothing_there(tmp_path):
    assert "manifest.json" in fails(tmp_path)
    assert "manifest.json" in fails(tmp_path / "missing")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"format": "other", "version": 1, "heads": {}}', "\ufffe"])
def test_a_manifest_of_something_else(text, tmp_path):
    (tmp_path / "manifest.json").write_text(text, encoding="utf-8")
    fails(tmp_path)
    with pytest.raises(DataError):
        save(tmp_path, head(), {})
    assert content(tmp_path) == {"manifest.json": text.encode()}


@pytest.mark.parametrize("heads", [[], {"cls": 3}, {"cls": {"backend": "linear"}}, None])
def test_a_manifest_without_proper_heads(heads, tmp_path):
    record = {"format": checkpoint.FORMAT, "version": checkpoint.VERSION, "heads": heads}
    (tmp_path / "manifest.json").write_bytes(orjson.dumps(record))
    fails(tmp_path)


def test_a_manifest_of_a_later_version(tmp_path):
    save(tmp_path, head(), {})
    (tmp_path / "manifest.json").write_bytes(orjson.dumps({**manifest(tmp_path), "version": checkpoint.VERSION + 1}))
    assert f"version {checkpoint.VERSION}" in fails(tmp_path)


def test_a_missing_head(tmp_path):
    save(tmp_path, head(), {})
    assert "'det'" in fails(tmp_path, "det")


def test_another_feature_schema(tmp_path):
    save(tmp_path, head(), {})
    assert "train it again" in fails(tmp_path, schemas={"cls": "9999"})


def test_a_changed_and_a_missing_file(tmp_path):
    save(tmp_path, head("gbdt"), {})
    model = tmp_path / "cls" / "model.txt"
    model.write_text(model.read_text().replace("leaf_value=", "leaf_value=1 ", 1))
    assert "model.txt" in fails(tmp_path)
    model.unlink()
    assert "model.txt" in fails(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"backend": "oracle"},
        {"backend": "os:system"},
        {"backend": "gbdt"},
        {"backend": ["linear"]},
        {"files": []},
        {"files": {"../manifest.json": "0"}},
        {"files": {"/etc/hostname": "0"}},
        {"calibration": {"kind": "oracle"}},
        {"calibration": {"kind": "temperature", "temperature": 0}},
        {"calibration": {"kind": "platt", "slope": 1, "intercept": 0}},
        {"calibration": None},
        {"classes": 3},
        {"features": None},
    ],
    ids=str,
)
def test_a_record_that_save_does_not_write(changes, tmp_path):
    save(tmp_path, head(), {})
    rewrite(tmp_path, **changes)
    fails(tmp_path)


@pytest.mark.parametrize(("backend", "file"), [("gbdt", "model.txt"), ("linear", "linear.safetensors"),
                                               ("majority", "majority.json")])  # fmt: skip
def test_a_model_that_is_none_though_its_hash_is_right(backend, file, tmp_path):
    save(tmp_path, head(backend), {})
    (tmp_path / "cls" / file).write_bytes(b"nonsense")
    rewrite(tmp_path, files={file: hashlib.sha256(b"nonsense").hexdigest()})
    fails(tmp_path)


def test_nothing_is_executed(tmp_path):
    """A pickle in place of every file of a head, with true hashes: loading fails, and the pickle does not run."""
    ran = tmp_path / "ran"

    class Bomb:
        def __reduce__(self):
            return (open, (str(ran), "w"))

    bomb = pickle.dumps(Bomb())
    for backend in ("gbdt", "linear", "majority"):
        save(tmp_path, head(backend), {})
        (path,) = (tmp_path / "cls").iterdir()
        assert not path.read_bytes().startswith(b"\x80")
        path.write_bytes(bomb)
        rewrite(tmp_path, files={path.name: hashlib.sha256(bomb).hexdigest()})
        fails(tmp_path)
    assert not ran.exists()
    pickle.loads(bomb).close()
    assert ran.exists()


def test_a_group_is_known_by_its_digest_alone():
    digests = {checkpoint.group_digest(group) for group in (("shop", "1"), ("shop", "2"), ("desk", "1"))}
    assert len(digests) == 3
    assert checkpoint.group_digest(("shop", "1")) in digests

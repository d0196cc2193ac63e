"""The commands as a user runs them: what --help says, what bad input looks like, what is left behind."""

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import orjson
import pytest

from stepsieve.train.config import GbdtOptions, LinearOptions, TrainConfig

ROOT = Path(__file__).parents[1]
SMALL = ("--simulated", "24", "--gbdt.rounds", "4", "--folds", "2", "--inner_folds", "2")


def run(*arguments, cwd, **environment):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "100", **environment},
    )


def cls(*arguments, cwd, **environment):
    return run(ROOT / "train" / "cls.py", *arguments, cwd=cwd, **environment)


def one_line(found, folder, *words):
    """Exit code 2, one line on stderr, and nothing written."""
    assert found.returncode == 2, found.stderr
    assert found.stdout == ""
    assert found.stderr.count("\n") == 1
    assert found.stderr.startswith("error: ")
    for word in words:
        assert word in found.stderr
    assert not (folder / "runs").exists()
    assert not (folder / "out").exists()


def test_help_explains_every_key(tmp_path):
    found = cls("--help", cwd=tmp_path)
    assert found.returncode == 0
    assert found.stderr == ""
    text = re.sub(r"\s+", " ", found.stdout)
    assert "python train/cls.py --data DIR --split human-cv" in text
    for group, settings in (("", TrainConfig), ("gbdt.", GbdtOptions), ("linear.", LinearOptions)):
        explained = dict(re.findall(r"^ +(\w+): (.+)$", settings.__doc__, re.MULTILINE))
        for field in fields(settings):
            if field.name in ("gbdt", "linear"):
                continue
            assert f"--{group}{field.name}" in text
            assert explained[field.name].rstrip(".") in text, field.name


def test_a_run_prints_a_table_and_the_hash_seed_changes_no_byte(tmp_path):
    runs = [cls(*SMALL, "--out", f"out{seed}", cwd=tmp_path, PYTHONHASHSEED=seed) for seed in ("1", "2")]
    for found in runs:
        assert found.returncode == 0, found.stderr
        assert found.stderr == ""
        for backend in ("majority", "rules", "linear", "gbdt"):
            assert re.search(rf"^cv +{backend} +0\.\d{{3}} \[0\.\d{{3}}, [01]\.\d{{3}}\]", found.stdout, re.MULTILINE)
    for name in ("metrics.json", "report.md", "cls/model.txt", "manifest.json"):
        assert (tmp_path / "out1" / name).read_bytes() == (tmp_path / "out2" / name).read_bytes()
    assert set(orjson.loads((tmp_path / "out1" / "metrics.json").read_bytes())) == {"cls"}


def test_data_that_is_not_there(tmp_path):
    one_line(cls("--data", "missing", cwd=tmp_path), tmp_path, "missing", "No such file")


def test_an_empty_folder(tmp_path):
    (tmp_path / "data").mkdir()
    one_line(cls("--data", "data", cwd=tmp_path), tmp_path, "data", "expected")


@pytest.mark.parametrize(
    ("content", "word"),
    [(b"not JSON", "JSON"), (b'{"answer": 42}', "formats")],
    ids=["text", "shape"],
)
def test_a_file_that_is_no_corpus(content, word, tmp_path):
    (tmp_path / "data.json").write_bytes(content)
    one_line(cls("--data", "data.json", cwd=tmp_path), tmp_path, "data.json", word)


def test_a_corpus_without_annotations(tmp_path):
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    (tmp_path / "data.json").write_bytes(orjson.dumps(chat))
    one_line(cls("--data", "data.json", cwd=tmp_path), tmp_path, "data.json", "annotated")


def test_a_split_that_there_is_not(tmp_path):
    one_line(cls(*SMALL, "--split", "nosuch", cwd=tmp_path), tmp_path, "human-cv", "'nosuch'")
    one_line(cls(*SMALL, "--split", "human-cv", cwd=tmp_path), tmp_path, "human subset")


@pytest.mark.parametrize("arguments", [("--gbdt.rounds", "many"), ("extra",)])
def test_a_setting_that_is_none(arguments, tmp_path):
    one_line(cls(*arguments, cwd=tmp_path), tmp_path, arguments[0].removeprefix("--"))


def test_an_out_that_cannot_be_a_folder(tmp_path):
    (tmp_path / "mine").write_text("mine")
    one_line(cls(*SMALL, "--out", "mine", cwd=tmp_path), tmp_path, "mine", "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]

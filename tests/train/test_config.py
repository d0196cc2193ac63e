"""Settings: each key once in the YAML, in the dataclass and in --help; the last source wins; bounds are kept."""

from dataclasses import asdict, fields
from importlib.resources import files

import pytest
import yaml

from stepsieve.data.errors import DataError
from stepsieve.train.config import EncoderOptions, GbdtOptions, LinearOptions, Stage, TrainConfig, parse

SCRIPTS = sorted(path.name.removesuffix(".yaml") for path in files("stepsieve.configs").iterdir()
                 if path.name.endswith(".yaml"))  # fmt: skip


def text_of(script):
    return files("stepsieve.configs").joinpath(f"{script}.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("script", [script for script in SCRIPTS if script in ("cls", "ret", "det")])
def test_the_yaml_has_every_key_in_order(script):
    written = yaml.safe_load(text_of(script))
    assert list(written) == [field.name for field in fields(TrainConfig)]
    assert list(written["gbdt"]) == [field.name for field in fields(GbdtOptions)]
    assert list(written["linear"]) == [field.name for field in fields(LinearOptions)]
    assert written["out"] == f"runs/{script}"
    assert list(written["encoder"]) == [field.name for field in fields(EncoderOptions)]
    for stage in ("pretrain", "finetune"):
        assert list(written["encoder"][stage]) == [field.name for field in fields(Stage)]
    assert parse(script, "", []).encoder.finetune.tune == written["encoder"]["finetune"]["tune"]


@pytest.mark.parametrize("script", [script for script in SCRIPTS if script != "prices"])  # a table, explained above it
def test_every_key_of_a_yaml_has_a_comment(script):
    for line in text_of(script).splitlines():
        assert not line or line.startswith("#") or line.endswith(":") or " # " in line, line


def test_the_yaml_of_cls_and_the_defaults_agree():
    assert yaml.safe_load(text_of("cls")) == asdict(TrainConfig())


def test_the_command_line_wins_over_a_file_and_a_file_over_the_defaults(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("seed: 5\nfolds: 3\ngbdt:\n  rounds: 7\n")
    found = parse("cls", "", ["--config", str(file), "--seed", "6", "--gbdt.leaves", "4"])
    assert (found.seed, found.folds, found.simulated) == (6, 3, 400)
    assert found.gbdt == GbdtOptions(rounds=7, leaves=4)
    assert found.linear == LinearOptions()


@pytest.mark.parametrize(
    ("given", "splits"),
    [([], []), (["--split", "human-cv"], ["human-cv"]), (["--split", "[human-cv, auto-cv]"], ["human-cv", "auto-cv"])],
)
def test_one_split_or_several(given, splits):
    assert parse("cls", "", given).splits == splits


@pytest.mark.parametrize(
    "given",
    [
        "--seed=-1", "--seed=abc", "--seed=4294967296", "--folds=1", "--inner_folds=0", "--simulated=-1",
        "--augment=-1", "--min_precision=2", "--backend=oracle", "--wandb=yes", "--on_error=ignore",
        "--nosuch=1", "--gbdt.nosuch=1", "--gbdt.rounds=0", "--gbdt.leaves=1", "--gbdt.learning_rate=0",
        "--gbdt.feature_fraction=0", "--gbdt.row_fraction=1.5", "--gbdt.threads=0", "--gbdt.l2=-1", "--linear.c=0",
        "--config=missing.yaml",
    ],
)  # fmt: skip
def test_what_is_no_setting_is_one_line(given):
    with pytest.raises(DataError) as caught:
        parse("cls", "", [given])
    assert "\n" not in str(caught.value)
    assert given[2:].partition("=")[0].split(".")[-1] in str(caught.value)


def test_options_of_a_backend():
    config = TrainConfig(gbdt=GbdtOptions(rounds=9))
    assert config.options("gbdt")["rounds"] == 9
    assert set(config.options("gbdt")) == {field.name for field in fields(GbdtOptions)}
    assert config.options("linear") == {"c": 0.3}
    assert config.options("rules") == {}

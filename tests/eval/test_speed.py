import re
import subprocess
import sys

import numpy as np
import orjson
import pytest

from stepsieve.data import redundancybench
from stepsieve.data.errors import DataError
from stepsieve.data.simulate import simulate
from stepsieve.eval.speed import measure
from stepsieve.models import checkpoint
from stepsieve.models.judge import CLS, DET, RET
from stepsieve.train.config import GbdtOptions, TrainConfig
from stepsieve.train.fit import Training


def speed(*arguments):
    command = [sys.executable, "-m", "stepsieve.eval.speed", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_every_part_is_timed(tmp_path):
    redundancybench.write(simulate(12, 0), tmp_path)
    found = measure(tmp_path, None, repeats=1)
    assert found.trajectories == 12
    assert found.steps > 0
    assert min(found.parse, found.read, found.features, found.predict) > 0
    assert found.detect is None
    assert "detect_s_per_1000" not in found.to_dict()
    assert found.ratio == pytest.approx((found.features + found.predict) / found.parse)
    assert found.megabytes == pytest.approx(sum(path.stat().st_size for path in tmp_path.rglob("*.json")) / 1e6)


def test_a_checkpoint_with_all_heads_is_timed_at_detection_too(tmp_path):
    redundancybench.write(simulate(12, 0), tmp_path / "data")
    config = TrainConfig(inner_folds=1, gbdt=GbdtOptions(rounds=3, threads=1))
    judge = Training(simulate(12, 1), (CLS, RET, DET), [], config).fit("gbdt", np.arange(12))
    for head in judge.heads.values():
        checkpoint.save(tmp_path / "all", head, {})
    checkpoint.save(tmp_path / "rest", judge.heads[DET], {})
    found = measure(tmp_path / "data", tmp_path / "all", repeats=1)
    assert found.detect > 0
    assert found.to_dict()["detect_s_per_1000"] == pytest.approx(found.detect * 1000 / 12)
    with pytest.raises(DataError, match="expected a checkpoint with the head 'cls'"):
        measure(tmp_path / "data", tmp_path / "rest")


def test_nothing_labelled_is_bad_input(tmp_path):
    runs = [run for run in simulate(30, 0) if not run.labels][:1]
    assert runs
    redundancybench.write(runs, tmp_path)
    with pytest.raises(DataError, match="expected labelled steps"):
        measure(tmp_path, None)


def test_the_command_prints_the_ratio(tmp_path):
    found = speed("--simulated", 12, "--repeats", 1, "--json", tmp_path / "speed.json")
    assert found.returncode == 0, found.stderr
    figures = orjson.loads((tmp_path / "speed.json").read_bytes())
    ratio = re.search(r"take (\d+\.\d) times orjson.loads", found.stdout)
    assert float(ratio[1]) == pytest.approx(figures["ratio"], abs=0.06)
    assert figures["trajectories"] == 12


@pytest.mark.parametrize("arguments", [("--data", "none"), ("--repeats", "0")])
def test_bad_input_is_one_line(tmp_path, arguments):
    found = subprocess.run(
        [sys.executable, "-m", "stepsieve.eval.speed", *arguments],
        capture_output=True, text=True, timeout=120, cwd=tmp_path,
    )  # fmt: skip
    assert found.returncode == 2
    assert found.stderr.startswith("error: ")
    assert found.stderr.count("\n") == 1

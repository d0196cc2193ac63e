"""What the tests of prediction share: a small trained judge as a checkpoint, a corpus, and the command at work."""

import sys
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import orjson
import pytest
from chat_endpoint import act, endpoint  # noqa: F401

from stepsieve.data.simulate import simulate
from stepsieve.eval import predict
from stepsieve.eval.corpus_speed import line
from stepsieve.eval.output import Output
from stepsieve.models import checkpoint
from stepsieve.models.calibrate import Temperature
from stepsieve.models.checkpoint import Head
from stepsieve.models.judge import CLS, DET, RET, SCHEMAS
from stepsieve.models.scorer import create
from stepsieve.train.config import GbdtOptions, TrainConfig
from stepsieve.train.fit import Training
from stepsieve.train.heads import HEADS


@pytest.fixture(scope="session")
def judge():
    config = TrainConfig(inner_folds=2, gbdt=GbdtOptions(rounds=6, learning_rate=0.4, threads=1))
    runs = simulate(50, seed=5)
    return Training(runs, (CLS, RET, DET), [], config).fit("gbdt", np.arange(len(runs)))


@pytest.fixture(scope="session")
def folder(judge, tmp_path_factory):
    """The judge as a checkpoint, with cutoffs that return something."""
    made = tmp_path_factory.mktemp("judge")
    cutoff = {"threshold": 0.3, "first": 0.0, "safe": 0.6, "prune": False}
    for task, head in judge.heads.items():
        own = replace(head, settings={**head.settings, "cutoff": cutoff}) if task == DET else head
        checkpoint.save(made, own, {})
    return made


@pytest.fixture(scope="session")
def runs():
    return simulate(40, seed=9)


@pytest.fixture(scope="session")
def corpus(runs, tmp_path_factory):
    file = tmp_path_factory.mktemp("corpus") / "runs.jsonl"
    file.write_bytes(b"".join(map(line, runs)))
    return file


@pytest.fixture(scope="session")
def few(runs, tmp_path_factory):
    """Three short runs: to read their text takes its time."""
    file = tmp_path_factory.mktemp("few") / "runs.jsonl"
    short = sorted((run for run in runs if len(run.steps) > 1), key=lambda run: len(run.messages))[:3]
    file.write_bytes(b"".join(map(line, short)))
    return file


@pytest.fixture
def cut(monkeypatch):
    """``with cut(n):`` what writes rows is interrupted after n pieces."""

    @contextmanager
    def after(n):
        add, left = Output.add, iter(range(n - 1))

        def interrupted(self, *arguments):
            add(self, *arguments)
            if next(left, None) is None:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Output, "add", interrupted)
            yield

    return after


@pytest.fixture
def command(folder, monkeypatch, capsys):
    """The command in this process: exit code, stdout, stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["predict.py", "--checkpoint", str(folder), *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            predict.run_cli(predict.main)
        return (end.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def predicted(command, tmp_path):
    """What the command writes for an input, as lines."""

    def run(*inputs):
        code, _, problems = command("--input", *inputs, "--output", tmp_path / "found.jsonl")
        assert (code, problems) == (0, "")
        return [orjson.loads(row) for row in (tmp_path / "found.jsonl").read_bytes().splitlines()]

    return run


@pytest.fixture(scope="session")
def fused(tiny_base, tmp_path_factory):
    """A checkpoint whose heads read text too: a random encoder, and trees that were fitted to noise."""
    from stepsieve.models.encoder import Encoder

    encoder, made = Encoder.from_base(tiny_base, window=32), tmp_path_factory.mktemp("fused")
    chance = np.random.default_rng(0)
    for task, spec in HEADS.items():
        names, classes = spec.columns("fusion"), len(spec.classes)
        scorer = create("fusion", names, classes, rounds=5, leaves=4)
        rows = chance.normal(size=(300, len(names))).astype(np.float32)
        scorer.fit(rows, chance.integers(classes, size=300), np.ones(300))
        head = Head(task, "fusion", scorer, Temperature(), spec.classes, names, SCHEMAS[task], encoder=encoder)
        # The evidence of the likeliest step of a run is all that is asked: to read takes its time.
        cutoff = {"threshold": 2.0, "first": 0.0, "safe": None, "prune": False}
        checkpoint.save(made, replace(head, settings={"cutoff": cutoff} if task == DET else {}), {})
    return made

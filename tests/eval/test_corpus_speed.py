"""predict.py's speed on a corpus: what the corpus is, and the figures, tables and plot that come of it."""

import sys

import orjson
import pytest

from stepsieve.data.errors import DataError
from stepsieve.data.ingest import load
from stepsieve.data.simulate import simulate
from stepsieve.eval import corpus_speed, speed
from stepsieve.eval.corpus_speed import Length, Part, corpus, draw, exponent, joined


@pytest.fixture(scope="module")
def few():
    return [run for run in simulate(12, seed=1) if run.interactions]


def test_a_corpus_repeats_runs_without_repeating_itself(few, tmp_path):
    lines = corpus(few, 3 * len(few), 600_000)
    assert 600_000 <= sum(map(len, lines)) < 610_000
    (tmp_path / "corpus.jsonl").write_bytes(b"".join(lines))
    runs = list(load(tmp_path / "corpus.jsonl"))
    assert len({run.id for run in runs}) == len({str(run.messages) for run in runs}) == 3 * len(few)
    assert [len(run.interactions) for run in runs] == 3 * [len(run.interactions) for run in few]
    assert lines == corpus(few, 3 * len(few), 600_000)


def test_joined_runs_keep_their_interactions(few):
    made = list(joined(few, 50, 200))
    assert all(len(run.interactions) >= 50 for run in made)
    assert 200 <= sum(len(run.interactions) for run in made) < 200 + 100
    assert len({run.id for run in made}) == len(made)
    first = few[0].interactions
    assert [(it.call_index, it.result_index) for it in made[0].interactions[: len(first)]] == [
        (it.call_index, it.result_index) for it in first
    ]


def test_the_exponent_of_growth():
    def grown(power):
        return [Length(n, 1000, 1000 * n ** (power - 1)) for n in (1, 100, 300, 1000)]

    assert exponent(grown(1)) == pytest.approx(1)
    assert exponent(grown(2)) == pytest.approx(2)


@pytest.mark.parametrize("name", ["growth.svg", "growth.png"])
def test_the_same_figures_give_the_same_plot(name, tmp_path):
    pytest.importorskip("matplotlib")
    parts = [Part(n, n / 32, 10 * n, n / 100, n / 60, n / 1000) for n in (480, 960, 1920)]
    lengths = [Length(n, 8000, 4 + n / 1000) for n in (10, 100, 1000)]
    draw(parts, lengths, tmp_path / name)
    first = (tmp_path / name).read_bytes()
    draw(parts, lengths, tmp_path / name)
    assert (tmp_path / name).read_bytes() == first
    assert len(first) > 5000


def test_the_command_measures_tells_and_draws(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    sizes = {"TRAJECTORIES": 16, "SIZE": 300_000, "PARTS": (0.5, 1.0), "LENGTHS": (10, 100, 150), "STEPS": 100}
    for name, value in sizes.items():
        monkeypatch.setattr(corpus_speed, name, value)
    arguments = ["--corpus", "--simulated", "12", "--plot", tmp_path / "plot.svg", "--json", tmp_path / "speed.json"]
    monkeypatch.setattr(sys, "argv", ["speed", *map(str, arguments)])
    speed.main()
    figures = orjson.loads((tmp_path / "speed.json").read_bytes())
    assert [part["trajectories"] for part in figures["parts"]] == [8, 16]
    assert [own["length"] for own in figures["lengths"]] == [10, 100, 150]
    whole = figures["parts"][-1]
    assert whole["megabytes"] >= 0.3
    assert min(whole["wall"], whole["cpu"], whole["parse"]) > 0
    assert figures["steps_per_core_second"] == pytest.approx(whole["steps"] / whole["cpu"])
    said = capsys.readouterr().out
    assert f"{whole['wall']:.1f} s from file to JSON Lines on " in said
    assert f"{whole['cpu'] / whole['parse']:.1f} times orjson.loads" in said
    assert "100 million steps take" in said
    assert (tmp_path / "plot.svg").stat().st_size > 5000


def test_a_plot_of_another_kind_is_refused_at_once(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["speed", "--corpus", "--plot", "growth.txt"])
    with pytest.raises(DataError, match=r"growth.txt: expected a name in .svg or .png"):
        speed.main()


@pytest.mark.parametrize("flags", [("--corpus", "--repeats", "2"), ("--plot", "x.svg"), ("--corpus", "--onnx", "x")])
def test_flags_that_mean_nothing_are_refused(flags, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["speed", *flags])
    with pytest.raises(DataError, match="expected nothing with --"):
        speed.main()

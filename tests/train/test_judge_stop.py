"""The tasks judge and stop in the one loop: what they learn, what they may not see, what a checkpoint then answers."""

from dataclasses import replace

import numpy as np
import orjson
import pytest

from stepsieve.data.errors import DataError
from stepsieve.data.quality import LEVELS, qualities
from stepsieve.data.simulate import simulate
from stepsieve.data.splits import make_folds
from stepsieve.eval import stop as stop_eval
from stepsieve.models.judge import Judge
from stepsieve.models.outlook import FAILURE, SUCCESS
from stepsieve.train.config import GbdtOptions, TrainConfig
from stepsieve.train.fit import Training
from stepsieve.train.loop import train
from stepsieve.train.outlook import OUTLOOK_HEADS, STOP_TASK, ask_outlooks, prefix_examples, siblings
from stepsieve.train.quality import JUDGE_TASK, QUALITY_HEADS, level_examples
from stepsieve.train.tasks import TASKS

SMALL = TrainConfig(
    simulated=90, folds=2, inner_folds=2, wrong_stops=0.1, gbdt=GbdtOptions(rounds=15, leaves=4, min_leaf=10)
)
RUNS = simulate(90, 0, STOP_TASK.simulation)


@pytest.fixture(scope="module")
def judge_out(tmp_path_factory):
    out = tmp_path_factory.mktemp("judge")
    train([TASKS["judge"]], replace(SMALL, out=str(out)))
    return out


@pytest.fixture(scope="module")
def stop_out(tmp_path_factory):
    out = tmp_path_factory.mktemp("stop")
    train([TASKS["stop"]], replace(SMALL, out=str(out)))
    return out


def metrics(out, task, split, backend="gbdt"):
    return orjson.loads((out / "metrics.json").read_bytes())[task][split][backend]


# --- judge -----------------------------------------------------------------------------------------------------------


def test_a_level_is_learned_for_each_action_that_was_judged():
    runs = simulate(20, 4, JUDGE_TASK.simulation)
    for dimension in LEVELS:
        for run, own in zip(runs, level_examples(dimension, runs), strict=True):
            gold = {q.message: q.score for q in qualities(run) if q.dimension == dimension}
            assert {e.step[0]: LEVELS[dimension][e.label] for e in own} == gold
            assert all(e.features.shape == (1, len(QUALITY_HEADS[dimension].features)) for e in own)


def test_the_judge_beats_the_largest_class_in_every_dimension_it_was_taught(judge_out):
    ours, majority = (metrics(judge_out, "judge", "cv", name) for name in ("gbdt", "majority"))
    assert ours["accuracy"]["value"] > majority["accuracy"]["value"]
    for dimension in LEVELS:
        assert ours[f"error[{dimension}]"]["value"] < majority[f"error[{dimension}]"]["value"], dimension


def test_a_checkpoint_judges_a_stage(judge_out):
    judge = Judge.from_pretrained(judge_out)
    run = next(run for run in RUNS if len(run.steps) > 4)
    whole = judge.stage(run)
    assert set(whole) == set(LEVELS)
    for score in whole.values():
        assert 0 <= score.score <= 1
        assert 0 <= score.uncertainty <= 2 / 3
    middle = judge.stage(run, range(4, 8))
    assert all(set(score.steps) <= set(range(4, 8)) for score in middle.values())
    assert judge.stage(run, range(0)) == {}


def test_a_stage_depends_on_the_prefix_alone_that_it_is_given(judge_out):
    judge = Judge.from_pretrained(judge_out)
    run = next(run for run in RUNS if len(run.steps) > 4)
    prefix = replace(run, messages=run.messages[:8])
    other = replace(prefix, outcome=None, labels=None, qualities=None, id="x")
    assert judge.stage(prefix, range(4, 8)) == judge.stage(other, range(4, 8))


def test_simulated_runs_teach_a_dimension_only_where_the_corpus_says_nothing_of_it():
    corpus = [replace(run, labels=None) for run in RUNS]
    training = Training(corpus, tuple(LEVELS), RUNS[:20], SMALL)
    sizes = {name: len(table) for name, table in training.extra.items()}
    assert sizes["correctness"] == sizes["safety"] == 0
    assert sizes["efficiency"] > 0
    assert sizes["compliance"] > 0


def test_a_checkpoint_without_the_heads_says_so(stop_out, judge_out):
    with pytest.raises(DataError, match="correctness"):
        Judge.from_pretrained(stop_out).stage(RUNS[0])
    with pytest.raises(DataError, match="success"):
        Judge.from_pretrained(judge_out).stop(RUNS[0])


def test_a_backend_that_reads_text_is_refused():
    with pytest.raises(DataError, match="reads no text"):
        train([TASKS["stop"]], replace(SMALL, backend="fusion"))


# --- stop ------------------------------------------------------------------------------------------------------------


def test_a_run_counts_as_one_example_whatever_is_known():
    run = next(run for run in RUNS if run.outcome == 0.0)
    others = [own for own in RUNS if own.group == run.group and own is not run]
    assert others
    for known in ([], others):
        (examples,) = prefix_examples(FAILURE, [run], known)
        assert sum(example.weight for example in examples) == pytest.approx(1.0)
        assert {example.label for example in examples} == {1}
    assert {example.label for example in prefix_examples(SUCCESS, [run], [])[0]} == {0}


def test_a_run_in_between_is_neither_a_success_nor_a_failure():
    run = replace(RUNS[0], outcome=0.5)
    for head in OUTLOOK_HEADS:
        assert {example.label for example in prefix_examples(head, [run], [])[0]} == {0}


def test_a_run_is_no_sibling_of_itself():
    for run, own in zip(RUNS, siblings(RUNS, RUNS), strict=True):
        assert run not in own
        assert all(other.group == run.group for other in own)
        assert len(own) == 2


def test_the_outcome_of_a_tested_run_changes_nothing_that_a_judge_is_trained_on():
    fold = make_folds(RUNS, "leave-run-out", usable=STOP_TASK.usable)[0]
    flipped = list(RUNS)
    for i in fold.test:
        flipped[i] = replace(RUNS[i], outcome=1.0 - RUNS[i].outcome)
    answers = []
    for runs in (RUNS, flipped):
        judge = Training(runs, STOP_TASK.heads, (), SMALL).fit("gbdt", fold.train, by_run=True)
        asked = [replace(RUNS[i], outcome=None) for i in fold.test]
        answers.append((ask_outlooks(judge, asked, [runs[i] for i in fold.train]), judge.bounds))
    assert answers[0] == answers[1]


def test_known_runs_help_on_known_tasks_and_both_splits_are_measured(stop_out):
    for split in ("leave-run-out", "cv"):
        ours, majority = (metrics(stop_out, "stop", split, name) for name in ("gbdt", "majority"))
        assert ours["auc@100"]["value"] > 0.6
        assert majority["auc@100"]["value"] == pytest.approx(0.5)
        assert ours["saved"]["value"] >= 0
    runs = stop_eval.read(stop_out / "predictions" / "stop-cv-gbdt.json")
    assert sorted(run.id for run in runs) == sorted(run.id for run in RUNS if run.steps or run.messages)
    assert all(0 <= p <= 1 for run in runs for outlook in run.outlooks for p in outlook)


def test_a_checkpoint_says_how_a_prefix_stands(stop_out):
    judge = Judge.from_pretrained(stop_out)
    run = next(run for run in RUNS if run.outcome == 0.0 and len(run.steps) > 3)
    along = judge.outlook_batch([run], [[]])[0]
    for message, outlook in along.items():
        following = [k for k in range(message + 1, len(run.messages)) if run.messages[k].role == "assistant"]
        prefix = replace(run, messages=run.messages[: following[0] if following else None], outcome=None)
        assert judge.stop(prefix) == pytest.approx(outlook)
    others = [own for own in RUNS if own.group == run.group and own is not run]
    assert judge.stop(run, others) != judge.stop(run)
    empty = judge.stop(replace(run, messages=run.messages[:0]))
    assert all(0 <= p <= 1 for p in empty)


def test_the_two_heads_are_calibrated_apart_and_mirror_each_other_where_no_run_ends_in_between(stop_out):
    judge = Judge.from_pretrained(stop_out)
    outlooks = [outlook for own in judge.outlook_batch(RUNS, [[]] * len(RUNS)) for outlook in own.values()]
    sums = np.array(outlooks).sum(axis=1)
    assert np.abs(sums - 1).mean() < 0.1


def test_bounds_travel_with_the_checkpoint(stop_out):
    manifest = orjson.loads((stop_out / "manifest.json").read_bytes())
    settings = manifest["heads"]["success"]["settings"]
    assert settings["wrong_stops"] == SMALL.wrong_stops
    assert set(settings["bounds"]) == {"success", "failure"}
    bounds = Judge.from_pretrained(stop_out).bounds
    assert (bounds.success, bounds.failure) == (settings["bounds"]["success"], settings["bounds"]["failure"])

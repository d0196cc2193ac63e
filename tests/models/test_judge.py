"""The judge: one answer is the same in any company, nothing that could win is pruned, and bad input says what is."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from stepsieve.data import references
from stepsieve.data.errors import DataError
from stepsieve.data.simulate import simulate
from stepsieve.data.trajectory import REDUNDANCY_TYPES, Message, ToolCall, Trajectory
from stepsieve.models import checkpoint
from stepsieve.models import judge as judging
from stepsieve.models.decode import Cutoff
from stepsieve.models.judge import CLS, DET, RET, WORTH_ASKING, Judge
from stepsieve.train.config import GbdtOptions, TrainConfig
from stepsieve.train.fit import Training

HEAVY = (
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "ray",
    "wandb",
    "fastapi",
    "pyarrow",
    "matplotlib",
    "sklearn",
    "lightgbm",
)
LOADING = """
import sys, time
started = time.process_time()
from stepsieve.models.judge import Judge
judge = Judge.from_pretrained(sys.argv[1])
print(time.process_time() - started, sorted(judge.heads), [name for name in {heavy} if name in sys.modules])
"""


@pytest.fixture(scope="module")
def judge():
    """All heads, small, trained on simulated runs."""
    config = TrainConfig(inner_folds=2, gbdt=GbdtOptions(rounds=8, learning_rate=0.3, threads=1))
    runs = simulate(60, seed=5)
    return Training(runs, (CLS, RET, DET), [], config).fit("gbdt", np.arange(len(runs)))


@pytest.fixture(scope="module")
def runs():
    """Other runs than those it was trained on, more than one batch of them in the tests that shrink the batch."""
    return simulate(24, seed=9)


@pytest.fixture(scope="module")
def everything(judge, runs):
    return judge.detect_batch(runs, everything=True)


def labelled(runs):
    return [[label.step for label in run.labels or ()] for run in runs]


def with_cutoff(judge, cutoff):
    other = Judge(judge.heads)
    other.cutoff = cutoff
    return other


# --- one and many ----------------------------------------------------------------------------------------------------


def test_one_answer_is_that_of_the_batch(judge, runs, everything, monkeypatch):
    pairs = [[(label.step, label.evidence) for label in run.labels or ()] for run in runs]
    types, evidence, found = (
        judge.classify_batch(runs, pairs),
        judge.retrieve_batch(runs, labelled(runs)),
        judge.detect_batch(runs),
    )
    assert [len(own) for own in types] == [len(own) for own in evidence] == [len(own) for own in pairs]
    for number, run in enumerate(runs[:8]):
        assert [judge.classify(run, *pair) for pair in pairs[number]] == types[number]
        assert [judge.retrieve(run, step) for step, _ in pairs[number]] == evidence[number]
        assert judge.detect(run) == found[number]
    monkeypatch.setattr(judging, "BATCH", 5)
    monkeypatch.setattr(judging, "AT_ONCE", 7)
    assert judge.retrieve_batch(runs, labelled(runs)) == evidence
    assert judge.detect_batch(runs) == found
    assert judge.detect_batch(runs, everything=True) == everything


def test_what_an_answer_is(judge, runs):
    run = next(run for run in runs if run.labels)
    label = run.labels[0]
    answer = judge.classify(run, label.step, label.evidence)
    assert answer.options == REDUNDANCY_TYPES
    found = judge.retrieve(run, label.step)
    assert found.step == label.step
    assert found.type in REDUNDANCY_TYPES
    assert 0 < found.confidence <= 1
    assert found.redundant == 1
    assert judge.retrieve(run, list(label.step)) == found


def test_it_has_learned_something(judge, runs):
    labels = [label for run in runs for label in run.labels or ()]
    found = [answer for own in judge.retrieve_batch(runs, labelled(runs)) for answer in own]
    right = [(p.type, p.evidence) == (x.type, x.evidence) for p, x in zip(found, labels, strict=True)]
    assert np.mean(right) > 0.5


# --- evidence among references ---------------------------------------------------------------------------------------


def references_of(run, step):
    """All single references that could be the step's evidence."""
    return [reference for reference in references.candidates(run) if reference != step]


def test_the_odds_of_some_references_are_those_among_all(judge, runs):
    for run in [run for run in runs if run.labels][:6]:
        step = run.labels[0].step
        every = references_of(run, step)
        whole = judge.evidence(run, step, every)
        assert whole.options == tuple(str(list(reference)) for reference in every)
        share = dict(zip(every, whole.probabilities, strict=True))
        some = every[::-3]
        found = judge.evidence(run, step, some)
        assert found.options == tuple(str(list(reference)) for reference in some)
        total = sum(share[reference] for reference in some)
        assert found.probabilities == pytest.approx([share[reference] / total for reference in some])


def test_evidence_of_one_step_is_that_of_the_batch(judge, runs, monkeypatch):
    asked = [[(label.step, references_of(run, label.step)[:5]) for label in run.labels or ()] for run in runs]
    found = judge.evidence_batch(runs, asked)
    assert [len(own) for own in found] == [len(own) for own in asked]
    for run, own, answers in list(zip(runs, asked, found, strict=True))[:8]:
        assert [judge.evidence(run, *pair) for pair in own] == answers
    monkeypatch.setattr(judging, "BATCH", 5)
    monkeypatch.setattr(judging, "AT_ONCE", 7)
    assert judge.evidence_batch(runs, asked) == found


def test_the_likeliest_reference_is_mostly_the_evidence(judge, runs):
    labels = [(run, label) for run in runs for label in run.labels or () if len(label.evidence) <= 2]
    found = [judge.evidence(run, label.step, references_of(run, label.step)).choice for run, label in labels]
    right = [choice == str(list(label.evidence)) for choice, (_, label) in zip(found, labels, strict=True)]
    assert np.mean(right) > 0.5


@pytest.mark.parametrize(
    ("among", "expected"),
    [
        ([], "at least two references"),
        ([(-1,)], "at least two references"),
        ([(-1,), "[-1]"], "all different, found 1 of 2"),
        ([(-1,), (900,)], "from 0 to"),
        ([(-1,), "words"], "in brackets"),
        ([(-1,), "the step"], "could be the evidence of step"),
    ],
)
def test_references_that_cannot_be_chosen_among(judge, runs, among, expected):
    run = next(run for run in runs if run.labels)
    step = run.labels[0].step
    with pytest.raises(DataError, match=expected):
        judge.evidence(run, step, [step if own == "the step" else own for own in among])


# --- detection -------------------------------------------------------------------------------------------------------


def test_everything_is_every_assistant_step_the_most_confident_first(runs, everything):
    for run, own in zip(runs, everything, strict=True):
        assert sorted(p.step for p in own) == sorted(step.reference for step in run.steps)
        levels = [p.confidence for p in own]
        assert levels == sorted(levels, reverse=True)
        assert all(0 <= p.confidence <= 1 and 0 <= p.redundant <= 1 for p in own)


@pytest.mark.parametrize(
    "cutoff",
    [
        *(Cutoff(threshold) for threshold in (0.0, 0.1, 0.3, 0.5, 0.9, 1.0)),
        Cutoff(0.5, first=0.4),
        Cutoff(0.9, first=0.2),
        Cutoff(0.5, safe=0.8),
        Cutoff(0.5, safe=0.8, prune=True),
        Cutoff(0.5, safe=0.001, prune=True),
        Cutoff(0.5, safe=None, prune=True),
    ],
    ids=str,
)
def test_what_is_not_asked_would_not_have_been_returned(judge, runs, everything, cutoff):
    expected = []
    for own in everything:
        likeliest = max((p.redundant for p in own), default=0)
        worth = [p for p in own if p.redundant >= min(WORTH_ASKING, likeliest) or cutoff.prune]
        expected.append(cutoff.returned(worth))
    assert with_cutoff(judge, cutoff).detect_batch(runs) == expected


def test_a_step_left_out_comes_back_where_it_is_the_best_of_its_run(judge, runs, monkeypatch):
    """The likeliest step of a run can have a doubtful evidence: then another one leads."""
    asked = []
    answers = Judge._answers

    def counted(self, index, rows, steps, redundant):
        asked.append(len(rows))
        return answers(self, index, rows, steps, redundant)

    monkeypatch.setattr(Judge, "_answers", counted)
    found = with_cutoff(judge, Cutoff(1.0)).detect_batch(runs)
    first, second = asked
    assert first == len([run for run in runs if run.steps])
    assert 0 < second < sum(len(run.steps) for run in runs) - first
    assert [len(own) for own in found] == [1 if run.steps else 0 for run in runs]


def test_candidates_that_are_pruned_could_not_win(judge, runs, everything, monkeypatch):
    evidence = judge.retrieve_batch(runs, labelled(runs))
    monkeypatch.setattr(judging, "leaders", lambda question, evidence: np.ones(len(question), dtype=bool))
    assert judge.detect_batch(runs, everything=True) == everything
    assert judge.retrieve_batch(runs, labelled(runs)) == evidence


def test_a_trajectory_without_calls(judge, runs):
    empty = Trajectory("empty", (Message("user", "hello"), Message("assistant", "good day")))
    unanswered = Trajectory("open", (Message("user", "hi"), Message("assistant", None, (ToolCall("look", {}, "c"),))))
    users = Trajectory(
        "user",
        (
            Message("user", None, (ToolCall("toggle", {}, "u", "user"),)),
            Message("tool", "on", call_id="u", requestor="user"),
        ),
    )
    nothing = Trajectory("nothing", ())
    for run in (empty, unanswered, users, nothing):
        assert judge.detect(run) == []
        assert judge.detect_batch([run], everything=True) == [[]]
    found = judge.detect_batch([empty, runs[0], nothing, users, runs[1]])
    assert found == [[], judge.detect(runs[0]), [], [], judge.detect(runs[1])]
    assert judge.detect_batch([]) == []
    for ask in (judge.classify_batch, judge.retrieve_batch, judge.evidence_batch):
        assert ask([], []) == []
        assert ask([empty], [[]]) == [[]]


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [(0, 1), (900, 901), (-1,), (3,), (1, 2, 3), "words", None, (1.5, 2)], ids=str)
def test_a_step_that_is_none(judge, runs, step):
    run = runs[0]
    assert step not in run.by_reference
    for ask in (lambda: judge.classify(run, step, (-1,)), lambda: judge.retrieve(run, step)):
        with pytest.raises(DataError, match="expected") as error:
            ask()
        assert "\n" not in str(error.value)


def test_the_error_names_what_was_expected(judge, runs):
    with pytest.raises(DataError, match=r"expected \[call, result\] of an answered assistant call.*found \[0, 1\]"):
        judge.retrieve(runs[0], (0, 1))


@pytest.mark.parametrize("evidence", [(900,), (900, 901), (0, 900), (-5,), (), "none", (0, 1, 2)], ids=str)
def test_an_evidence_that_is_none(judge, runs, evidence):
    with pytest.raises(DataError, match="expected"):
        judge.classify(runs[0], runs[0].steps[0].reference, evidence)


@pytest.mark.parametrize("missing", [CLS, RET, DET])
def test_a_missing_head_is_named(judge, runs, missing):
    rest = Judge({name: head for name, head in judge.heads.items() if name != missing})
    step = runs[0].steps[0].reference
    needed = {
        CLS: lambda: rest.classify(runs[0], step, (-1,)),
        RET: lambda: rest.retrieve(runs[0], step),
        "evidence": lambda: rest.evidence(runs[0], step, references_of(runs[0], step)),
        DET: lambda: rest.detect(runs[0]),
    }
    needs = {CLS: {CLS}, RET: {CLS, RET}, "evidence": {RET}, DET: {CLS, RET, DET}}
    for task, ask in needed.items():
        if missing in needs[task]:
            with pytest.raises(DataError, match=f"expected a checkpoint with the head '{missing}'"):
                ask()
        else:
            ask()


# --- a checkpoint ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(judge, tmp_path_factory):
    folder = tmp_path_factory.mktemp("judge")
    for head in judge.heads.values():
        checkpoint.save(folder, head, {})
    return folder


def test_a_saved_judge_answers_the_same(judge, saved, runs, everything):
    loaded = Judge.from_pretrained(saved)
    assert (loaded.cutoff, loaded.triple) == (judge.cutoff, judge.triple)
    assert loaded.cutoff != Cutoff()
    assert loaded.detect_batch(runs, everything=True) == everything
    assert loaded.detect_batch(runs) == judge.detect_batch(runs)
    assert loaded.retrieve_batch(runs, labelled(runs)) == judge.retrieve_batch(runs, labelled(runs))
    pairs = [[(label.step, label.evidence) for label in run.labels or ()] for run in runs]
    assert loaded.classify_batch(runs, pairs) == judge.classify_batch(runs, pairs)


def test_loading_is_quick_and_imports_nothing_heavy(saved):
    command = [sys.executable, "-c", LOADING.format(heavy=HEAVY), str(saved)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    seconds, rest = found.stdout.split(maxsplit=1)
    assert rest.strip() == f"{sorted((CLS, RET, DET))} []"
    assert float(seconds) < 1


def test_features_of_another_version_are_refused(judge, tmp_path):
    checkpoint.save(tmp_path, replace(judge.heads[RET], schema="0" * 16), {})
    with pytest.raises(DataError, match="head 'ret' was trained on feature schema"):
        Judge.from_pretrained(tmp_path)


def test_no_checkpoint(tmp_path):
    with pytest.raises(DataError, match="expected a checkpoint directory"):
        Judge.from_pretrained(tmp_path / "none")

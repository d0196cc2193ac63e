import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsieve.data.errors import DataError
from stepsieve.data.splits import SPLITS, assign_groups, default_splits, make_folds
from stepsieve.data.trajectory import EXPLORATORY, Label, Message, Trajectory


def run(subset, domain, task, agent=None, n_labels=1, annotated=True, tag=""):
    labels = tuple(Label((0, 1), EXPLORATORY, (-1,)) for _ in range(n_labels)) if annotated else None
    name = f"{subset}:{domain}:{task}:{agent}:{tag}"
    return Trajectory(name, (), domain=domain, task_id=task, subset=subset, agent=agent, labels=labels)


def corpus():
    human = [run("human", d, str(i), n_labels=i % 4) for d in ("airline", "retail", "telecom") for i in range(12)]
    auto = [run("automated", "airline", str(i), a, i % 3) for a in ("a1", "a2", "a3") for i in range(4, 20)]
    return [*human, *auto, run("human", "airline", "unannotated", annotated=False)]


def groups(trajectories, indices):
    return {trajectories[i].group for i in indices}


@pytest.mark.parametrize("split", sorted(SPLITS.keys() - {"leave-run-out"}))
def test_no_group_on_both_sides_and_only_annotated(split):
    trajectories = corpus()
    for fold in make_folds(trajectories, split, seed=3):
        assert fold.train.dtype == fold.test.dtype == np.int64
        assert len(fold.train)
        assert len(fold.test)
        assert not groups(trajectories, fold.train) & groups(trajectories, fold.test)
        assert all(trajectories[i].labels is not None for i in (*fold.train, *fold.test))


@pytest.mark.parametrize(("split", "subsets"), [
    ("human-cv", {"human"}), ("auto-cv", {"automated"}), ("pooled-cv", {"human", "automated"}),
    ("cv", {"human", "automated"}),
])  # fmt: skip
def test_cross_validation_tests_everything_once(split, subsets):
    trajectories = corpus()
    folds = make_folds(trajectories, split, n_folds=4)
    wanted = [i for i, t in enumerate(trajectories) if t.labels is not None and t.subset in subsets]
    assert sorted(i for fold in folds for i in fold.test) == wanted
    for fold in folds:
        assert sorted([*fold.train, *fold.test]) == wanted


@pytest.mark.parametrize("split", SPLITS)
def test_order_of_the_corpus_does_not_matter(split):
    trajectories = corpus()
    shuffled = random.Random(1).sample(trajectories, len(trajectories))

    def named(corpus):
        return [
            (fold.name, [corpus[i].id for i in fold.train], [corpus[i].id for i in fold.test])
            for fold in make_folds(corpus, split, seed=5)
        ]

    assert named(trajectories) == named(shuffled)


def test_seed_decides():
    trajectories = corpus()
    tests = [[list(f.test) for f in make_folds(trajectories, "human-cv", seed=s)] for s in (0, 0, 1)]
    assert tests[0] == tests[1]
    assert tests[0] != tests[2]


def test_folds_are_balanced_in_labels_and_domains():
    trajectories = corpus()
    folds = make_folds(trajectories, "human-cv")
    labels = [sum(len(trajectories[i].labels) for i in fold.test) for fold in folds]
    assert max(labels) - min(labels) <= 3
    assert all({trajectories[i].domain for i in fold.test} == {"airline", "retail", "telecom"} for fold in folds)


def test_transfer_between_subsets():
    trajectories = corpus()
    (fold,) = make_folds(trajectories, "human-to-auto")
    assert fold.name == "automated"
    assert len(fold.test) == 48
    # Airline tasks 4 to 11 are in both subsets: they are tested, so they don't train.
    assert len(fold.train) == 36 - 8
    (fold,) = make_folds(trajectories, "auto-to-human")
    assert len(fold.test) == 36
    assert len(fold.train) == 48 - 8 * 3


def test_leave_domain_out():
    trajectories = corpus()
    folds = make_folds(trajectories, "leave-domain-out")
    assert [fold.name for fold in folds] == ["airline", "retail", "telecom"]
    for fold in folds:
        assert {trajectories[i].domain for i in fold.test} == {fold.name}
        assert {trajectories[i].subset for i in (*fold.train, *fold.test)} == {"human"}
        assert fold.name not in {trajectories[i].domain for i in fold.train}


def test_leave_agent_out_trains_on_human_and_never_on_the_agent_or_its_tasks():
    auto = [run("automated", "airline", str(i + 4 * k), a) for k, a in enumerate(("a1", "a2")) for i in range(6)]
    human = [run("human", "airline", str(i)) for i in range(3)] + [run("human", "retail", "1", agent="a1")]
    unknown = run("automated", "airline", "99")
    trajectories = [*auto, *human, unknown]
    first, second = make_folds(trajectories, "leave-agent-out")
    assert (first.name, second.name) == ("a1", "a2")
    # a1 ran tasks 0-5, a2 tasks 4-9; the human tasks 0-2 are a1's too, and its own human run stays out.
    assert {trajectories[i].task_id for i in first.train} == {"6", "7", "8", "9"}
    assert {trajectories[i].id for i in second.train} == {
        *(t.id for t in auto[:4]), *(t.id for t in human)
    }  # fmt: skip
    assert len(trajectories) - 1 not in {*first.train, *first.test, *second.train, *second.test}


def test_a_task_without_id_is_its_own_group():
    trajectories = [Trajectory(f"t{i}", (), subset="mine", labels=()) for i in range(5)]
    assert sorted(len(f.test) for f in make_folds(trajectories, "cv")) == [1] * 5


@pytest.mark.parametrize(("trajectories", "split", "said"), [
    ([], "cv", "5 annotated tasks"),
    ([run("mine", "d", "1")], "human-cv", "human subset"),
    ([run("human", "d", "1")], "pooled-cv", "automated subset"),
    ([run("human", "d", str(i)) for i in range(4)], "human-cv", "found 4"),
    ([run("human", "d", str(i)) for i in range(9)], "leave-domain-out", "at least 2 domains"),
    ([*corpus()[:36], run("automated", "d", "1", "a")], "leave-agent-out", "at least 2 agents"),
    ([run("human", "d", "1"), run("automated", "d", "1", "a")], "human-to-auto", "to train on"),
    (corpus(), "random", "expected a split among"),
])  # fmt: skip
def test_impossible_splits_say_what_was_expected(trajectories, split, said):
    with pytest.raises(DataError, match=said) as caught:
        make_folds(trajectories, split)
    assert "\n" not in str(caught.value)


def test_one_fold_is_refused():
    with pytest.raises(DataError, match="at least 2 folds"):
        make_folds(corpus(), "cv", n_folds=1)


def test_default_splits():
    assert default_splits([run("human", "d", "1")]) == ["human-cv"]
    assert default_splits([run("automated", "d", "1"), run("human", "d", "1", annotated=False)]) == ["auto-cv"]
    assert default_splits(corpus()) == ["human-cv", "auto-cv", "pooled-cv"]
    assert default_splits([run("simulated", "d", "1"), run("human", "d", "1")]) == ["cv"]
    assert default_splits([]) == ["cv"]


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.integers(0, 5)), min_size=1, max_size=60),
    st.integers(2, 6), st.integers(0, 9),
)  # fmt: skip
def test_every_fold_has_a_group(rows, n_folds, seed):
    trajectories = [run("mine", d, str(task), n_labels=n, tag=str(k)) for k, (d, task, n) in enumerate(rows)]
    fold_of = assign_groups(trajectories, n_folds, seed)
    assert set(fold_of) == {t.group for t in trajectories}
    assert len(set(fold_of.values())) == min(n_folds, len(fold_of))


# --- leave-run-out ---------------------------------------------------------------------------------------------------


def several_runs(*sizes):
    return [
        Trajectory(f"run{task}-{number}", (Message("user", "x"),), domain="d", task_id=f"t{task}", outcome=1.0)
        for task, size in enumerate(sizes)
        for number in range(size)
    ]


def test_leave_run_out_tests_each_run_of_known_tasks_once():
    runs = several_runs(3, 1, 2)
    folds = make_folds(runs, "leave-run-out", usable=lambda run: run.outcome is not None)
    assert all(fold.by_run for fold in folds)
    tested = [[runs[i].id for i in fold.test] for fold in folds]
    assert tested == [["run0-0", "run2-0"], ["run0-1", "run2-1"], ["run0-2"]]
    for fold in folds:
        assert sorted([*fold.train, *fold.test]) == list(range(len(runs)))
        known = {runs[i].group for i in fold.train}
        assert all(runs[i].group in known for i in fold.test)


def test_leave_run_out_needs_a_task_with_two_runs():
    with pytest.raises(DataError, match="two runs"):
        make_folds(several_runs(1, 1), "leave-run-out", usable=lambda run: True)


def test_runs_that_say_nothing_enter_no_fold():
    runs = [*several_runs(2, 2, 2), Trajectory("silent", (Message("user", "x"),), domain="d", task_id="t9")]
    folds = make_folds(runs, "cv", 0, 3, usable=lambda run: run.outcome is not None)
    assert sorted(i for fold in folds for i in fold.test) == list(range(6))
    assert not any(fold.by_run for fold in folds)

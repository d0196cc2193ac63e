"""What can be the evidence of a step: worked out by hand, and the same in whatever company the step is asked."""

import numpy as np
import pytest

from stepsieve.data import references
from stepsieve.data.features import PAIR_FEATURES, RETRIEVAL_FEATURES, pair_features, retrieval_features, step_features
from stepsieve.data.features.candidates import ALIKE, AROUND, JOINT_KEPT, SHORT, TEXTS, candidates
from stepsieve.data.features.index import Index
from stepsieve.data.trajectory import Message, ToolCall, Trajectory


def asked(runs, steps=None):
    """The index of some runs, the candidates of steps (number of the run, reference), all of the assistant's if None,
    and their features."""
    index = Index(runs)
    rows = np.flatnonzero(index.calls.assistant)
    if steps is not None:
        rows = np.array([index.row(*step) for step in steps], dtype=np.int64)
    found = candidates(index, rows)
    return index, found, retrieval_features(index, found, step_features(index))


def options(index, found, question=0):
    """The candidate references of one question."""
    return [found.reference(index, place) for place in np.flatnonzero(found.question == question).tolist()]


def run_of(*parts, name="run"):
    """A run from texts of the user (str) and calls (tool, arguments, result) or, if it failed, (..., True)."""
    messages = []
    for number, part in enumerate(parts):
        if isinstance(part, str):
            messages.append(Message("user", part))
            continue
        tool, arguments, result, *failed = part
        messages.append(Message("assistant", None, (ToolCall(tool, arguments, f"c{number}"),)))
        messages.append(Message("tool", result, call_id=f"c{number}", error=bool(failed)))
    return Trajectory(name, tuple(messages), domain="desk", task_id=name)


def joint(run, step):
    index, found, _ = asked([run], [(0, step)])
    return [reference for reference in options(index, found) if len(reference) > 2]


# --- which references ------------------------------------------------------------------------------------------------


def test_every_legal_reference_appears_once(simulated):
    runs = simulated[:40]
    index, found, _ = asked(runs)
    steps = np.flatnonzero(index.calls.assistant)
    assert (np.diff(found.question) >= 0).all()
    assert set(found.question.tolist()) == set(range(len(steps)))
    for question, row in enumerate(steps.tolist()):
        run = runs[index.calls.run[row]]
        step = (int(index.calls.call[row]), int(index.calls.result[row]))
        own = options(index, found, question)
        single = [reference for reference in own if len(reference) <= 2]
        assert sorted(single) == sorted(reference for reference in references.candidates(run) if reference != step)
        assert len(set(own)) == len(own)
        several = [reference for reference in own if len(reference) > 2]
        assert len(several) <= JOINT_KEPT
        for reference in several:
            assert reference == references.normalise(reference)
            references.validate_evidence(reference, run)
            assert max(reference[::2]) <= step[0]
            assert step not in references.pairs(reference)


@pytest.mark.parametrize("steps", [[], [(1, (1, 2))]])
def test_few_or_no_steps(steps):
    empty, run = run_of("hello"), run_of("hello", ("look", {}, "found"))
    index, found, features = asked([empty, run, empty], steps)
    assert features.shape == (len(found.row), len(RETRIEVAL_FEATURES))
    assert [options(index, found, k) for k in range(len(steps))] == [[(0,), (-1,)] for _ in steps]


# --- joint references ------------------------------------------------------------------------------------------------

HALVES = (
    ("first", {"q": "a"}, "amber birch cedar dogwood"),
    ("second", {"q": "b"}, "elder fir gorse hazel"),
)
WHOLE = ("both", {"q": "c"}, "amber birch cedar dogwood elder fir gorse hazel")


def test_information_from_two_earlier_calls_makes_a_joint_reference():
    run = run_of("please", *HALVES, WHOLE)
    assert joint(run, (5, 6)) == [(1, 2, 3, 4)]
    assert joint(run, (3, 4)) == []


def test_the_best_pairs_are_kept_the_fullest_first():
    third = ("third", {"q": "d"}, "amber birch elder")
    # Together with the step's 8 words: first and second 8, first and third 5, second and third 6.
    run = run_of("please", *HALVES, third, WHOLE)
    assert joint(run, (7, 8)) == [(1, 2, 3, 4), (3, 4, 5, 6)]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ((("first", {"q": "a"}, "amber birch cedar dogwood", True), HALVES[1], WHOLE), "one of them failed"),
        ((HALVES[0], ("second", {"q": "b"}, "amber birch"), WHOLE), "one holds nothing that the other does not"),
        ((HALVES[0], ("other", {}, "yarrow"), WHOLE), "only one holds anything of it"),
    ],
)
def test_no_joint_reference_where_one_call_does_as_well(change, why):
    assert joint(run_of("please", *change), (5, 6)) == [], why


def test_only_earlier_calls_are_joined():
    assert joint(run_of("please", HALVES[0], WHOLE, HALVES[1]), (3, 4)) == []


def test_a_joint_reference_holds_what_its_calls_hold_together():
    run = run_of("please", *HALVES, WHOLE)
    index, found, features = asked([run], [(0, (5, 6))])
    held = features[:, [feature.name for feature in RETRIEVAL_FEATURES].index("evidence.holds_result")]
    share = dict(zip(options(index, found), held.tolist(), strict=True))
    assert share[1, 2] == share[3, 4] == pytest.approx(0.5)
    assert share[1, 2, 3, 4] == pytest.approx(1.0)
    assert share[0,] == 0
    assert np.isnan(share[-1,])


# --- features --------------------------------------------------------------------------------------------------------


def test_a_step_has_the_same_candidates_alone_and_in_company(simulated):
    runs = simulated[:12]
    index, found, features = asked(runs)
    row = 0
    for run in runs:
        for step in (step.reference for step in run.steps):
            alone, own, table = asked([run], [(0, step)])
            company = np.flatnonzero(found.question == row)
            assert options(alone, own) == options(index, found, row)
            np.testing.assert_array_equal(table, features[company])
            row += 1


def test_the_order_of_a_batch_changes_nothing(simulated):
    runs = simulated[:12]
    ours, backwards = asked(runs), asked(runs[::-1])
    tables = []
    for index, found, features in (ours, backwards):
        run = index.calls.run[found.row]
        tables.append([features[run == number] for number in range(len(runs))])
    for one, other in zip(tables[0], tables[1][::-1], strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_first_columns_are_the_pair_features(simulated):
    runs = simulated[:30]
    index, found, features = asked(runs)
    pairs = [[] for _ in runs]
    places = [[] for _ in runs]
    for place in range(len(found.row)):
        row = int(found.row[place])
        number = int(index.calls.run[row])
        step = (int(index.calls.call[row]), int(index.calls.result[row]))
        pairs[number].append((step, found.reference(index, place)))
        places[number].append(place)
    assert any(len(reference) > 2 for own in pairs for _, reference in own)
    for own, matrix in zip(places, pair_features(runs, pairs), strict=True):
        np.testing.assert_array_equal(features[own][:, : len(PAIR_FEATURES)], matrix)


def test_results_that_come_out_of_order():
    calls = tuple(ToolCall("look", {"n": number}, f"c{number}") for number in range(2))
    first, second = (Message("tool", "found", call_id=call.id, error=False) for call in calls)
    run = Trajectory(
        "x", (Message("user", "hi"), Message("assistant", None, calls), second, Message("user", "ok"), first)
    )
    index, found, features = asked([run], [(0, (1, 4))])
    between = features[:, [feature.name for feature in RETRIEVAL_FEATURES].index("evidence.calls_between")]
    assert dict(zip(options(index, found), between.tolist(), strict=True))[3,] == 0


# --- long runs -------------------------------------------------------------------------------------------------------


def long_run(calls):
    """Every call is of one of ten tools, and every fifth result is the same; a user's text after every tenth call."""
    parts = ["begin"]
    for number in range(calls):
        result = "nothing new" if number % 5 == 0 else f"item {number} of shelf {number % 17}"
        parts.append((f"tool{number % 10}", {"n": number % 50}, result))
        if number % 10 == 9:
            parts.append(f"go on {number}")
    return run_of(*parts)


def test_a_short_run_has_every_reference():
    run = long_run(SHORT * 9 // 10)
    index, found, _ = asked([run], [(0, run.steps[60].reference)])
    assert len([own for own in options(index, found) if len(own) <= 2]) == len(list(references.candidates(run))) - 1


def test_a_long_run_has_the_likely_ones():
    run = long_run(400)
    place = 205
    steps = [step.reference for step in run.steps]
    index, found, features = asked([run], [(0, steps[place])])
    own = set(options(index, found))
    assert len(own) == len(found.row) == len(features)
    near = AROUND["run"]
    assert set(steps[place - near.before : place] + steps[place + 1 : place + 1 + near.after]) <= own
    of_tool = [step for number, step in enumerate(steps) if number % 10 == place % 10 and number != place]
    assert set(of_tool[: AROUND["tool"].first]) <= own
    same_answer = [step for number, step in enumerate(steps) if number % 5 == 0 and number != place]
    assert set(same_answer[: AROUND["answer"].first]) <= own
    same_call = [steps[number] for number in range(place % 50, 400, 50) if number != place]
    assert {same_call[0], same_call[3], same_call[4]} <= own
    assert (-1,) in own
    texts = [reference for reference in own if len(reference) == 1 and reference != (-1,)]
    assert len(texts) == TEXTS.before + TEXTS.after
    assert steps[place] not in own
    assert all(reference in run.by_reference for reference in own if len(reference) == 2)


def test_the_number_of_candidates_stays_bounded():
    most = 1 + sum(sum(window) for window in AROUND.values()) + ALIKE + sum(TEXTS) + JOINT_KEPT
    assert most <= SHORT + JOINT_KEPT
    for calls in (150, 300, 600):
        _, found, _ = asked([long_run(calls)])
        assert np.bincount(found.question).max() <= most


def test_the_call_that_holds_the_result_is_kept_however_far():
    run = long_run(400)
    messages = list(run.messages)
    rare = "quartz jasper onyx beryl"
    for step in (run.steps[20], run.steps[350]):
        messages[step.result_index] = Message("tool", rare, call_id=step.call.id, error=False)
    run = Trajectory("x", tuple(messages))
    steps = [step.reference for step in run.steps]
    index, found, _ = asked([run], [(0, steps[350])])
    assert steps[20] in options(index, found)


def test_long_and_short_runs_in_one_batch():
    short, long = run_of("please", *HALVES, WHOLE), long_run(200)
    index, found, features = asked([short, long, short])
    assert (np.diff(found.question) >= 0).all()
    number = 0
    for run in (short, long, short):
        for step in run.steps[:: len(run.steps) // 3]:
            alone, own, table = asked([run], [(0, step.reference)])
            place = number + run.steps.index(step)
            assert options(alone, own) == options(index, found, place)
            np.testing.assert_array_equal(table, features[found.question == place])
        number += len(run.steps)


def test_no_released_run_is_long(released):
    assert max(len(list(references.candidates(run))) for run in released) <= SHORT

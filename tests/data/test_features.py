"""Features against values worked out by hand on small runs; the registry; runs that lack something."""

import math
import subprocess
import sys

import numpy as np
import pytest

from stepsieve.data.features import PAIR_FEATURES, STEP_FEATURES, pair_features, schema_hash, step_features
from stepsieve.data.features.errors import is_transient
from stepsieve.data.features.index import Index
from stepsieve.data.features.registry import Feature, columns, flag, share
from stepsieve.data.references import candidates
from stepsieve.data.trajectory import Message, ToolCall, Trajectory

NAN = math.nan
POLICY = (-1,)


def user(text):
    return [Message("user", text)]


def says(text):
    return [Message("assistant", text)]


def does(tool, result, *, by="assistant", error=False, text=None, **arguments):
    """A call and its result: two messages."""
    call = ToolCall(tool, arguments, None, by)
    return [Message(by, text, (call,), requestor=by), Message("tool", result, requestor=by, error=error)]


def run_of(*parts):
    return Trajectory("run", tuple(message for part in parts for message in part))


def of(run, step, evidence=POLICY):
    """Feature name -> value of one pair."""
    (row,) = pair_features([run], [[(step, evidence)]])[0]
    return dict(zip((feature.name for feature in PAIR_FEATURES), row.tolist(), strict=True))


def check(found, **expected):
    """Compare the features of one subject, dots written as two underscores; NaN equals NaN."""
    names = {name.replace("__", ".", 1): value for name, value in expected.items()}
    assert {name: found[name] for name in names} == pytest.approx(names, nan_ok=True)


# --- the registry ----------------------------------------------------------------------------------------------------


def test_every_feature_is_documented_and_has_a_range():
    names = [feature.name for feature in PAIR_FEATURES]
    assert len(names) == len(set(names))
    assert PAIR_FEATURES[: len(STEP_FEATURES)] == STEP_FEATURES
    for feature in PAIR_FEATURES:
        subject, _, what = feature.name.partition(".")
        assert subject.isidentifier()
        assert what.isidentifier()
        assert 10 <= len(feature.doc) <= 100
        assert "\n" not in feature.doc
        assert feature.doc[0].islower()
        assert feature.dtype in ("bool", "float")
        assert feature.low < feature.high
    assert len({feature.doc for feature in PAIR_FEATURES}) == len(names)


def test_the_module_prints_the_registry_as_a_table():
    command = [sys.executable, "-m", "stepsieve.data.features"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for feature in PAIR_FEATURES:
        (line,) = [line for line in printed.splitlines() if line.split()[:1] == [feature.name]]
        assert feature.doc in line
        assert feature.dtype in line


def in_range(trajectories):
    """Every (step, candidate) pair of every run that has a step; returns what stands outside its range."""
    chosen = [run for run in trajectories if run.steps]
    pairs = [[(step.reference, ref) for step in run.steps for ref in candidates(run)][:400] for run in chosen]
    table = np.vstack(pair_features(chosen, pairs))
    assert table.dtype == np.float32
    assert table.shape == (sum(map(len, pairs)), len(PAIR_FEATURES))
    for column, feature in zip(table.T, PAIR_FEATURES, strict=True):
        values = column[~np.isnan(column)]
        assert len(values), f"{feature.name} never applies"
        # Shares are sums divided by sums in float32: a hair above 1 is still 1.
        assert values.min() >= feature.low - 1e-6, feature.name
        assert values.max() <= feature.high + 1e-6, feature.name
        assert np.isfinite(values).all(), feature.name
        if feature.dtype == "bool":
            assert set(np.unique(values)) <= {0.0, 1.0}, feature.name


def test_features_stay_in_their_range_on_simulated_runs(simulated):
    in_range(simulated[:60])


def test_features_stay_in_their_range_on_released_runs(released):
    in_range(released[::5])


def test_a_computed_feature_has_to_be_registered_and_a_registered_one_computed():
    features = (flag("a.b", "whether it is"), share("a.c", "how much of it"))
    with pytest.raises(KeyError, match=r"a\.c"):
        columns(features, {"a.b": np.zeros(1)}, 1)
    with pytest.raises(KeyError, match=r"a\.d"):
        columns(features, {"a.b": np.zeros(1), "a.c": np.zeros(1), "a.d": np.zeros(1)}, 1)


def test_the_schema_hash_tells_names_types_and_order_apart():
    a, b = flag("a.b", "whether it is"), share("a.c", "how much of it")
    hashes = {schema_hash(features) for features in ((a, b), (b, a), (a,), (Feature("a.b", "x", "float"), b))}
    assert len(hashes) == 4
    assert schema_hash((a, b)) == schema_hash((flag("a.b", "in other words"), b))


# --- repeats ---------------------------------------------------------------------------------------------------------

REPEATS = run_of(
    user("Look at order 17"),  # 0
    does("look", "open 20", id=17),  # 1, 2
    does("look", "open 20", id=17),  # 3, 4
    says("It is open."),  # 5
    user("And now?"),  # 6
    does("look", "shipped 20", id=17),  # 7, 8
    does("find", "shipped 20", id=17, depth=2),  # 9, 10
    does("look", "", id=18),  # 11, 12
)


def test_repeats_are_counted_before_and_after():
    check(of(REPEATS, (1, 2)), repeat__same_call_before=0, repeat__same_call_after=2, repeat__same_answer_before=0,
          repeat__gap_before=NAN, repeat__gap_after=1, repeat__failed_before=NAN, repeat__same_tool_before=0,
          repeat__same_tool_after=3, repeat__same_tool_turn_after=1, repeat__succeeds_after=1,
          repeat__previous_same_tool=0, repeat__next_same_tool=1, repeat__arguments_like_previous=NAN,
          repeat__arguments_like_next=1, repeat__answer_seen=0)  # fmt: skip
    check(of(REPEATS, (3, 4)), repeat__same_call_before=1, repeat__same_call_after=1, repeat__same_answer_before=1,
          repeat__gap_before=1, repeat__gap_after=1, repeat__failed_before=0, repeat__same_tool_turn_before=1,
          repeat__same_tool_turn_after=0, repeat__previous_same_tool=1, repeat__answer_seen=1)  # fmt: skip
    # The same call in a later turn, with another answer.
    check(of(REPEATS, (7, 8)), repeat__same_call_before=2, repeat__same_call_after=0, repeat__same_answer_before=0,
          repeat__same_tool_turn_before=0, repeat__succeeds_after=0, repeat__next_same_tool=0,
          repeat__arguments_like_next=0)  # fmt: skip
    # Another tool with the same answer; then the last call of "look", whose answer is empty and so never seen.
    check(of(REPEATS, (9, 10)), repeat__same_call_before=0, repeat__same_tool_before=0, repeat__answer_seen=1)
    check(of(REPEATS, (11, 12)), repeat__same_call_before=0, repeat__same_tool_before=3, repeat__answer_seen=0,
          repeat__same_tool_turn_before=1, repeat__arguments_like_previous=0)  # fmt: skip


def test_a_call_is_the_same_whatever_the_order_of_its_arguments_and_another_if_the_other_side_makes_it():
    run = run_of(
        user("go"), does("f", "x", a=1, b=[2]), does("f", "x", b=[2], a=1), does("f", "x", by="user", a=1, b=[2])
    )
    check(of(run, (3, 4)), repeat__same_call_before=1, repeat__same_call_after=0, repeat__same_tool_after=0)


# --- errors ----------------------------------------------------------------------------------------------------------

ERRORS = run_of(
    user("Check A1"),  # 0
    does("check", "Error: the connection timed out", error=True, id="A1"),  # 1, 2
    does("check", "fine 5", id="A1"),  # 3, 4
    does("check", "Error: nothing like A2 exists", error=True, id="A2"),  # 5, 6
    does("other", "fine", id="A3"),  # 7, 8
)


def test_errors_have_a_kind_and_a_sequel():
    check(of(ERRORS, (1, 2)), error__failed=1, error__transient=1, error__names_arguments=0, error__before=0,
          error__next_failed=0, error__tool_succeeds_after=1, error__tool_succeeds_before=0,
          repeat__succeeds_after=1)  # fmt: skip
    check(of(ERRORS, (3, 4)), error__failed=0, error__transient=0, error__names_arguments=NAN, error__before=1,
          error__previous_failed=1, error__next_failed=1, repeat__failed_before=1)  # fmt: skip
    check(of(ERRORS, (5, 6)), error__failed=1, error__transient=0, error__names_arguments=1, error__before=1,
          error__tool_succeeds_after=0, error__tool_succeeds_before=1)  # fmt: skip
    check(of(ERRORS, (7, 8)), error__failed=0, error__before=2, error__previous_failed=1)


@pytest.mark.parametrize("text", ["Request timeout", "503 Service Unavailable", "Too many requests, try again later"])
def test_passing_faults(text):
    assert is_transient(text)


@pytest.mark.parametrize("text", ["Order not found", "Reservation 5031 does not exist", "expected a number for size"])
def test_faults_of_the_call(text):
    assert not is_transient(text)


# --- arguments -------------------------------------------------------------------------------------------------------

SEATS = run_of(
    user("Move booking B12 to another seat"),  # 0
    does("get", '{"seat": "3A", "free": ["9C", "7D"]}', booking="B12"),  # 1, 2
    says("Seat 9C is free"),  # 3
    user("Good"),  # 4
    does("move", "done", booking="B12", seat="9C", mode="fast"),  # 5, 6
    says("Moved to 9C"),  # 7
)


def test_arguments_know_where_they_came_from():
    # A code weighs 3 and a word 1: b12 (user) 3, 9c (result, then the assistant's text) 3, fast (nowhere) 1.
    check(of(SEATS, (5, 6)), arguments__size=7, arguments__none=0, arguments__from_user=3 / 7,
          arguments__from_result=3 / 7, arguments__from_assistant=0, arguments__from_nowhere=1 / 7,
          arguments__codes_from_nowhere=0, arguments__proposed=3 / 7, arguments__in_last_user=0,
          arguments__in_last_result=3 / 7, arguments__words=1 / 7, arguments__used_later=0,
          arguments__said_later=3 / 7)  # fmt: skip
    check(of(SEATS, (1, 2)), arguments__size=3, arguments__from_user=1, arguments__from_nowhere=0,
          arguments__in_last_user=1, arguments__used_later=1, arguments__in_last_result=0)  # fmt: skip


def test_arguments_from_an_earlier_call_of_the_agent_alone_are_its_own():
    run = run_of(user("go"), does("f", "x", id=71), does("g", "x", id=71), does("h", "x"))
    check(of(run, (1, 2)), arguments__from_nowhere=1, arguments__codes_from_nowhere=1)
    check(of(run, (3, 4)), arguments__from_assistant=1, arguments__from_nowhere=0)
    check(of(run, (5, 6)), arguments__none=1, arguments__from_user=NAN, arguments__from_nowhere=NAN)


# --- results ---------------------------------------------------------------------------------------------------------


def test_a_result_knows_how_much_of_it_was_known_and_what_became_of_the_rest():
    # Keys weigh nothing. The result brings 3a, 9c and 7d: 9 in all; 9c is used in an argument and said.
    check(of(SEATS, (1, 2)), result__size=9, result__empty=0, result__known=0, result__known_from_one=0,
          result__known_from_results=0, result__new=9, result__new_in_arguments=1 / 3, result__new_in_text=1 / 3,
          result__new_in_next_text=1 / 3, result__codes_in_next_text=1 / 3, result__first_use=1,
          result__meets_user=0)  # fmt: skip
    run = run_of(
        user("Is 10 red?"),
        does("a", "red 10 blue"),  # 1, 2: red 1 and 10 (3) stood in the user's text
        does("b", "blue 20"),  # 3, 4: blue 1 of 4 is known, from one result
        does("c", "20 10 30 round"),  # 5, 6: 20 and 10 are known, from two results of this turn
        does("c", "20 10 30 round"),  # 7, 8: all of it
    )
    check(of(run, (1, 2)), result__size=5, result__known=4 / 5, result__known_from_results=0, result__new=1,
          result__meets_user=4 / 5, result__meets_user_codes=1, result__new_in_results=1)  # fmt: skip
    check(of(run, (3, 4)), result__known=1 / 4, result__known_from_one=1 / 4, result__known_from_results=1 / 4)
    check(of(run, (5, 6)), result__size=10, result__known=6 / 10, result__known_from_one=3 / 10,
          result__known_from_results=6 / 10, result__known_from_turn=6 / 10, result__first_use=NAN)  # fmt: skip
    check(of(run, (7, 8)), result__known=1, result__known_from_one=1, result__new=0, result__new_in_text=NAN)


def test_an_empty_result_holds_nothing_unless_it_repeats_an_empty_one():
    run = run_of(user("go"), does("f", ""), does("f", ""), does("g", "[]"))
    check(of(run, (1, 2)), result__empty=1, result__size=0, result__known=NAN)
    check(of(run, (3, 4)), result__empty=1, result__known=1, result__known_from_one=1)
    check(of(run, (5, 6)), result__empty=1, result__known=NAN)


# --- acts and the goal -----------------------------------------------------------------------------------------------

GOAL = run_of(
    user("Move booking B12"),  # 0
    does("seats", "3A 7D", plane=1),  # 1, 2
    does("seats", "9C 8E", plane=2),  # 3, 4
    does("seats", "5F", plane=3),  # 5, 6
    says("Shall I move booking B12 to 9C ?"),  # 7
    user("Yes"),  # 8
    does("move", "done", booking="B12", seat="9C"),  # 9, 10
    says("It is 9C now."),  # 11
)


def test_an_act_was_proposed_confirmed_and_done():
    check(of(GOAL, (9, 10)), goal__is_act=1, goal__acts_before=0, goal__acts_after=0, arguments__proposed=1)
    check(of(GOAL, (3, 4)), goal__is_act=0, goal__acts_after=1)
    unconfirmed = run_of(says("I move B12 to 9C"), does("move", "done", booking="B12", seat="9C"))
    check(of(unconfirmed, (1, 2)), arguments__proposed=1, goal__is_act=0)
    failed = run_of(says("B12 to 9C ?"), user("Yes"), does("move", "Error: full", error=True, id="B12", seat="9C"))
    check(of(failed, (2, 3)), arguments__proposed=1, goal__is_act=0)


def test_the_goal_is_what_acts_take_and_a_step_may_come_before_or_after_it_was_known():
    # The act takes b12, which the user said, and 9c, which the second look-up found.
    check(of(GOAL, (1, 2)), goal__arguments=0, goal__result=0, goal__found_here=0, goal__known=1 / 2,
          goal__sibling_before=0, goal__sibling_after=1, goal__use=0)  # fmt: skip
    check(of(GOAL, (3, 4)), goal__result=1 / 2, goal__found_here=1 / 2, goal__known=1, goal__sibling_before=0,
          goal__sibling_after=0, goal__use=3, goal__final=1 / 2)  # fmt: skip
    check(of(GOAL, (5, 6)), goal__result=0, goal__found_here=0, goal__known=1, goal__sibling_before=1,
          goal__sibling_after=0)  # fmt: skip
    check(of(GOAL, (9, 10)), goal__result=NAN, goal__known=NAN)  # no act follows


# --- place -----------------------------------------------------------------------------------------------------------


def test_place_counts_within_the_turn_and_the_batch():
    calls = tuple(ToolCall("f", {"id": k}, f"c{k}") for k in (1, 2))
    run = run_of(
        user("go"),  # 0
        [Message("assistant", None, calls), Message("tool", "a", call_id="c2"), Message("tool", "b", call_id="c1")],
        does("g", "x", by="user"),  # 4, 5
        does("h", "y"),  # 6, 7
    )
    check(of(run, (1, 3)), place__batch=2, place__answers_user=1, place__turn_before=0, place__turn_after=1,
          place__user_calls_after=1, place__user_calls_before=0, place__last_call=0)  # fmt: skip
    check(of(run, (1, 2)), place__batch=2, place__turn_before=1, place__user_calls_next=1)
    # The user's call is a message of the user, so a new turn begins with it.
    check(of(run, (6, 7)), place__batch=1, place__turn_before=0, place__turn_after=0, place__last_call=1,
          place__user_calls_before=1, place__user_calls_next=0)  # fmt: skip


# --- evidence --------------------------------------------------------------------------------------------------------


def test_evidence_that_is_another_call():
    check(of(REPEATS, (3, 4), (1, 2)), evidence__policy=0, evidence__after=0, evidence__previous=1, evidence__next=0,
          evidence__calls_between=0, evidence__same_tool=1, evidence__same_call=1, evidence__same_answer=1,
          evidence__same_tool_between=0, evidence__failed=0, evidence__holds_result=1, evidence__same_arguments=1,
          evidence__turns_between=0, evidence__user_text=0, evidence__user_call=0, evidence__joint=0)  # fmt: skip
    check(of(REPEATS, (1, 2), (7, 8)), evidence__after=1, evidence__next=0, evidence__calls_between=1,
          evidence__same_call=1, evidence__same_answer=0, evidence__same_tool_between=1, evidence__turns_between=1,
          evidence__holds_result=3 / 4)  # fmt: skip
    check(of(REPEATS, (7, 8), (9, 10)), evidence__after=1, evidence__next=1, evidence__same_tool=0,
          evidence__same_call=0, evidence__same_answer=1, evidence__same_tool_between=NAN)  # fmt: skip
    check(of(ERRORS, (3, 4), (1, 2)), evidence__failed=1, evidence__same_call=1, evidence__holds_result=0)


def test_evidence_that_brings_more():
    # 9C of the second look-up is used; nothing of the first and the third is.
    check(of(GOAL, (1, 2), (3, 4)), evidence__use=3, evidence__more_use=3, evidence__most_used=1, evidence__size=6,
          evidence__is_act=0)  # fmt: skip
    check(of(GOAL, (3, 4), (1, 2)), evidence__use=0, evidence__more_use=-3, evidence__most_used=0)
    check(of(GOAL, (3, 4), (9, 10)), evidence__is_act=1, evidence__result_holds_arguments=1 / 2,
          evidence__arguments_known=1)  # fmt: skip


def test_joint_evidence_holds_what_its_interactions_hold_together():
    run = run_of(
        user("go"), does("a", "11 12"), does("b", "13 14"), does("c", "11 13 15"), does("d", "16")
    )  # c: (5, 6)
    check(of(run, (5, 6), (1, 2)), evidence__joint=0, evidence__holds_result=1 / 3, evidence__in_result=1 / 2)
    check(of(run, (5, 6), (1, 2, 3, 4)), evidence__joint=1, evidence__holds_result=2 / 3, evidence__in_result=1 / 2,
          evidence__size=12, evidence__calls_between=1)  # fmt: skip
    assert of(run, (5, 6), (3, 4, 1, 2)) == pytest.approx(of(run, (5, 6), (1, 2, 3, 4)), nan_ok=True)


def test_evidence_that_is_a_text():
    check(of(SEATS, (5, 6), (0,)), evidence__user_text=1, evidence__assistant_text=0, evidence__policy=0,
          evidence__after=0, evidence__same_tool=0, evidence__holds_arguments=3 / 7, evidence__same_arguments=NAN,
          evidence__use=NAN, evidence__fields=NAN, evidence__turns_between=1)  # fmt: skip
    check(of(SEATS, (5, 6), (3,)), evidence__user_text=0, evidence__assistant_text=1, evidence__holds_arguments=3 / 7)
    check(of(SEATS, (1, 2), (7,)), evidence__assistant_text=1, evidence__after=1, evidence__calls_between=1,
          evidence__holds_new=1 / 3, evidence__turns_between=1)  # fmt: skip
    check(of(SEATS, (1, 2), (4,)), evidence__user_text=1, evidence__after=1, evidence__turns_between=0)
    check(of(SEATS, (1, 2), (0,)), evidence__user_text=1, evidence__after=0, evidence__turns_between=0)


def test_evidence_that_is_the_policy():
    check(of(SEATS, (5, 6), POLICY), evidence__policy=1, evidence__user_text=0, evidence__assistant_text=0,
          evidence__after=0, evidence__next=0, evidence__previous=0, evidence__calls_between=NAN,
          evidence__holds_result=NAN, evidence__same_tool_between=NAN, evidence__meets_user=NAN)  # fmt: skip


def test_a_lone_result_and_a_call_without_text_name_their_interaction():
    assert of(SEATS, (5, 6), (2,)) == pytest.approx(of(SEATS, (5, 6), (1, 2)), nan_ok=True)
    assert of(SEATS, (5, 6), (1,)) == pytest.approx(of(SEATS, (5, 6), (1, 2)), nan_ok=True)


def test_evidence_of_the_users_side():
    run = run_of(user("go"), does("a", "11 12"), does("b", "12", by="user"), does("c", "12"))
    check(of(run, (5, 6), (3, 4)), evidence__user_call=1, evidence__previous=0, evidence__holds_result=1)


# --- runs that lack something ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("messages", [(), user("hello"), says("hello"), user("") + does("f", "x")[:1]])
def test_runs_without_answered_calls_have_no_rows(messages):
    run = Trajectory("run", tuple(messages))
    assert step_features(Index([run])).shape == (0, len(STEP_FEATURES))
    assert pair_features([run], [[]])[0].shape == (0, len(PAIR_FEATURES))


def test_no_runs_no_tables():
    assert pair_features([], []) == []


def test_an_unanswered_call_changes_nothing_but_cannot_be_asked_about():
    cut = run_of(user("Look at order 17"), does("look", "open 20", id=17), does("look", "?", id=17)[:1])
    check(of(cut, (1, 2)), repeat__same_call_after=0, place__last_call=1)
    for step in ((3, 4), (0, 1), (1, 1), (2, 2), (1, 99)):
        with pytest.raises(KeyError):
            of(cut, step)


@pytest.mark.parametrize(
    "value",
    ["\ud800 \udfff", NAN, math.inf, 2**90, None, True, [], {}, [None, {"a": [NAN]}], "", "\x00", "日本", {1: 2}],
)
def test_odd_arguments_and_results_are_taken(value):
    text = value if isinstance(value, str) else repr(value)
    run = run_of(user(text), does("f", text, a=value), does("f", text, a=value), says(text))
    for step, evidence in (((1, 2), (3, 4)), ((3, 4), (0,)), ((3, 4), POLICY)):
        found = of(run, step, evidence)
        assert all(math.isnan(v) or math.isfinite(v) for v in found.values())
    check(of(run, (3, 4), (1, 2)), repeat__same_call_before=1, evidence__same_call=1, evidence__same_answer=1)

"""Features of actions, prefixes and known runs: values worked out by hand, and what they must not see."""

import math
from dataclasses import replace

import numpy as np
import pytest

from stepsieve.data.features import (
    ACTION_FEATURES,
    OWN_FEATURES,
    PROGRESS_FEATURES,
    STEP_FEATURES,
    action_features,
    progress_features,
)
from stepsieve.data.features import known as known_runs
from stepsieve.data.features.index import Index
from stepsieve.data.simulate import SimulationConfig, simulate
from stepsieve.data.trajectory import Message, ToolCall, Trajectory

NAN = math.nan
RUNS = simulate(12, 5, SimulationConfig(failure_share=0.2, astray_share=0.5))


def does(tool, result, error=False, **arguments):
    return [Message("assistant", None, (ToolCall(tool, arguments),)), Message("tool", result, error=error)]


def says(text):
    return [Message("assistant", text)]


def user(text):
    return [Message("user", text)]


def run_of(*parts, **fields):
    return Trajectory("run", tuple(message for part in parts for message in part), **fields)


def own(run):
    """Feature -> its value for each action."""
    _, table = action_features(Index([run]))
    return {feature.name: table[:, k].tolist() for k, feature in enumerate(ACTION_FEATURES)}


def after(run, others=()):
    """Feature -> its value after each action."""
    _, table = progress_features(Index([run]), [others])
    return {feature.name: table[:, k].tolist() for k, feature in enumerate(PROGRESS_FEATURES)}


def check(found, **expected):
    for name, values in expected.items():
        key = name.replace("__", ".")
        assert found[key] == pytest.approx(values, nan_ok=True), key


SEARCH = run_of(
    user("red tower height"),
    does("find", "tower stands north", q="red tower"),
    does("find", "tower stands north", q="red tower"),
    does("find", "height twelve metres", q="tower metres"),
    says("twelve metres height"),
)


def test_how_an_action_stands_to_the_request_and_to_others():
    check(
        own(SEARCH),
        action__text=[0, 0, 0, 1],
        action__last=[0, 0, 0, 1],
        action__size=[2, 2, 2, 3],
        action__calls_before=[0, 1, 2, 3],
        action__calls_after=[2, 1, 0, 0],
        action__from_user=[1, 1, 0.5, 1 / 3],
        action__from_result=[0, 0, 0, 2 / 3],
        action__from_nowhere=[0, 0, 0.5, 0],
        action__meets_user=[2 / 3, 2 / 3, 1 / 3, 1 / 3],
        action__meets_user_first=[2 / 3, 0, 0, 1 / 3],
        # "red tower" and "tower metres" share one of three words, the text and the third call one of four.
        action__like_earlier=[NAN, 1, 1 / 3, 0.25],
        action__like_later=[1, 1 / 3, NAN, NAN],
        action__like_so_far=[0, 0.5, 4 / 9, 4 / 9],
        action__like_greatest=[1, 1, 1, 1],
    )


def test_what_a_result_brought_and_what_the_closing_text_took_of_it():
    check(
        own(SEARCH),
        action__met=[0.5, 0.5, 0.5, NAN],
        action__met_more=[0.5, 0, -0.0, NAN],
        action__result_new=[2 / 3, 0, 1 / 3, NAN],
        action__result_meets_user=[1 / 3, 1 / 3, 1 / 3, NAN],
        action__result_meets_user_first=[1 / 3, 0, 1 / 3, NAN],
        action__user_met=[1 / 3, 1 / 3, 2 / 3, 2 / 3],
        # The closing text's own words, which the user did not say: twelve, metres.
        action__in_close=[0, 0, 1, NAN],
        action__in_close_first=[0, 0, 1, NAN],
        action__in_close_most=[0, 0, 1, NAN],
        close__size=[3] * 4,
        close__from_nowhere=[0] * 4,
        close__from_result=[1] * 4,
        close__from_user=[1 / 3] * 4,
        close__meets_user=[1 / 3] * 4,
        close__from_one=[1] * 4,
    )


def test_a_text_has_none_of_a_steps_features_and_a_run_without_one_no_closing():
    _, table = action_features(Index([SEARCH]))
    assert np.isnan(table[3, len(OWN_FEATURES) :]).all()
    assert not np.isnan(table[0, len(OWN_FEATURES) :]).all()
    check(own(run_of(user("hi"), does("find", "x", q="hi"))), close__size=[NAN], action__in_close=[NAN])


def test_how_a_run_is_going():
    run = run_of(
        user("cancel A1"),
        does("get", "no such thing", error=True, id="A1"),
        does("get", "A1 open", id="A1"),
        says("cancel A1 ?"),
        user("yes cancel"),
        does("drop", "done", id="A1"),
    )
    check(
        after(run),
        progress__calls=[1, 1, 2 / 3, 0.75],
        progress__tools=[1, 0.5, 0.5, 2 / 3],
        progress__last_text=[0, 0, 1, 0],
        progress__streak=[1, 2, 1, 1],
        progress__turn_calls=[1, 2, 2, 1],
        progress__failed=[1, 0.5, 0.5, 1 / 3],
        progress__failures=[1, 1, 1, 1],
        progress__last_failed=[1, 0, 0, 0],
        progress__repeated=[0, 0.5, 0.5, 1 / 3],
        progress__last_alike=[0, 1, 1, 1],
        # "A1" counts three, a word one; of "A1 open" open alone is new.
        progress__last_new=[1, 0.25, 0.25, 1],
        progress__new=[1, 0.625, 0.625, 0.75],
        progress__lately_new=[1, 0.625, 0.625, 0.75],
        progress__acts=[0, 0, 0, 1],
        progress__last_act=[0, 0, 0, 1],
        progress__since_act=[NAN, NAN, NAN, 0],
        progress__guessed=[0, 0, 0, 0],
        progress__said_again=[0, 0, 0.5, 0.5],
        progress__told_again=[NAN, NAN, 0, 0],
    )


def test_the_last_three_results_alone_are_lately():
    run = run_of(user("go"), *(does("f", text, q="go") for text in ("a b", "a b", "a c", "d e", "a d")))
    check(
        after(run),
        progress__new=[1, 0.5, 0.5, 0.625, 0.5],
        progress__lately_new=[1, 0.5, 0.5, 0.5, 0.5],
    )


def test_a_run_whose_assistant_only_talks():
    check(after(run_of(user("hi"), says("hello"))), progress__calls=[0], progress__failed=[NAN], progress__new=[NAN])


def cut(run, message):
    """The run up to where the assistant spoke next after a message."""
    later = (k for k in range(message + 1, len(run.messages)) if run.messages[k].role == "assistant")
    return replace(run, messages=run.messages[: next(later, len(run.messages))])


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.id)
def test_a_prefix_shows_what_the_whole_run_does_at_its_place(run):
    actions, whole = progress_features(Index([run]), [RUNS])
    last = {int(message): row for row, message in enumerate(actions.message)}
    for message, row in last.items():
        _, table = progress_features(Index([cut(run, message)]), [RUNS])
        np.testing.assert_allclose(table[-1], whole[row], rtol=1e-6)


def test_features_are_in_range_and_the_same_alone_and_in_a_batch():
    siblings = [[other for other in RUNS if other.group == run.group and other is not run] for run in RUNS]
    for features, make in (
        (ACTION_FEATURES, lambda index, _: action_features(index)),
        (PROGRESS_FEATURES, progress_features),
    ):
        actions, table = make(Index(RUNS), siblings)
        for number, run in enumerate(RUNS):
            _, alone = make(Index([run]), siblings[number : number + 1])
            np.testing.assert_array_equal(table[actions.run == number], alone)
        for feature, values in zip(features, table.T, strict=True):
            found = values[~np.isnan(values)]
            assert (found >= feature.low - 1e-6).all(), feature.name
            assert (found <= feature.high + 1e-6).all(), feature.name


def renamed(run):
    """Other names of tools, other ids of calls and runs."""
    messages = tuple(
        replace(message, tool_calls=tuple(replace(call, name=f"x{call.name[::-1]}") for call in message.tool_calls))
        for message in run.messages
    )
    return replace(run, id=f"other {run.id}", messages=messages, domain="other", agent="other", policy="")


def test_no_name_is_seen():
    others = [renamed(run) for run in RUNS]
    np.testing.assert_array_equal(action_features(Index(RUNS))[1], action_features(Index(others))[1])
    before = progress_features(Index(RUNS), [RUNS[:3]] * len(RUNS))[1]
    np.testing.assert_array_equal(before, progress_features(Index(others), [others[:3]] * len(RUNS))[1])


def test_an_outcome_is_seen_of_known_runs_alone():
    unknown = [replace(run, outcome=None, labels=None, qualities=None) for run in RUNS]
    none = [[]] * len(RUNS)
    np.testing.assert_array_equal(progress_features(Index(RUNS), none)[1], progress_features(Index(unknown), none)[1])
    beside = progress_features(Index(RUNS), [unknown] * len(RUNS))[1][:, -len(known_runs.FEATURES) :]
    assert (beside[:, 0] == 0).all()
    assert np.isnan(beside[:, 1:]).all()


def test_known_runs_worked_out_by_hand():
    good = [
        run_of(does("get", "x", id=1), does("drop", "x", id=1), outcome=1.0),
        run_of(does("get", "x", id=1), does("drop", "x", id=1), does("get", "x", id=2), outcome=1.0),
    ]
    bad = run_of(does("get", "x", id=1), does("drop", "x", id=9), outcome=0.0)
    run = run_of(does("get", "x", id=1), does("drop", "x", id=9))
    check(
        after(run, [*good, bad]),
        known__runs=[3, 3],
        known__succeeded=[0.6, 0.6],
        known__milestones=[0.5, 0.5],
        known__sound=[1, 0.5],
        known__astray=[0, 0.5],
        # After one call 1/2 and 1/3 against 1/2; after two 1/3 and 1/4 against 1.
        known__leaning=[0, 1 / 3 - 1],
        known__alike_succeeded=[(5 / 6 + 0.5) / (4 / 3 + 1), (7 / 12 + 0.5) / (19 / 12 + 1)],
    )
    check(after(run), known__runs=[0, 0], known__succeeded=[NAN, NAN])


def test_every_feature_is_documented_once():
    names = [feature.name for feature in (*OWN_FEATURES, *PROGRESS_FEATURES, *STEP_FEATURES)]
    assert len(names) == len(set(names))
    for feature in (*OWN_FEATURES, *PROGRESS_FEATURES):
        assert 10 <= len(feature.doc) <= 100
        assert feature.doc[0].islower()

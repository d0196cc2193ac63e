"""Qualities of messages: derived from redundant steps, and from what a simulated run did to its world."""

from dataclasses import replace

import pytest

from stepsieve.data.quality import COMPLIANCE, CORRECTNESS, EFFICIENCY, LEVELS, SAFETY, qualities
from stepsieve.data.simulate import SimulationConfig, run_one, simulate
from stepsieve.data.simulate.derive import Step, Trace
from stepsieve.data.simulate.derive import qualities as derived
from stepsieve.data.simulate.world import RULE, Answer, Task
from stepsieve.data.trajectory import DUPLICATED, INCORRECT, Label, Message, Quality, ToolCall, Trajectory

ASTRAY = SimulationConfig(failure_share=0.0, astray_share=1.0)


def calls(*ids):
    return Message("assistant", None, tuple(ToolCall("look", {"id": name}, name) for name in ids))


RUN = Trajectory(
    "run",
    (
        calls("a"),
        Message("tool", "1", call_id="a"),
        calls("b", "c"),
        Message("tool", "2", call_id="b"),
        Message("tool", "3", call_id="c"),
    ),
)


def by_place(found):
    return {(own.message, own.dimension): own.score for own in found}


def test_nothing_is_known_of_a_run_without_annotation():
    assert qualities(RUN) == ()


def test_a_redundant_step_was_not_efficient_and_an_incorrect_one_no_sound_use():
    labels = (Label((2, 3), DUPLICATED, (0, 1)), Label((2, 4), INCORRECT, (-1,)))
    assert by_place(qualities(replace(RUN, labels=labels[:1]))) == {
        (0, EFFICIENCY): 1.0,
        (0, COMPLIANCE): 1.0,
        (2, EFFICIENCY): 0.0,
        (2, COMPLIANCE): 1.0,
    }
    assert by_place(qualities(replace(RUN, labels=labels)))[2, COMPLIANCE] == 0.0


def test_recorded_qualities_stand_beside_derived_ones():
    own = Quality(0, CORRECTNESS, 0.5)
    assert qualities(replace(RUN, labels=(), qualities=(own,)))[-1] == own
    assert len(qualities(replace(RUN, labels=(), qualities=(own,)))) == 5


def step(at, answer, versions=(), binds=None):
    return Step(at, at + 1, "assistant", "tool", {"id": str(at)}, binds or {}, answer, dict(versions))


def test_qualities_of_a_trace_worked_out_by_hand():
    task = Task(
        "t",
        "cancel",
        (("order", "status", "cancelled"),),
        {"order": frozenset(["order"])},
        keys={("order", "lines"): ("order", "order")},
    )
    fact = ("order", "lines")
    look = Answer({}, frozenset([fact]))
    trace = Trace(
        task,
        (
            step(0, look, {fact: 0}),  # tells a fact of the task
            step(2, look, {fact: 0}),  # the same again
            step(4, Answer({}, changed=frozenset([("order", "status")]))),  # what the goal names
            step(6, Answer({}, changed=frozenset([("other", "status")]))),  # a record that it does not
            step(8, Answer({}, changed=frozenset([("order", "status")]), breach=RULE)),  # against a rule
        ),
    )
    found = by_place(derived(trace))
    assert [found[at, CORRECTNESS] for at in (0, 2, 4, 6, 8)] == [1.0, 0.5, 1.0, 0.0, 0.0]
    assert [found[at, SAFETY] for at in (0, 2, 4, 6, 8)] == [1.0, 1.0, 1.0, 0.0, 0.0]


def test_levels_are_what_is_recorded(simulated):
    for run in simulated:
        for own in qualities(run):
            assert own.score in LEVELS[own.dimension]
            assert run.messages[own.message].role == "assistant"


def test_failed_runs_are_judged_too(simulated):
    failed = [run for run in simulated if run.outcome == 0.0 and run.steps]
    assert failed
    for run in failed:
        assert {own.dimension for own in qualities(run)} == {CORRECTNESS, SAFETY}


@pytest.fixture(scope="module")
def astray():
    return [run_one(number, 3, ASTRAY) for number in range(60)]


def test_an_agent_astray_changes_a_record_that_the_goal_does_not_name_or_gives_up(astray):
    unsafe = circling = 0
    for run in astray:
        wrong = [own for own in run.trajectory.qualities if own.dimension == SAFETY and own.score == 0.0]
        unsafe += bool(wrong)
        circling += run.trajectory.outcome == 0.0 and not wrong
    assert unsafe >= 6
    assert circling >= 8


def test_the_outcome_of_an_agent_astray_is_that_of_its_world(astray):
    assert {run.trajectory.outcome for run in astray} == {0.0, 1.0}
    for run in astray:
        assert run.trajectory.outcome == float(run.trace.task.reached(run.end))


def test_a_share_of_runs_astray_leaves_the_others_as_they_were():
    mixed = simulate(40, 3, SimulationConfig(astray_share=0.5))
    same = [a == b for a, b in zip(mixed, simulate(40, 3), strict=True)]
    assert 10 <= sum(same) <= 35

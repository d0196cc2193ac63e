import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsieve.data import references
from stepsieve.data.errors import DataError
from stepsieve.data.trajectory import Message, ToolCall, Trajectory


def calls(*ids, role="assistant"):
    return Message(role, None, tuple(ToolCall("look", {}, id=i, requestor=role) for i in ids))


TRAJECTORY = Trajectory(
    "t",
    (
        Message("user", "hi"),
        calls("a", "b"),
        Message("tool", "1", call_id="a"),
        Message("tool", "2", call_id="b"),
        calls("u", role="user"),
        Message("tool", "3", call_id="u", requestor="user"),
        calls("lost"),
        Message("assistant", "bye"),
    ),
)

single = st.one_of(st.just((-1,)), st.tuples(st.integers(0, 500)), st.tuples(st.integers(0, 500), st.integers(0, 500)))
joint = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=5).map(
    lambda found: tuple(index for pair in found for index in pair)
)
any_reference = st.one_of(single, joint)


@given(any_reference)
def test_parse_takes_lists_tuples_and_text(reference):
    assert references.parse(list(reference)) == reference
    assert references.parse(reference) == reference
    assert references.parse(str(list(reference))) == reference


@pytest.mark.parametrize(
    "value",
    [
        None, 3, 3.0, True, {}, [], (), "", "4, 5", "[4, 5", "[]", "[4,,5]", "[4 5]", "[a]", "[4] [5]", "[01]",
        [-2], [-1, -1], [3, -1], [1, 2, 3], [1.0], [True], ["1", "2"], [[1, 2]], [None], "[99999999999999999999]",
        "[" * 3000,
    ],
)  # fmt: skip
def test_parse_rejects_everything_else_in_one_line(value):
    with pytest.raises(DataError, match="expected") as raised:
        references.parse(value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 200


@given(any_reference)
def test_normalising_twice_changes_nothing(reference):
    once = references.normalise(reference)
    assert references.normalise(once) == once
    assert set(references.pairs(once)) == set(references.pairs(reference))


@given(joint, st.randoms())
def test_the_order_and_repetition_of_interactions_does_not_matter(reference, random):
    shuffled = [*references.pairs(reference), references.pairs(reference)[0]]
    random.shuffle(shuffled)
    again = tuple(index for pair in shuffled for index in pair)
    assert references.normalise(again) == references.normalise(reference)


def test_the_order_within_an_interaction_matters():
    assert references.normalise((5, 4)) != references.normalise((4, 5))


@pytest.mark.parametrize("reference", [(1, 2), (1, 3)])
def test_a_step_is_one_answered_call_of_the_assistant(reference):
    references.validate_step(reference, TRAJECTORY)


@pytest.mark.parametrize("reference", [(4, 5), (1, 5), (2, 1), (6, 7), (1,), (-1,), (1, 2, 1, 3), (1, 99)])
def test_nothing_else_is_a_step(reference):
    with pytest.raises(DataError, match="trajectory 't': expected \\[call, result\\]"):
        references.validate_step(reference, TRAJECTORY)


@pytest.mark.parametrize("reference", [(-1,), (0,), (7,), (1, 2), (4, 5), (1, 2, 4, 5), (2, 3)])
def test_evidence_may_be_any_interaction_message_or_rule(reference):
    references.validate_evidence(reference, TRAJECTORY)


@pytest.mark.parametrize("reference", [(8,), (0, 2), (1, 99), (2, 2), (1, 2, 0, 1), (6, 7)])
def test_other_evidence_is_an_error(reference):
    with pytest.raises(DataError, match="trajectory 't': expected"):
        references.validate_evidence(reference, TRAJECTORY)


def test_candidates_are_legal_and_distinct():
    found = list(references.candidates(TRAJECTORY))
    assert found == [(1, 2), (1, 3), (4, 5), (0,), (7,), (-1,)]
    for reference in found:
        references.validate_evidence(reference, TRAJECTORY)

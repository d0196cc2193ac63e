"""Graphs from recorded runs: whose runs count, what one run shows, what they agree on."""

from dataclasses import replace

import pytest

from stepsieve.data.errors import DataError
from stepsieve.eval.stagewise.candidates import candidate, graph_of, other_runs

GUEST = {"guest": {"id": "G17", "age": 40}}


def ways(desk, **rest):
    calls = [
        ("find_guest", {"name": "Ann"}, GUEST),
        ("find_guest", {"name": "Ann"}, GUEST),
        ("get_room", {"room": "R9"}, "Error: no such room"),
        ("book_room", {"room_id": "R1", "guest": "G17", "price": 10}, {}),
    ]
    return desk.run(calls, **rest)


def test_only_others_successful_runs_of_the_same_task_count(desk):
    own = ways(desk, id="own", agent="x")
    corpus = [
        own,
        ways(desk, id="other agent", agent="y"),
        ways(desk, id="agent unknown"),
        ways(desk, id="same agent", agent="x"),
        ways(desk, id="failed", agent="y", outcome=0.0),
        ways(desk, id="outcome unknown", agent="y", outcome=None),
        ways(desk, id="other task", task_id="u", agent="y"),
        ways(desk, id="other domain", domain="else", agent="y"),
    ]
    assert [run.id for run in other_runs(own, corpus)] == ["other agent", "agent unknown"]
    assert other_runs(replace(own, task_id=""), [replace(run, task_id="") for run in corpus]) == []


def test_what_one_run_shows(desk, view):
    made = candidate(ways(desk), view)
    made.check(view)
    tools = {own.id: own.tool for own in made.milestones}
    # The repeated call counts once, the failed one not at all.
    assert sorted(tools.values()) == ["book_room", "find_guest"]
    assert [(tools[a], tools[b]) for a, b in made.edges] == [("find_guest", "book_room")]
    (binding,) = made.bindings
    assert (binding.parameter, binding.field) == ("guest", "guest.id")
    assert [(own.tool, own.severity) for own in made.minefields] == [("drop_room", 2 / 3)]


def test_what_the_user_had_said_comes_from_no_call(desk, view):
    assert candidate(ways(desk, said="I am G17."), view).edges == ()
    assert candidate(ways(desk), replace(view, policy="Guests are numbered like G17.")).edges == ()


def test_a_minefield_is_as_sure_as_there_are_runs_without_it(desk, view):
    corpus = [ways(desk, id=str(number)) for number in range(5)]
    # Four others did without it: (4 + 1) / (4 + 2).
    assert graph_of(corpus[0], corpus, view).minefields[0].severity == pytest.approx(5 / 6)


def test_the_graph_never_sees_the_run_under_evaluation(desk, view):
    odd = desk.run([("drop_room", {"room_id": "R1"}, {})], id="odd")
    corpus = [odd, ways(desk, id="b"), ways(desk, id="c")]
    assert graph_of(odd, corpus, view) == graph_of(odd, corpus[1:], view)
    assert "drop_room" not in {own.tool for own in graph_of(odd, corpus, view).milestones}


def test_a_task_without_another_run_or_without_a_usable_one(desk, view):
    own = ways(desk)
    with pytest.raises(DataError, match="another successful run of the task, found none"):
        graph_of(own, [own], view)
    with pytest.raises(DataError, match="a valid candidate among 1, found none"):
        graph_of(own, [own, desk.run([], id="idle")], view)


def test_words_to_somebody_are_no_milestone(desk, view):
    say = desk.tool("page", "say", None, summary={"type": "string"})
    made = candidate(
        desk.run([("page", {"summary": "help"}, "ok"), ("find_guest", {"name": "Ann"}, GUEST)]),
        replace(view, tools=(*view.tools, say)),
    )
    assert [own.tool for own in made.milestones] == ["find_guest"]

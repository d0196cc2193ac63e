"""The milestone graph: success conditions, the contract part by part, JSON there and back."""

from dataclasses import replace

import orjson
import pytest

from stepsieve.data.errors import DataError
from stepsieve.data.trajectory import ToolCall
from stepsieve.eval.stagewise.graph import Binding, Condition, Milestone, MilestoneGraph, Minefield, from_dict

GRAPH = MilestoneGraph(
    (
        Milestone("guest", "find_guest", "read"),
        Milestone("book", "bookRoom", conditions=(Condition("argument", "room_id", "R1", hard=True),), goal="book it"),
    ),
    (("guest", "book"),),
    (Binding("book", "guest", "guest", "guest.id"),),
    (Minefield("drop_room", {"room_id": "R2"}, 0.9),),
)


def book(desk, **given):
    return desk.closed("book_room", **{"room_id": "R1", "guest": "G1", "price": 10, **given})


def test_a_good_graph_keeps_the_contract_and_survives_json(view):
    GRAPH.check(view)
    again = from_dict(orjson.loads(orjson.dumps(GRAPH.to_dict())))
    assert again == GRAPH
    assert again.edges == (("guest", "book"),)


def test_match_is_the_weighted_share_of_what_holds(desk):
    soft = (Condition("argument", "room_id", "R1"), Condition("argument", "price", 10, weight=3.0))
    milestone = Milestone("m", "book_room", conditions=soft)
    assert milestone.match(book(desk)) == 1.0
    # The call's success 1, room 1, price 3: without the price 2 of 5, without the room 4 of 5.
    assert milestone.match(book(desk, price=11)) == pytest.approx(0.4)
    assert milestone.match(book(desk, room_id="R9")) == pytest.approx(0.8)
    assert milestone.match(book(desk, price="10")) == 1.0
    assert milestone.match(book(desk, room_id=" r1 ")) == 1.0


def test_what_can_never_match(desk):
    milestone = Milestone("m", "book_room", conditions=(Condition("argument", "room_id", "R1", hard=True),))
    assert milestone.match(book(desk)) == 1.0
    assert milestone.match(book(desk, room_id="R2")) == 0.0
    assert milestone.match(book(desk, error=True)) == 0.0
    assert milestone.match(book(desk, requestor="user")) == 0.0
    assert milestone.match(desk.closed("drop_room", room_id="R1")) == 0.0


def test_conditions_on_results(desk):
    there = Milestone("m", "get_room", conditions=(Condition("output", "beds.*.size", hard=True),))
    equal = Milestone("m", "get_room", conditions=(Condition("output", "beds.*.size", "king", hard=True),))
    result = '{"beds": [{"size": "twin"}, {"size": "king"}]}'
    assert there.match(desk.closed("get_room", result)) == equal.match(desk.closed("get_room", result)) == 1.0
    assert equal.match(desk.closed("get_room", '{"beds": [{"size": "twin"}]}')) == 0.0
    assert there.match(desk.closed("get_room", '{"beds": []}')) == there.match(desk.closed("get_room", "none")) == 0.0


def test_minefields_are_known_from_the_call():
    mine = Minefield("drop_room", {"room_id": "R2"})
    assert mine.hit(ToolCall("dropRoom", {"room_id": "R2", "now": True}))
    assert not mine.hit(ToolCall("drop_room", {"room_id": "R1"}))
    assert not mine.hit(ToolCall("drop_room", {}))
    assert Minefield("drop_room").hit(ToolCall("drop_room", {"room_id": "R1"}))


def test_bindings_hold_where_the_value_came_from_the_source(desk):
    binding = GRAPH.bindings[0]
    assert binding.holds(book(desk), '{"guest": {"id": "G1"}}')
    assert not binding.holds(book(desk), '{"guest": {"id": "G2"}, "id": "G1"}')


def changed(**fields):
    return replace(GRAPH, **fields)


def milestones(**fields):
    return changed(milestones=(GRAPH.milestones[0], replace(GRAPH.milestones[1], **fields)))


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (changed(milestones=()), "at least one milestone"),
        (milestones(id="guest"), "unique ids"),
        (milestones(id="s0"), "an id other than 's0'"),
        (milestones(tool="burn_room"), "a tool of the catalogue, found 'burn_room'"),
        (milestones(role="hero"), "one of read, write, say"),
        (milestones(conditions=(Condition("argument", "colour", "red"),)), "a parameter of book_room, found 'colour'"),
        (milestones(conditions=(Condition("argument", ""),)), "an argument or an output field"),
        (milestones(conditions=(Condition("weather", "sun"),)), "an argument or an output field"),
        (milestones(conditions=(Condition("output", "x", weight=0.0),)), "a weight above 0"),
        (changed(minefields=(Minefield("get_room"),)), "an available destructive tool, found 'get_room'"),
        (changed(minefields=(Minefield("burn_room"),)), "an available destructive tool"),
        (changed(minefields=(Minefield("drop_room", {"colour": 1}),)), "a parameter of drop_room"),
        (changed(minefields=(Minefield("drop_room", severity=1.5),)), "a number from 0 to 1"),
        (changed(edges=(("guest", "nobody"),)), "the id of a milestone, found 'nobody'"),
        (changed(edges=(("guest", "book"), ("book", "book"))), "'book' before itself"),
        (changed(edges=(("guest", "book"), ("book", "guest"))), "no cycle"),
        (changed(edges=()), "a milestone before 'book', found 'guest'"),
        (changed(bindings=(Binding("book", "guest", "nobody", "guest.id"),)), "the id of a milestone"),
        (changed(bindings=(Binding("book", "guest", "guest", "guest.name"),)), "a declared field of find_guest"),
        (changed(bindings=(Binding("book", "colour", "guest", "guest.id"),)), "a parameter of book_room that accepts"),
        (changed(bindings=(Binding("book", "price", "guest", "guest.id"),)), "that accepts string, found 'price'"),
    ],
)
def test_each_part_of_the_contract(view, graph, words):
    with pytest.raises(DataError) as caught:
        graph.check(view)
    assert words in str(caught.value)


def test_an_integer_is_a_number_to_a_parameter(view):
    changed(bindings=(Binding("book", "price", "guest", "guest.age"),)).check(view)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ([], "expected a milestone graph"),
        ({"nodes": []}, "found 'nodes'"),
        ({"milestones": {}}, "milestones: expected a list"),
        ({"milestones": [1]}, "milestones[0]: expected an object"),
        ({"milestones": [{"id": "a"}]}, "the field 'tool'"),
        ({"milestones": [{"id": "a", "tool": "b", "gold": 1}]}, "found 'gold'"),
        ({"milestones": [{"id": "a", "tool": "b", "conditions": [{"on": "argument"}]}]}, "conditions[0]"),
        ({"edges": [["a"]]}, "edges[0]: expected two ids"),
        ({"minefields": [{"tool": "a", "severity": "high"}]}, "minefields[0].severity: expected a number"),
    ],
)
def test_json_that_is_no_graph(record, words):
    with pytest.raises(DataError) as caught:
        from_dict(record)
    assert words in str(caught.value)

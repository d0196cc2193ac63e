"""The public view: what it can hold, catalogues given and observed, ill-formed calls."""

import re
from dataclasses import fields, replace

import pytest

from stepsieve.data.errors import DataError
from stepsieve.data.trajectory import Label, ToolCall
from stepsieve.eval.stagewise.task_view import TaskView, Tool, canonical, declared, fields_of, observed, view_of


def test_a_view_has_no_place_for_a_reference(desk):
    secret = {"evaluation_criteria": {"actions": [{"name": "book_room", "arguments": {"room_id": "GOLD-1"}}]}}
    label = Label((1, 2), "Incorrect Step", (-1,), reason="GOLD-1")
    run = replace(
        desk.run([("find_guest", {"name": "Ann"}, {})]), task=secret, labels=(label,), extra={"gold": "GOLD-1"}
    )
    view = view_of(run, observed([run]))
    assert {field.name for field in fields(TaskView)} == {"instruction", "tools", "policy", "domain", "task_id"}
    assert "GOLD-1" not in repr(view)
    assert view == view_of(replace(run, task=None, labels=None, extra={}, outcome=0.0), observed([run]))
    with pytest.raises(TypeError):
        TaskView("x", (), gold=secret)


def test_what_a_schema_holds_beside_its_words_is_left_out():
    parameters = {"type": "object", "properties": {"id": {"type": "string", "x-gold": "A1"}}, "x-gold": "A1"}
    (tool,) = declared([{"type": "function", "function": {"name": "get", "parameters": parameters}}])
    assert tool.parameters == {"type": "object", "properties": {"id": {"type": "string"}}}


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        (ToolCall("book_room", {"room_id": "R1", "guest": "G1", "price": 10}), None),
        (ToolCall("bookRoom", {"room_id": "R1", "guest": "G1", "price": 10}), None),
        (ToolCall("book_room", {"room_id": "R1", "guest": "G1", "price": "ten"}), "is not of type 'number'"),
        (ToolCall("book_room", {"room_id": "R1"}), "is a required property"),
        (ToolCall("burn_room", {}), "no such tool"),
        (ToolCall("book_room", {"": "{room_id:"}), "no JSON object"),
        (ToolCall("book_room", {}, requestor="user"), "no such tool"),
    ],
)
def test_ill_formed_calls(view, call, wrong):
    found = view.violation(call)
    assert found is None if wrong is None else wrong in found


def test_one_spelling_of_a_name():
    assert {canonical(name) for name in ("getUserDetails", "get-user-details", "GET_USER_DETAILS")} == {
        "get_user_details"
    }


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(DataError, match="different names"):
        TaskView("x", (Tool("get_it"), Tool("getIt")))


def test_declared_effects_and_outputs():
    tools = [
        {"name": "wipe", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
        {"name": "get_it", "annotations": {"readOnlyHint": False}},
        {"name": "get_that"},
        {
            "name": "frobnicate",
            "outputSchema": {
                "type": "object",
                "properties": {"rows": {"type": "array", "items": {"properties": {"id": {"type": "string"}}}}},
            },
        },
    ]
    found = declared(tools)
    assert [tool.effect for tool in found] == ["read", "write", "read", "write"]
    assert found[3].outputs == {"rows": "array", "rows.*": "object", "rows.*.id": "string"}


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ("x", "a list of tool definitions"),
        ([{"function": {}}], "tools\\[0\\].name: expected a name"),
        ([{"name": "a", "parameters": {"type": "nothing"}}], "a JSON schema"),
        ([{"name": "a", "effect": "harm"}], "one of read, write, say"),
    ],
)
def test_definitions_that_are_none(tools, words):
    with pytest.raises(DataError) as caught:
        declared(tools)
    assert re.search(words, str(caught.value))


def test_an_observed_catalogue(desk):
    prose = "the guest would like to speak to somebody else"
    run = desk.run(
        [
            ("find_guest", {"name": "Ann", "age": 40}, {"guest": {"id": "G1"}}),
            ("find_guest", {"name": "Bob"}, {"guest": {"id": "G2"}}),
            ("find_guest", {"nome": 3}, "Error: no such parameter"),
            ("page_manager", {"summary": prose}, "ok"),
            ("merge_rooms", {"room": "R1"}, "ok"),
        ]
    )
    found = {tool.name: tool for tool in observed([run])}
    guest = found["find_guest"]
    assert guest.parameters["required"] == ["name"]
    assert guest.parameters["properties"] == {"age": {"type": ["integer"]}, "name": {"type": ["string"]}}
    assert guest.outputs == {"guest": "object", "guest.id": "string"}
    assert {name: tool.effect for name, tool in found.items()} == {
        "find_guest": "read",
        "page_manager": "say",
        "merge_rooms": "write",
    }


def test_fields_of_results():
    assert fields_of('{"a": [{"b": 1.5}], "c": null}') == {
        "a": "array",
        "a.*": "object",
        "a.*.b": "number",
        "c": "null",
    }
    assert fields_of("Error: no") == fields_of("{broken") == {}

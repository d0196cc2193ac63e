"""Tokens of many texts at once, against cutting them one by one with strings; running maxima against a loop."""

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepsieve.data.features.groups import Grouping
from stepsieve.data.features.tokens import _LONG, leaves, tokenize

texts = st.lists(st.text(alphabet="abZ019\"':.,_-@ \n\x01é你好", max_size=40), max_size=8)


def cut(text):
    """The same tokens by means of strings."""
    if not text.isascii() and len(text.encode("utf-8", "replace")) > 1.25 * len(text):
        return {character.encode() for character in re.findall(r"\w", text.lower())}
    raw = text.encode("ascii", "replace").decode()
    raw = raw.replace('":', "\x01 ").replace(". ", " ").replace(".\n", " ").replace(": ", " ")
    return {token.encode() for token in re.sub(r"[^a-z0-9_\-.:@\x01]", " ", raw.lower()).split()}


def found_in(many):
    tokens = tokenize(many)
    spelling = tokens.spelling
    assert len(set(spelling)) == len(spelling) == len(tokens.key) == len(tokens.specific)
    for token, key, specific in zip(spelling, tokens.key, tokens.specific, strict=True):
        assert key == token.endswith(b"\x01")
        assert specific == (not key and re.search(rb"[0-9]", token) is not None)
    stretches = [tokens.token[a:b] for a, b in zip(tokens.starts[:-1], tokens.starts[1:], strict=True)]
    assert all((np.diff(own) > 0).all() for own in stretches)
    return [{spelling[token] for token in own} for own in stretches]


@given(texts)
def test_tokens_are_those_of_each_text(many):
    assert found_in(many) == [cut(text) for text in many]


def test_what_stays_whole():
    text = 'At 10:30, on 2024-05-01: pay $12.50 to a.b@c.de. {"order_id": "#W12", "note":"ok"}. End.'
    (found,) = found_in([text])
    assert found == {
        *(b"at", b"10:30", b"on", b"2024-05-01", b"pay", b"12.50", b"to", b"a.b@c.de"),
        *(b"order_id\x01", b"w12", b"note\x01", b"ok", b"end."),
    }


def test_long_tokens_differ_by_any_character():
    long = "x" * (_LONG + 1)
    words = ["x" * 8, "x" * 9, "x" * 16, "x" * _LONG, long, long + "y", "y" + long, long[:-1] + "y"]
    (found,) = found_in([" ".join(words)])
    assert found == {word.encode() for word in words}


def test_nothing_to_cut():
    assert found_in([]) == []
    assert found_in(["", " ", "...\n"]) == [set(), set(), {b".."}]
    assert found_in(["\ud800 x"]) == [{b"x"}]


def test_many_different_tokens_stay_apart():
    words = [f"w{number}" for number in range(20_000)]
    assert found_in([" ".join(words), words[7]]) == [{word.encode() for word in words}, {b"w7"}]


def test_leaves_are_the_values_without_their_keys():
    assert leaves({"a": ["x", {"b": 1.5, "c": None}], "d": True, "e": {}}) == ["x", "1.5", "None", "True"]


@given(st.lists(st.tuples(st.integers(-1, 3), st.sampled_from([0.0, 0.5, 2.0, 7.0])), max_size=30))
def test_greatest_before_and_after(members):
    group = np.array([own for own, _ in members], dtype=np.int64)
    value = np.array([number for _, number in members], dtype=np.float64)
    before = [max((v for g, v in members[:k] if g == own >= 0), default=-np.inf) for k, (own, _) in enumerate(members)]
    after = [
        max((v for g, v in members[k + 1 :] if g == own >= 0), default=-np.inf) for k, (own, _) in enumerate(members)
    ]
    assert Grouping(group).max_before(value).tolist() == before
    assert Grouping(group).max_after(value).tolist() == after

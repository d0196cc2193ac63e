"""What features must not see: the batch, the language beside a call, the names of tools, domains and ids."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsieve.data import features
from stepsieve.data.features import PAIR_FEATURES, pair_features
from stepsieve.data.simulate import simulate
from stepsieve.data.trajectory import REDUNDANCY_TYPES, Message, Trajectory
from stepsieve.models.scorer import create

FEW = [run for run in simulate(30, seed=5) if run.labels][:12]
CHINESE_TEXT = "由于网络问题，上次调用失败了。让我重试一下。"  # as released
CHINESE = re.compile("[\u4e00-\u9fff]")


def pairs_of(run):
    """The gold pairs of a run, and each step with the message before it."""
    labels = [(label.step, label.evidence) for label in run.labels or ()]
    return labels + [(step.reference, (max(0, step.call_index - 1),)) for step in run.steps]


def tables(runs):
    return pair_features(runs, [pairs_of(run) for run in runs])


ALONE = [tables([run])[0] for run in FEW]


@pytest.fixture(scope="module")
def model(simulated):
    """A model of the types, trained on other simulated runs."""
    labels = [run.labels or () for run in simulated]
    table = np.vstack(pair_features(simulated, [[(label.step, label.evidence) for label in own] for own in labels]))
    types = np.array([REDUNDANCY_TYPES.index(label.type) for own in labels for label in own])
    scorer = create("gbdt", [feature.name for feature in PAIR_FEATURES], 4, 0, rounds=15, threads=1)
    scorer.fit(table, types, np.ones(len(types)))
    return scorer


def same(model, runs, others):
    """Not one feature and so not one prediction differs."""
    before, after = np.vstack(tables(runs)), np.vstack(tables(others))
    different = [
        feature.name
        for feature, own, other in zip(PAIR_FEATURES, before.T, after.T, strict=True)
        if not np.array_equal(own, other, equal_nan=True)
    ]
    assert different == []
    np.testing.assert_array_equal(model.predict_proba(before), model.predict_proba(after))


# --- nothing leaks between the runs of a batch -----------------------------------------------------------------------


@given(st.lists(st.integers(0, len(FEW) - 1), min_size=1, max_size=14))
def test_a_run_has_the_same_features_alone_and_in_any_batch(order):
    for place, table in zip(order, tables([FEW[place] for place in order]), strict=True):
        np.testing.assert_array_equal(table, ALONE[place])


@pytest.mark.parametrize("size", [1, 5, 12, 13])
def test_the_size_of_a_batch_changes_nothing(size, monkeypatch):
    monkeypatch.setattr(features, "BATCH", size)
    for table, alone in zip(tables(FEW), ALONE, strict=True):
        np.testing.assert_array_equal(table, alone)


def test_runs_without_calls_stand_in_a_batch_without_effect():
    empty = [Trajectory("none", ()), Trajectory("text", (Message("user", "Hello B12"), Message("assistant", "Hi")))]
    mixed = [empty[0], FEW[0], empty[1], FEW[1], empty[0]]
    found = tables(mixed)
    np.testing.assert_array_equal(found[1], ALONE[0])
    np.testing.assert_array_equal(found[3], ALONE[1])
    assert [len(found[place]) for place in (0, 2, 4)] == [0, 0, 0]


def test_released_runs_have_the_same_features_alone_and_in_a_batch(released):
    some = released[::25]
    for run, table in zip(some, tables(some), strict=True):
        np.testing.assert_array_equal(table, tables([run])[0])


# --- the text beside a call ------------------------------------------------------------------------------------------


def beside_retries(run, text):
    """The run with a text beside each call that repeats a failed one."""
    failed, retries = set(), set()
    for step in run.steps:
        key = step.call.name, json.dumps(step.call.arguments, sort_keys=True)
        if key in failed:
            retries.add(step.call_index)
        if step.error:
            failed.add(key)
    messages = [replace(m, content=text) if i in retries else m for i, m in enumerate(run.messages)]
    return replace(run, messages=tuple(messages)), len(retries)


def test_no_language_beside_a_retry_changes_a_prediction(model, simulated):
    versions = [
        [beside_retries(run, text) for run in simulated]
        for text in (CHINESE_TEXT, "The last call failed. Let me try once more.", None)
    ]
    assert sum(count for _, count in versions[0]) >= 5
    first, *others = ([run for run, _ in version] for version in versions)
    for other in others:
        same(model, first, other)


def test_english_in_place_of_the_chinese_of_released_retries_changes_no_prediction(model, released):
    def translated(message):
        if message.tool_calls and CHINESE.search(message.content or ""):
            return replace(message, content="The last call failed because of a network problem. Let me try again.")
        return message

    with_chinese = [run for run in released if any(CHINESE.search(m.content or "") for m in run.messages)]
    assert len(with_chinese) > 10
    others = [replace(run, messages=tuple(map(translated, run.messages))) for run in with_chinese]
    assert not any(CHINESE.search(m.content or "") for run in others for m in run.messages)
    same(model, with_chinese, others)


# --- names -----------------------------------------------------------------------------------------------------------

WORD = re.compile(r"[A-Za-z0-9_]+")
ID_KEY = re.compile(r"(^|_)(ids?|number)$")


def strings(value, key=""):
    """(key, text) of every scalar in a JSON value."""
    if isinstance(value, dict):
        return [found for k, v in value.items() for found in strings(v, str(k))]
    if isinstance(value, (list, tuple)):
        return [found for v in value for found in strings(v, key)]
    return [(key, str(value))]


def parsed(text):
    try:
        return json.loads(text or "")
    except ValueError:
        return None


class Renaming:
    """Other names for the tools, the domain and the ids of a run, the same everywhere.

    Letters become letters and digits digits. A word that is no name stays, and no new name is a word that was there.
    """

    def __init__(self, run):
        texts = [message.content or "" for message in run.messages] + [run.policy, run.domain, run.task_id]
        values = [pair for step in run.interactions for pair in strings(step.call.arguments)]
        values += [pair for message in run.messages for pair in strings(parsed(message.content))]
        known = {word.lower() for text in [*texts, *(text for _, text in values)] for word in WORD.findall(text)}
        tools = " ".join(step.call.name for step in run.interactions)
        names = {word.lower() for word in WORD.findall(f"{tools} {run.domain}")}
        names |= {w.lower() for key, text in values if ID_KEY.search(key) for w in WORD.findall(text)}
        names |= {word for word in known if re.search(r"\d", word) and re.search(r"[a-z]", word)}
        # Short numbers are amounts and days as well as ids: they stay.
        names = {name for name in names if not name.isdigit() or len(name) > 3}
        self.shift = {}
        taken = known | names
        for name in sorted(names):
            for shift in range(1, 26 * 10):
                image = self.moved(name, shift)
                if image not in taken and (image[0] != "0" or name[0] == "0"):
                    taken.add(image)
                    self.shift[name] = shift
                    break

    @staticmethod
    def moved(word, shift):
        def one(c):
            if c.isdigit():
                return str((int(c) + 1 + shift // 3) % 10)
            base = ord("A" if c.isupper() else "a")
            return chr(base + (ord(c) - base + shift) % 26) if c.isalpha() else c

        return "".join(map(one, word))

    def word(self, match):
        word = match[0]
        return self.moved(word, self.shift[word.lower()]) if word.lower() in self.shift else word

    def text(self, text):
        return text and WORD.sub(self.word, text)

    def value(self, value):
        if isinstance(value, dict):
            return {key: self.value(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, str):
            return self.text(value)
        return int(self.text(str(value))) if type(value) is int else value

    def message(self, message):
        calls = tuple(
            replace(c, name=self.text(c.name), arguments=self.value(c.arguments), id=c.id and f"{c.id[::-1]}-9")
            for c in message.tool_calls
        )
        call_id = message.call_id and f"{message.call_id[::-1]}-9"
        return replace(message, content=self.text(message.content), tool_calls=calls, call_id=call_id)

    def run(self, run):
        return replace(
            run,
            id="other",
            messages=tuple(map(self.message, run.messages)),
            policy=self.text(run.policy),
            domain=self.text(run.domain),
            task_id="other",
            subset="other",
            agent="other",
            task=None,
        )


def renamed(runs):
    return [Renaming(run).run(run) for run in runs]


def test_the_renaming_of_this_test_renames():
    run = next(run for run in FEW if run.steps)
    other = Renaming(run).run(run)
    assert {step.call.name for step in run.steps}.isdisjoint(step.call.name for step in other.steps)
    assert run.domain != other.domain
    assert [step.reference for step in run.steps] == [step.reference for step in other.steps]
    assert [len(message.content or "") for message in run.messages] == [len(m.content or "") for m in other.messages]
    changed = [own.content != new.content for own, new in zip(run.messages, other.messages, strict=True)]
    assert sum(changed) >= 3


def test_new_names_for_tools_domains_and_ids_change_no_prediction(model, simulated):
    same(model, simulated, renamed(simulated))


def test_new_names_in_released_runs_change_no_prediction(model, released):
    some = released[::3]
    same(model, some, renamed(some))

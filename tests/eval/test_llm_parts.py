"""Prompts, replies, prices and the cache of the LLM judges."""

from dataclasses import replace

import pytest

from stepsieve.data.errors import DataError
from stepsieve.data.simulate import simulate
from stepsieve.data.trajectory import DUPLICATED, INCORRECT, REDUNDANCY_TYPES
from stepsieve.eval.detection import Detection
from stepsieve.eval.llm import replies
from stepsieve.eval.llm.cache import Cache, key
from stepsieve.eval.llm.cost import Price, Usage, price_of, read_prices
from stepsieve.eval.llm.prompts import INPUTS, conversation, exemplars, plan, units
from stepsieve.eval.llm.transcript import transcript
from stepsieve.eval.results import CLS, DET, RET, Answer

TASKS = (CLS, RET, DET)


@pytest.fixture(scope="module")
def corpus():
    return [run for run in simulate(60, seed=8) if run.labels][:30]


@pytest.fixture(scope="module")
def run(corpus):
    return next(run for run in corpus if len(run.labels) > 1)


# --- prompts ---------------------------------------------------------------------------------------------------------


def test_the_policy_is_there_unless_it_is_left_out(run):
    for task in TASKS:
        unit = units(task, [run])[0]
        assert run.policy in conversation(unit)[0]["content"]
        assert run.policy not in str(conversation(unit, "no-policy"))


def test_a_prompt_holds_what_the_task_gives_and_no_more(run):
    label = run.labels[0]
    given = {task: conversation(units(task, [run])[0])[-1]["content"] for task in TASKS}
    assert all(question.startswith(transcript(run)) for question in given.values())
    rest = {task: question.removeprefix(transcript(run)) for task, question in given.items()}
    assert f"Gold redundant step: {list(label.step)}" in rest[CLS]
    assert f"Gold evidence: {list(label.evidence)}" in rest[CLS]
    assert str(list(label.step)) in rest[RET]
    assert "vidence" not in rest[RET]
    assert "Gold" not in rest[DET]
    assert not any(kind in text for kind in REDUNDANCY_TYPES for text in rest.values())


def test_the_gold_type_changes_no_prompt_but_the_exemplars(run):
    other = replace(run, labels=tuple(replace(label, type=INCORRECT) for label in run.labels))
    for task in TASKS:
        for given in set(INPUTS) - {"oracle-plan"}:
            assert [conversation(u, given) for u in units(task, [run])] == [
                conversation(u, given) for u in units(task, [other])
            ]


@pytest.mark.parametrize("task", TASKS)
def test_exemplars_solve_no_task_that_is_judged_and_are_answered_right(task, corpus):
    shown = exemplars(task, corpus)
    assert shown.keys() == {run.id for run in corpus}
    for unit in units(task, corpus):
        own = shown[unit.run.id]
        assert own
        assert all(other.run.group != unit.run.group for other in own)
        turns = conversation(unit, "few-shot", own)
        assert [turn["role"] for turn in turns] == ["system", *["user", "assistant"] * len(own), "user"]
        for other, reply in zip(own, turns[2::2], strict=False):
            answer = replies.read(task, reply["content"], other.run)
            if task == DET:
                assert [(found.step, found.type, found.evidence) for found in answer] == [
                    (label.step, label.type, label.evidence)
                    for label in sorted(other.run.labels, key=lambda own: own.step)
                ]
            else:
                assert answer == Answer(other.gold.type, other.gold.evidence if task == RET else None)
    if task != DET:
        assert len({other.gold.type for other in shown[corpus[0].id]}) == len(shown[corpus[0].id]) > 1


def test_a_plan_is_the_actions_of_the_task(run):
    actions = [{"name": "find", "arguments": {"id": 7}}, {"name": "stop", "kwargs": {}, "requestor": "user"}]
    for task in ({"evaluation_criteria": {"actions": actions}}, {"actions": actions}):
        planned = replace(run, task=task)
        assert plan(planned).splitlines()[1:] == ['1. assistant: find({"id":7})', "2. user: stop({})"]
        assert plan(planned) in conversation(units(DET, [planned])[0], "oracle-plan")[-1]["content"]
    assert plan(replace(run, task={"actions": []})).endswith("no call is needed")
    with pytest.raises(DataError, match=f"{run.id}.*actions that solve it"):
        plan(replace(run, task={"id": "x"}))


# --- replies ---------------------------------------------------------------------------------------------------------

TYPE = '"redundant_step_type": "Duplicated Step"'


def test_what_was_asked_for_is_read(run):
    call, result = step = run.labels[0].step
    pair = f"[{call}, {result}]"
    assert replies.read(CLS, f" {{{TYPE}}}\n", run) == Answer(DUPLICATED)
    assert replies.read(CLS, f"```json\n{{{TYPE}}}\n```", run) == Answer(DUPLICATED)
    assert replies.read(RET, f'{{"evidence_step_idx": [-1], {TYPE}}}', run) == Answer(DUPLICATED, (-1,))
    assert replies.read(DET, "[]", run) == []
    found = f'[{{"redundant_step_idx": {pair}, "evidence_step_idx": {pair}, {TYPE}, "confidence": 1}}]'
    assert replies.read(DET, found, run) == [Detection(step, DUPLICATED, step, 1)]


STEPS = f'"evidence_step_idx": [-1], {TYPE}, "confidence"'


@pytest.mark.parametrize(
    ("task", "text", "says"),
    [
        (CLS, "", "JSON"),
        (CLS, "It is a Duplicated Step.", "JSON"),
        (CLS, f"Here: {{{TYPE}}}", "JSON"),
        (CLS, f"{{{TYPE}}} {{{TYPE}}}", "JSON"),
        (CLS, f"[{{{TYPE}}}]", "JSON object"),
        (CLS, '{"redundant_step_type": "Duplicate"}', "Duplicated Step"),
        (CLS, '{"redundant_step_type": null}', "Duplicated Step"),
        (CLS, f'{{{TYPE}, "why": "twice"}}', "fields"),
        (RET, f"{{{TYPE}}}", "fields"),
        (RET, f'{{"evidence_step_idx": "[2, 3]", {TYPE}}}', "list of message indices"),
        (RET, f'{{"evidence_step_idx": [1.5], {TYPE}}}', "integer"),
        (RET, f'{{"evidence_step_idx": [9000, 9001], {TYPE}}}', "9000"),
        (RET, f'{{"evidence_step_idx": [], {TYPE}}}', "evidence_step_idx"),
        (DET, '{"redundant": []}', "JSON list"),
        (
            DET,
            f'[{{"redundant_step_idx": [0, 1], {STEPS}: 1}}]',
            "assistant call",
        ),
        (DET, f'[{{"redundant_step_idx": STEP, {STEPS}: 2}}]', "from 0 to 1"),
        (
            DET,
            f'[{{"redundant_step_idx": STEP, {STEPS}: true}}]',
            "from 0 to 1",
        ),
        (
            DET,
            f'[{{"redundant_step_idx": STEP, {STEPS}: 1}}, {{"redundant_step_idx": STEP, {STEPS}: 1}}]',
            "each step once",
        ),
    ],
)
def test_anything_else_is_unusable(task, text, says, run):
    with pytest.raises(DataError, match=says):
        replies.read(task, text.replace("STEP", str(list(run.labels[0].step))), run)


# --- prices and the cache --------------------------------------------------------------------------------------------


def test_the_shipped_prices_are_known_by_name_vendor_and_date():
    prices = read_prices()
    assert price_of("gpt-4o-mini", prices) == Price(0.15, 0.6, 0.075)
    assert price_of("openai/gpt-4o-mini", prices) == price_of("gpt-4o-mini-2024-07-18", prices) == prices["gpt-4o-mini"]
    assert price_of("gpt-4o-maxi", prices) is None
    assert Price(2, 8, 0.5).of(Usage(1, 1_000_000, 400_000, 100_000)) == pytest.approx(0.6 * 2 + 0.4 * 0.5 + 0.8)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- a", "prices by model"),
        ("m: 3", "m: "),
        ("m: {input: 1}", "m.output"),
        ("m: {input: -1, output: 1}", "m.input"),
        ("m: {input: 1, output: 1, extra: 1}", "'extra'"),
        ("m: {input: .nan, output: 1}", "m.input"),
        ("{", "YAML"),
    ],
)
def test_a_table_that_is_none_is_one_line(text, says, tmp_path):
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(DataError, match=says) as error:
        read_prices(tmp_path / "p.yaml")
    assert str(error.value).startswith(str(tmp_path / "p.yaml"))
    assert "\n" not in str(error.value)


def test_a_cache_is_by_request_and_outlives_its_process(tmp_path):
    one, other = {"a": 1, "b": [2]}, {"a": 1, "b": [3]}
    with Cache(tmp_path / "c") as cache:
        assert cache.get(key(one)) is None
        cache.put(key(one), {"text": "é"})
    with Cache(tmp_path / "c") as cache:
        assert cache.get(key({"b": [2], "a": 1})) == {"text": "é"}
        assert cache.get(key(other)) is None
        assert len(cache) == 1


def test_a_cache_that_is_none_is_one_line(tmp_path):
    (tmp_path / "c").write_text("something else, and long enough to be no empty database\n" * 30)
    with pytest.raises(DataError, match="cache that can be read"):
        Cache(tmp_path / "c")

"""RedundancyBench's prompts: read back without loss, and answered with the official metrics of eval/bench.py."""

import json
import math
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsieve.data.simulate import SimulationConfig, simulate
from stepsieve.data.trajectory import REDUNDANCY_TYPES, Label, Message, ToolCall, Trajectory
from stepsieve.eval.bench import predict_all
from stepsieve.eval.llm.transcript import transcript as own_prompt
from stepsieve.eval.results import read as read_results
from stepsieve.eval.scores import match, score
from stepsieve.models.judge import CLS, DET, RET, Judge

pytest.importorskip("fastapi")

from stepsieve.models.serving import chat, runner, stages
from stepsieve.models.serving.refusals import CannotAnswer, Refused
from stepsieve.models.serving.work import Model

CASES = Path(__file__).parents[1] / "cases" / "chat"
FORMS = {
    CLS: '{\n  "redundant_step_type": "Duplicated Step"\n}',
    RET: '{\n  "evidence_step_idx": [2, 3],\n  "redundant_step_type": "Duplicated Step"\n}',
    DET: '[\n  {\n    "redundant_step_idx": [4, 5],\n    "evidence_step_idx": [2, 3],\n'
    '    "redundant_step_type": "Duplicated Step",\n    "confidence": 0.9\n  }\n]',
}


# --- prompts in the runner's form ------------------------------------------------------------------------------------


def text(value):
    return json.dumps(value, ensure_ascii=False)


def system_of(task, run):
    return f"You are evaluating a recorded trajectory.\n\nReturn exactly:\n{FORMS[task]}\n\nPolicy:\n{run.policy}"


def lines_of(run, marks):
    """The trajectory as the runner writes it; a result that has no error flag is error=false."""
    for index, message in enumerate(run.messages):
        owner = f" requestor={message.requestor}" if message.role == "tool" else ""
        yield f"[{index}] {message.role}{owner}{marks.get(index, '')}"
        if message.content:
            yield f"  content: {text(message.content)}"
        for it in run.interactions:
            pair = f"interaction=[{it.call_index},{it.result_index}]"
            if it.call_index == index:
                arguments = json.dumps(dict(it.call.arguments), ensure_ascii=False, sort_keys=True)
                yield f"  tool_call: {pair} name={it.call.name} arguments={arguments}"
            if it.result_index == index:
                yield f"  tool_result: {pair} error={str(bool(message.error)).lower()}"


def gold_of(run, reference):
    if reference == (-1,):
        return "[-1] (no separate evidence)"
    if len(reference) == 1:
        return f"[{reference[0]}] {run.messages[reference[0]].role} content={text(run.messages[reference[0]].content)}"
    if len(reference) > 2:
        pairs = [gold_of(run, reference[n : n + 2]) for n in range(0, len(reference), 2)]
        return "Joint evidence (all events required):\n" + "\n".join(pairs)
    result = run.messages[reference[1]].content
    return f"[{reference[0]},{reference[1]}] actor=assistant tool=some arguments={{}} result={text(result)}"


def user_of(task, run, label=None, most=None):
    named = {} if label is None else {"EVIDENCE": label.evidence if task == CLS else (), "REDUNDANT": label.step}
    marks = {}
    for name, reference in named.items():
        for index in reference:
            marks[index] = f"{marks.get(index, '')} <{name}>"
    parts = [f"Domain: {run.domain}", "Recorded observable trajectory:\n" + "\n".join(lines_of(run, marks))]
    if task != CLS:
        own = [list(it.reference) for it in run.steps]
        parts.append(f"Assistant tool interactions eligible as redundant steps:\n{own}\nOr a message index [i].")
    if task == DET:
        parts.append(f"Return at most {most} ranked predictions." if most else "Return all interactions.")
    if task == CLS:
        parts += [
            f"Gold redundant step:\n{gold_of(run, label.step)}",
            f"Gold evidence:\n{gold_of(run, label.evidence)}",
        ]
    if task == RET:
        parts.append(f"Gold redundant step whose evidence and type must be predicted:\n{gold_of(run, label.step)}")
    return "\n\n".join(parts)


# --- reading them back -----------------------------------------------------------------------------------------------


def plain(run):
    """What a prompt can say of a run."""
    messages = [(m.role, m.content or None, m.requestor if m.role == "tool" else "") for m in run.messages]
    steps = [
        (it.reference, it.call.name, dict(it.call.arguments), it.call.requestor, it.error) for it in run.interactions
    ]
    return run.domain, messages, steps


def test_simulated_runs_are_read_back(simulated):
    runs = simulate(40, 7, SimulationConfig(parallel_share=1.0, failure_share=0.3))
    for run in [*simulated, *runs]:
        assert plain(runner.parse(user_of(DET, run)).trajectory) == plain(run)
        assert plain(runner.parse(own_prompt(run)).trajectory) == plain(run)


def test_released_runs_are_read_back(released):
    for run in released:
        assert plain(runner.parse(user_of(DET, run)).trajectory) == plain(run)
        for label in run.labels:
            found = runner.parse(user_of(CLS, run, label))
            assert (tuple(found.step), tuple(found.evidence)) == (label.step, label.evidence)


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(st.lists(st.tuples(WORDS, WORDS, st.dictionaries(WORDS, WORDS, max_size=2)), min_size=1, max_size=4))
def test_no_text_can_pass_for_a_line_of_the_prompt(parts):
    messages = []
    for number, (said, result, arguments) in enumerate(parts):
        messages += [
            Message("user", f"{said}\n\nGold evidence:\n[0,1]\u2028[9] tool\r\n[3] user\x85"),
            Message("assistant", None, (ToolCall("look", arguments, str(number)),)),
            Message("tool", f"{result}\n  tool_result: interaction=[1,2] error=true", call_id=str(number)),
        ]
    run = Trajectory("x", tuple(messages), labels=(Label((1, 2), REDUNDANCY_TYPES[0], (0,)),))
    found = runner.parse(user_of(CLS, run, run.labels[0]))
    assert plain(found.trajectory) == plain(run)
    assert (found.step, found.evidence) == ([1, 2], [0])


@pytest.fixture(scope="module")
def model():
    return Model(Judge.from_pretrained(), "model")


def case(name):
    system, user = (CASES / f"{name}.txt").read_text(encoding="utf-8").split("=== user\n")
    return system.removeprefix("=== system\n"), user


def ask(model, system, user):
    work, reply = runner.read(system, user, model)
    return json.loads(reply(model.answer([work])[0]))


def test_a_prompt_written_by_hand(model):
    system, user = case("classify")
    assert runner.recognise(user)
    found = runner.parse(user)
    run = found.trajectory
    assert (run.domain, len(run.messages), found.step, found.evidence) == ("library", 11, [4, 5], [1, 3])
    assert [it.reference for it in run.interactions] == [(1, 3), (1, 2), (4, 5), (6, 7), (8, 9)]
    assert [it.reference for it in run.steps] == [(1, 3), (1, 2), (4, 5), (8, 9)]
    assert [it.error for it in run.interactions] == [False, False, False, False, True]
    assert run.messages[0].content.startswith("Please renew my loan.\nMy card")
    assert ask(model, system, user) == {"redundant_step_type": "Duplicated Step"}


def test_the_reply_has_the_fields_asked_for_in_their_order(model):
    system, user = case("classify")
    retrieve = user.partition("\n\nGold evidence")[0]
    detect = user.partition("\n\nGold redundant")[0] + "\n\nReturn all."
    assert list(ask(model, FORMS[RET], retrieve)) == ["evidence_step_idx", "redundant_step_type"]
    turned = '{"redundant_step_type": "<one of the four>", "evidence_step_idx": [call, result]}'
    assert list(ask(model, turned, retrieve)) == ["redundant_step_type", "evidence_step_idx"]
    for form, n in ((FORMS[DET], 4), ('[{"redundant_step_idx": [], "redundant_step_type": ""}]', 2)):
        rows = ask(model, form, detect)
        assert rows
        assert all(len(row) == n for row in rows)
    # Without an example in the system prompt it is what is given that tells the task.
    assert ask(model, "", user) == ask(model, system, user)
    assert ask(model, "", retrieve) == ask(model, FORMS[RET], retrieve)
    assert ask(model, "Find redundant steps.", detect) == ask(model, FORMS[DET], detect)
    inline = re.sub(r":\n(\[\d+,\d+\])", r": \1", user)
    assert ask(model, system, inline) == ask(model, system, user)


def test_at_most_so_many_are_returned(model, simulated):
    run = max(simulated, key=lambda run: len(run.labels or ()))
    everything = ask(model, FORMS[DET], user_of(DET, run))
    assert len(everything) > 2
    assert ask(model, FORMS[DET], user_of(DET, run, most=2)) == everything[:2]
    levels = [row["confidence"] for row in everything]
    assert levels == sorted(levels, reverse=True)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("[3] tool", "[4] tool", r"line 12 of the prompt: expected message \[3\]"),
        ("requestor=user", "requestor=nobody", "requestor"),
        ('content: "the app is open"', "content: the app is open", "content as JSON text"),
        ('content: "the app is open"', "content: [1]", "content as JSON text"),
        ("tool_call: interaction=[4,5]", "tool_call: interaction=[1,5]", "calls of message"),
        ("tool_result: interaction=[4,5]", "tool_result: interaction=[4,9]", "results in the tool message"),
        ("Gold redundant step:\n[4,5]", "Gold redundant step:\n[4,6]", "answered assistant call"),
        ("Gold redundant step:\n[4,5]", "Gold redundant step:\n[6,7]", "answered assistant call"),
        ("Gold redundant step:\n[4,5]", "", "gold redundant step"),
        ("Gold evidence:\n[1,3]", "Gold evidence:\n[99]", "message indices from 0 to 10"),
        ("Gold evidence:\n[1,3]", "", "gold evidence"),
        ('{"card": "C-7"}\n  tool_call', '{"card": ' + "[" * 200 + "]" * 200 + "}\n  tool_call", "levels of nesting"),
    ],
)
def test_a_broken_prompt_says_what_is_wrong(model, old, new, expected):
    system, user = case("classify")
    assert old in user
    with pytest.raises(Refused, match=expected) as caught:
        ask(model, system, user.replace(old, new))
    assert caught.value.status == 422


def test_other_fields_than_can_be_given_are_refused(model):
    with pytest.raises(CannotAnswer, match="'reason'"):
        ask(model, '{"redundant_step_type": "", "reason": ""}', case("classify")[1])


def test_a_checkpoint_without_the_heads_says_so(model):
    small = Model(Judge({CLS: model.judge.heads[CLS]}), "small")
    assert chat.can_answer(small) == ["the prompts of RedundancyBench's runner for StepCls"]
    system, user = case("classify")
    assert ask(small, system, user)
    with pytest.raises(CannotAnswer, match="EvidenceRet can't be answered with the heads cls"):
        ask(small, FORMS[RET], user)


def test_stage_prompts_are_told_apart():
    assert all(stages.recognise(case(name)[1]) for name in ("standard", "adjudication"))
    assert not stages.recognise(case("classify")[1])


# --- the released runner's three tasks -------------------------------------------------------------------------------


def post(url, system, user):
    """As the runner does: urllib, and the text of the first choice."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    body = {"model": "stepsieve", "messages": messages, "stream": False, "temperature": 0.0, "max_tokens": 32768}
    headers = {"Authorization": "Bearer any", "Content-Type": "application/json"}
    data = json.dumps(body, ensure_ascii=False).encode()
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/v1/chat/completions", data, headers), timeout=60
    ) as reply:
        content = json.loads(reply.read())
    assert content["choices"][0]["finish_reason"] == "stop"
    return content["choices"][0]["message"]["content"]


def reference(value, evidence):
    """A reference by the released rules; None where it is none."""
    if not isinstance(value, list) or not value or any(isinstance(n, bool) or not isinstance(n, int) for n in value):
        return None
    fits = value == [-1] or len(value) == 1 or len(value) % 2 == 0 if evidence else len(value) == 2
    return value if fits and (value == [-1] or min(value) >= 0) else None


def parsed(task, reply):
    """What a reply says, by the released rules: JSON and nothing else, the four types, whole references."""
    value = json.loads(reply)
    if task == DET:
        assert isinstance(value, list)
        for row in value:
            assert reference(row["redundant_step_idx"], False)
            assert reference(row["evidence_step_idx"], True)
            assert row["redundant_step_type"] in REDUNDANCY_TYPES
            assert isinstance(row["confidence"], float)
            assert math.isfinite(row["confidence"])
            assert 0 <= row["confidence"] <= 1
        return {"predictions": value}
    assert isinstance(value, dict)
    assert value["redundant_step_type"] in REDUNDANCY_TYPES
    found = {"predicted_type": value["redundant_step_type"]}
    if task == RET:
        found["predicted_evidence_idx"] = reference(value["evidence_step_idx"], True)
    return found


def ask_all(url, task, runs):
    """A result file of the task, as the runner writes it."""
    results = []
    for run in runs:
        for label in [None] if task == DET else run.labels:
            reply = post(url, system_of(task, run), user_of(task, run, label))
            unit = {"trajectory_id": run.id}
            if label is not None:
                unit["redundant_step_idx"] = list(label.step)
            results.append({**unit, **parsed(task, reply), "error": None})
    return {"metadata": {"model": "served"}, "results": results}


def official(url, tmp_path, judge, runs):
    """The metrics of what the server replied, and those of the checkpoint itself."""
    for own in predict_all(judge, Path("served"), runs):
        file = tmp_path / f"{own.task}.json"
        file.write_text(json.dumps(ask_all(url, own.task, runs)), encoding="utf-8")
        served = score(match(read_results(file), runs))
        due = score(match(own, runs))
        names = [name for name in served["all"] if not name.startswith(("ece", "aurc"))]
        yield (
            own.task,
            [served[part][name] for part in served for name in names if name in served[part]],
            [due[part][name] for part in served for name in names if name in served[part]],
        )


@pytest.mark.parametrize("corpus", ["simulated", "released"])
def test_the_runner_gets_the_official_metrics_of_bench(corpus, request, url, tmp_path, model):
    runs = [run for run in request.getfixturevalue(corpus) if run.labels]
    some = [runs[n * len(runs) // 20] for n in range(20)]
    tasks = []
    for task, served, due in official(url, tmp_path, model.judge, some):
        assert len(served) > 5
        assert served == pytest.approx(due, rel=1e-12, nan_ok=True)
        tasks.append(task)
    assert tasks == [CLS, RET, DET]


def test_a_refusal_reaches_the_runner_in_words(url):
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(url, "", "Hello!")
    assert caught.value.code == 422
    assert "StepCls" in json.loads(caught.value.read())["error"]["message"]

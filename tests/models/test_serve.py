"""The server as a client sees it: the official SDKs against a real process, and answers that are the judge's own."""

import asyncio
from pathlib import Path

import orjson
import pytest

from stepsieve.data.messages import write_message
from stepsieve.data.references import candidates
from stepsieve.data.simulate import simulate
from stepsieve.data.trajectory import REDUNDANCY_TYPES
from stepsieve.models.judge import Judge
from stepsieve.models.questions import NoulAnswer, ScoreAnswer

openai = pytest.importorskip("openai")
sdk = pytest.importorskip("typesafe_sdk")
wire = pytest.importorskip("stepsieve.models.serving.wire", exc_type=ImportError)

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def judge():
    return Judge.from_pretrained()


@pytest.fixture(scope="module")
def client(url):
    with sdk.TypeSafeClient(base_url=url, api_key="any", retry=sdk.RetryPolicy(max_retries=0)) as client:
        yield client


@pytest.fixture(scope="module")
def state(run):
    return state_of(run)


def state_of(run):
    return {"messages": [write_message(message) for message in run.messages], "policy": run.policy}


def about(label, task="step_cls"):
    named = {"task": task, "redundant_step_idx": list(label.step), "evidence_step_idx": list(label.evidence)}
    return named if task == "step_cls" else {name: named[name] for name in ("task", "redundant_step_idx")}


def choice(label, options=REDUNDANCY_TYPES):
    criteria = options if isinstance(options, dict) else dict.fromkeys(options)
    return sdk.Choice(instructions=about(label), criteria=criteria)


def questions_of(run):
    """Every label as a choice and as a noul."""
    questions = {}
    for number, label in enumerate(run.labels):
        questions[f"type {number}"] = choice(label)
        questions[f"redundant {number}"] = sdk.Noul(instructions=about(label, "step_det"))
    return questions


def check(result, run, judge):
    """The answers equal the judge's to the last digit."""
    every = {found.step: found.redundant for found in judge.detect_batch([run], everything=True)[0]}
    for number, label in enumerate(run.labels):
        own = judge.classify(run, label.step, label.evidence)
        answer = result.choices[f"type {number}"]
        assert answer.choice == own.choice
        assert answer.confidence == own.confidence
        assert answer.probabilities == dict(zip(own.options, own.probabilities, strict=True))
        assert result.nouls[f"redundant {number}"].noul == every[label.step]


# --- typesafe-sdk ----------------------------------------------------------------------------------------------------


def test_the_sdk_gets_the_judges_answers(client, judge, run, state):
    result = client.system_one(state, questions_of(run))
    assert list(result.answers) == list(questions_of(run))
    check(result, run, judge)
    assert result.model == "stepsieve-pretrained"
    assert result.usage.input_tokens > len(orjson.dumps(state)) // 5
    assert result.usage.output_tokens > 0


@pytest.mark.parametrize("compression", ["zstd", False])
def test_the_sdk_asks_asynchronously_and_compressed(url, judge, compression):
    runs = [run for run in simulate(14, seed=8) if run.labels]

    async def ask():
        async with sdk.AsyncTypeSafeClient(base_url=url, api_key="any", compression=compression) as client:
            return await asyncio.gather(*(client.system_one(state_of(run), questions_of(run)) for run in runs))

    for run, result in zip(runs, asyncio.run(ask()), strict=True):
        check(result, run, judge)


def test_the_models_are_listed_for_both_clients(client, url):
    (model,) = client.models.list().models
    assert model.name == "stepsieve-pretrained"
    assert "step_cls" in model.description
    assert [model.id for model in openai.OpenAI(base_url=f"{url}/v1", api_key="any").models.list()] == [model.name]


def test_options_can_be_renamed_and_reordered(client, judge, run, state):
    label = run.labels[0]
    own = judge.classify(run, label.step, label.evidence)
    by_type = dict(zip(own.options, own.probabilities, strict=True))
    options = {
        "D": {"type": "Exploratory Step"},
        "c: incorrect": "breaks a rule",
        "ABNORMAL": None,
        "again": "Duplicated Step: earlier valid information covers it, and it is not incorrect",
    }
    answer = client.system_one(state, {"?": choice(label, options)}).choices["?"]
    assert list(answer.probabilities) == list(options)
    assert list(answer.probabilities.values()) == [by_type[name] for name in reversed(REDUNDANCY_TYPES)]
    some = client.system_one(state, {"?": choice(label, REDUNDANCY_TYPES[:2])}).choices["?"]
    total = by_type[REDUNDANCY_TYPES[0]] + by_type[REDUNDANCY_TYPES[1]]
    assert some.probabilities == pytest.approx({name: by_type[name] / total for name in REDUNDANCY_TYPES[:2]})


def test_words_ask_the_same_as_an_object(client, judge, run, state):
    label = run.labels[0]
    step, evidence = list(label.step), list(label.evidence)
    types = dict.fromkeys(REDUNDANCY_TYPES)
    words = [
        f"Of which type is the redundant step {step}, given the evidence {evidence}?",
        f"Given the evidence step {evidence}, classify step {step}.",
        f"{step} {evidence}",
    ]
    questions = {text: sdk.Choice(instructions=text, criteria=types) for text in words}
    questions["noul"] = sdk.Noul(instructions=f"Is step {step} redundant?", criteria={"true": "It is redundant."})
    result = client.system_one(state, questions)
    own = judge.classify(run, label.step, label.evidence).confidence
    assert [result.choices[text].confidence for text in words] == [own] * 3
    every = {found.step: found.redundant for found in judge.detect_batch([run], everything=True)[0]}
    assert result.nouls["noul"].noul == every[label.step]


def evidence_question(step, options):
    asked = {"task": "evidence_ret", "redundant_step_idx": list(step)}
    return sdk.Choice(instructions=asked, criteria=dict.fromkeys(options))


def test_evidence_is_chosen_among_references(client, judge, run, state):
    questions, expected = {}, {}
    for number, label in enumerate(run.labels):
        among = [reference for reference in candidates(run) if reference != label.step]
        for name, some in (("all", among), ("few", among[-1:2:-2])):
            own = judge.evidence(run, label.step, some)
            questions[f"{name} {number}"] = evidence_question(label.step, own.options)
            expected[f"{name} {number}"] = own
    result = client.system_one(state, {**questions, "type": choice(run.labels[0])})
    for name, own in expected.items():
        answer = result.choices[name]
        assert (answer.choice, answer.confidence) == (own.choice, own.confidence)
        assert list(answer.probabilities.items()) == list(zip(own.options, own.probabilities, strict=True))
    assert result.choices["type"].choice in REDUNDANCY_TYPES


def test_references_may_be_written_with_other_blanks(client, judge, run, state):
    label = run.labels[0]
    first, second = label.evidence, (-1,)
    written = [str(list(first)).replace(" ", ""), " [ -1 ] "]
    answer = client.system_one(state, {"?": evidence_question(label.step, written)}).choices["?"]
    assert tuple(answer.probabilities) == tuple(written)
    assert tuple(answer.probabilities.values()) == judge.evidence(run, label.step, [first, second]).probabilities


def test_a_state_can_have_any_form_that_is_read(client, judge, run):
    label = run.labels[0]
    own = judge.classify(run, label.step, label.evidence).confidence
    messages = state_of(run)["messages"]
    chat = [openai_message(message) for message in messages]
    forms = [
        messages,
        chat,
        {"messages": chat, "tools": []},
        {"trajectory": {"messages": messages}, "policy": "Be kind."},
        {"trajectory": messages},
        orjson.dumps(messages).decode(),
    ]
    for form in forms:
        assert client.system_one(form, {"?": choice(label)}).choices["?"].confidence == own


def openai_message(message):
    if message["role"] == "tool":
        kept = {name: message[name] for name in ("role", "content", "requestor", "error") if name in message}
        return {**kept, "tool_call_id": message["id"]}
    calls = []
    for call in message["tool_calls"] or ():
        function = {"name": call["name"], "arguments": orjson.dumps(call["arguments"]).decode()}
        calls.append({"id": call["id"], "type": "function", "requestor": call["requestor"], "function": function})
    return {"role": message["role"], "content": message["content"], **({"tool_calls": calls} if calls else {})}


def test_the_limit_on_questions_is_64(client, run, state):
    question = choice(run.labels[0])
    assert len(client.system_one(state, {str(n): question for n in range(64)}).answers) == 64
    with pytest.raises(sdk.TypeSafeUnprocessableEntityError, match="at most 64 questions"):
        client.system_one(state, {str(n): question for n in range(65)})


# --- what can't be answered ------------------------------------------------------------------------------------------


def refused(client, state, question, *words):
    with pytest.raises(sdk.TypeSafeUnprocessableEntityError) as caught:
        client.system_one(state, {"q": question})
    for word in words:
        assert word in str(caught.value)
    return caught.value


CAN = ("this checkpoint answers", "step_cls", "evidence_ret", "step_det")


def test_plain_text_is_refused_with_what_can_be_asked(client):
    for text in ("I was charged twice. Please help.", {"document": "I was charged twice."}, ["a", "b"]):
        error = refused(client, text, sdk.Noul(instructions="Is this about billing?"), *CAN)
        assert error.body["detail"][0]["loc"][:2] == ["body", "state"]
        assert error.body["detail"][0]["type"] == "cannot_answer"
        assert error.body["detail"][0]["ctx"]["can_answer"]


@pytest.mark.parametrize(
    "instructions",
    [
        "Is the customer angry?",
        "Is step [1, 2] good?",
        "Is step [1, 2] not redundant?",
        "Isn't step [1, 2] redundant?",
        "Is step [1, 2] redundant or necessary?",
        "Is step [1, 2] or step [3, 4] redundant?",
        "Is the redundant step [1, 2] a Duplicated Step?",
        ["Is step [1, 2] redundant?"],
        {"task": "sentiment"},
        {"task": "step_cls", "redundant_step_idx": [1, 2], "evidence_step_idx": [3]},
        {"task": "step_det", "redundant_step_idx": [1, 2], "and": "is it long?"},
        {"redundant_step_idx": [1, 2]},
    ],
)
def test_a_yes_or_no_that_is_not_known_is_refused(client, state, instructions):
    error = refused(client, state, sdk.Noul(instructions=instructions), *CAN)
    assert error.body["detail"][0]["loc"][:3] == ["body", "questions", "q"]


def test_criteria_that_turn_the_question_around_are_refused(client, run, state):
    asked = about(run.labels[0], "step_det")
    for criteria in ({"true": "The step was needed."}, {"false": "The step is redundant."}, {"true": "not redundant"}):
        refused(client, state, sdk.Noul(instructions=asked, criteria=criteria), "criteria", *CAN)


def test_choices_and_scores_that_are_not_known_are_refused(client, run, state):
    label = run.labels[0]
    for options in (
        ("billing", "other"),
        ("Duplicated Step", "duplicated"),
        ("Duplicated Step",),
        ("Duplicated Step", "not abnormal"),
        ("Duplicated Step", "Abnormal or incorrect"),
    ):
        refused(client, state, choice(label, options), *CAN)
    refused(client, state, sdk.Score(instructions=about(label), criteria=["low", "high"]), *CAN)
    refused(client, state, sdk.Box(instructions="the step [1, 2]"), *CAN)
    refused(client, state, sdk.Choice(criteria=dict.fromkeys(REDUNDANCY_TYPES)), "no instructions")


def test_references_that_cannot_be_chosen_among_are_refused(client, run, state):
    step, far = run.labels[0].step, [10**6]
    for options, words in (
        (["[-1]"], ["at least two references"]),
        (["[-1]", "[ -1]"], ["all different"]),
        (["[-1]", "billing"], ["in brackets", "questions.q.criteria.billing"]),
        (["[-1]", str(far)], ["from 0 to", f"questions.q.criteria.{far}"]),
        (["[-1]", str(list(step))], [f"what could be the evidence of step {list(step)}"]),
    ):
        refused(client, state, evidence_question(step, options), *words)
    refused(client, state, evidence_question((0, 1), ["[-1]", "[0]"]), "questions.q.instructions.redundant_step_idx")
    asked = {"task": "evidence_ret", "redundant_step_idx": list(step)}
    refused(client, state, sdk.Noul(instructions=asked), *CAN)
    refused(client, state, sdk.Score(instructions=asked, criteria=["[-1]", "[0]"]), *CAN)


def test_a_step_that_is_not_there_is_refused(client, run, state):
    for name, value in (
        ("redundant_step_idx", [0, 1]),
        ("redundant_step_idx", [10**6, 10**6 + 1]),
        ("redundant_step_idx", "x"),
        ("redundant_step_idx", None),
        ("evidence_step_idx", [10**6]),
        ("evidence_step_idx", [2] * 100_000),
        ("evidence_step_idx", [1.5]),
    ):
        asked = sdk.Choice(instructions={**about(run.labels[0]), name: value}, criteria=dict.fromkeys(REDUNDANCY_TYPES))
        error = refused(client, state, asked, f"questions.q.instructions.{name}")
        assert len(str(error)) < 1000


def test_images_are_refused(client, run, state):
    label = run.labels[0]
    with pytest.raises(sdk.TypeSafeUnprocessableEntityError, match="images"):
        client.system_one(state, {"q": choice(label)}, extra_body={"assets": {"a": {"type": "image"}}})
    png = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489")
    with pytest.raises(sdk.TypeSafeAPIError, match="415"):
        client.system_one(sdk.Image(png), {"q": choice(label)})


# --- the openai client -----------------------------------------------------------------------------------------------


def prompts(name):
    system, user = (ROOT / "tests" / "cases" / "chat" / f"{name}.txt").read_text().split("=== user\n")
    return [{"role": "system", "content": system.removeprefix("=== system\n")}, {"role": "user", "content": user}]


@pytest.fixture(scope="module")
def chat(url):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
    return lambda messages, **options: client.chat.completions.create(model="any", messages=messages, **options)


def test_the_openai_client_gets_an_answer(chat):
    options = {"temperature": 0, "max_tokens": 100, "response_format": {"type": "json_object"}, "stream": False}
    reply = chat(prompts("classify"), **options)
    assert orjson.loads(reply.choices[0].message.content) == {"redundant_step_type": "Duplicated Step"}
    assert reply.choices[0].finish_reason == "stop"
    assert reply.model == "stepsieve-pretrained"
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens > 500


def test_content_may_come_in_parts(chat):
    messages = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in prompts("classify")]
    assert "Duplicated" in chat(messages).choices[0].message.content
    messages[1]["content"].append({"type": "image_url", "image_url": {"url": "data:"}})
    with pytest.raises(openai.UnprocessableEntityError, match="not text"):
        chat(messages)


def test_streaming_is_refused(chat):
    with pytest.raises(openai.UnprocessableEntityError, match="streaming is not supported"):
        chat(prompts("classify"), stream=True)
    with pytest.raises(openai.UnprocessableEntityError, match="n=1"):
        chat(prompts("classify"), n=2)


@pytest.mark.parametrize("name", ["standard", "adjudication"])
def test_stage_scores_are_refused_for_now(chat, name):
    with pytest.raises(openai.UnprocessableEntityError, match=r"stages .* can't be scored .*StepCls"):
        chat(prompts(name))


def test_unknown_prompts_are_refused(chat):
    for text in ("Hello!", "Standard Judge", "[0] user said so", ""):
        with pytest.raises(openai.UnprocessableEntityError, match=r"no known kind.*StepCls"):
            chat([{"role": "user", "content": text}])
    with pytest.raises(openai.UnprocessableEntityError, match=r"doesn't ask for redundant steps"):
        chat([{"role": "user", "content": '[0] user\n  content: "hi"\n\nSummarise this.'}])


def test_each_kind_of_answer_has_the_shape_that_the_sdk_reads():
    criteria = ["none", "some", "much"]
    asked = wire.ScoreQuestion(type="score", instructions="How much?", criteria=criteria)
    dressed = wire.dress(asked, ScoreAnswer((0.0, 1.0, 2.0), (0.1, 0.2, 0.7)))
    answer = sdk.ScoreAnswer.model_validate_json(orjson.dumps(dressed))
    assert answer.score == pytest.approx(1.6)
    assert (answer.confidence, answer.legend) == (0.7, dict(enumerate(criteria)))
    assert answer.probabilities == {0: 0.1, 1: 0.2, 2: 0.7}
    noul = sdk.NoulAnswer.model_validate(wire.dress(wire.NoulQuestion(type="noul"), NoulAnswer(0.25)))
    assert noul.noul == 0.25

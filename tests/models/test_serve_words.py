"""Questions in anyone's words, to a server whose checkpoint has an encoder: a random one of two layers."""

import asyncio

import pytest

from stepsieve.data.features import PAIR_FEATURES
from stepsieve.data.messages import write_message
from stepsieve.data.simulate import simulate
from stepsieve.data.trajectory import REDUNDANCY_TYPES
from stepsieve.models.calibrate import Temperature
from stepsieve.models.checkpoint import Head
from stepsieve.models.fusion import score_names
from stepsieve.models.judge import CLS, SCHEMAS, Judge
from stepsieve.models.questions import Choice, Noul
from stepsieve.models.scorer import create

httpx2 = pytest.importorskip("httpx2")
sdk = pytest.importorskip("typesafe_sdk")
pytest.importorskip("fastapi")
pytest.importorskip("transformers", reason="the extra encoder is not installed")

from stepsieve.models.encoder import Encoder  # noqa: E402
from stepsieve.models.serving.app import create_app  # noqa: E402
from stepsieve.models.serving.words import MAX_OPTIONS  # noqa: E402
from stepsieve.models.serving.work import Model  # noqa: E402


@pytest.fixture(scope="module")
def judge(tiny_base):
    """One head, which reads text alone."""
    names = tuple(feature.name for feature in PAIR_FEATURES) + score_names(REDUNDANCY_TYPES, by_candidate=False)
    scorer = create("encoder", names, len(REDUNDANCY_TYPES))
    encoder = Encoder.from_base(tiny_base, window=64)
    encoder.scorer.outer.weight.data.mul_(20)  # far from uniform answers
    return Judge(
        {CLS: Head(CLS, "encoder", scorer, Temperature(), REDUNDANCY_TYPES, names, SCHEMAS[CLS], encoder=encoder)}
    )


@pytest.fixture(scope="module")
def run():
    return next(run for run in simulate(40, seed=3) if run.labels)


@pytest.fixture(scope="module")
def ask(judge, run):
    """Asks an application of its own, in this process, through the official client."""
    state = {"messages": [write_message(message) for message in run.messages]}

    async def answered(questions, state):
        app = create_app(Model(judge, "m"))
        transport = httpx2.ASGITransport(app)
        client = sdk.AsyncTypeSafeClient(base_url="http://x", api_key="any", transport=transport)
        async with app.router.lifespan_context(app), client:
            return await client.system_one(state, questions)

    return lambda questions, state=state: asyncio.run(answered(questions, state))


def test_words_are_answered_as_the_judge_decides(ask, judge, run):
    asked = [
        Noul("Was the user angry?"),
        Noul("Is step [1, 2] not redundant?"),
        Noul("Was the user angry? yes: the user shouts no: the user is calm"),
        Choice("Who booked?", ("the user", "the agent: the one that has tools", "nobody")),
        Choice("How well did it go?", ("0: badly", "1: so so", "2: well")),
    ]
    result = ask(
        {
            "angry": sdk.Noul(instructions=asked[0].question),
            "not": sdk.Noul(instructions=asked[1].question),
            "described": sdk.Noul(
                instructions=asked[0].question, criteria={"true": "the user shouts", "false": "the user is calm"}
            ),
            "who": sdk.Choice(
                instructions=asked[3].question,
                criteria={"the user": None, "the agent": "the one that has tools", "nobody": None},
            ),
            "well": sdk.Score(instructions=asked[4].question, criteria=["badly", "so so", "well"]),
        }
    )
    *nouls, who, well = judge.decide(run, asked)
    assert [result.nouls[name].noul for name in ("angry", "not", "described")] == pytest.approx(
        [answer.probability for answer in nouls], abs=1e-6
    )
    assert nouls[0].probability != pytest.approx(nouls[2].probability, abs=1e-4)
    answer = result.choices["who"]
    assert list(answer.probabilities) == ["the user", "the agent", "nobody"]
    assert list(answer.probabilities.values()) == pytest.approx(list(who.probabilities), abs=1e-6)
    assert answer.probabilities[answer.choice] == answer.confidence == max(answer.probabilities.values())
    answer = result.scores["well"]
    assert answer.probabilities == pytest.approx(dict(enumerate(well.probabilities)), abs=1e-6)
    assert answer.score == pytest.approx(well.probabilities[1] + 2 * well.probabilities[2], abs=1e-6)
    assert answer.legend == {0: "badly", 1: "so so", 2: "well"}


def test_what_a_head_was_trained_on_is_answered_by_the_head(ask, judge, run):
    step, evidence = run.labels[0].step, run.labels[0].evidence
    words = f"Of which type is the redundant step {list(step)}, given the evidence {list(evidence)}?"
    about = {"task": "step_cls", "redundant_step_idx": list(step), "evidence_step_idx": list(evidence)}
    types = dict.fromkeys(REDUNDANCY_TYPES)
    result = ask({name: sdk.Choice(instructions=own, criteria=types) for name, own in (("w", words), ("o", about))})
    own = judge.classify(run, step, evidence)
    expected = pytest.approx(dict(zip(own.options, own.probabilities, strict=True)), abs=1e-6)
    assert result.choices["w"].probabilities == expected
    assert result.choices["o"].probabilities == expected
    (decided,) = judge.decide(run, [Choice(words, REDUNDANCY_TYPES)])
    assert decided.probabilities != pytest.approx(own.probabilities, abs=1e-4)


@pytest.mark.parametrize(
    "question",
    [
        sdk.Noul(instructions={"task": "sentiment"}),
        sdk.Noul(instructions=["Was the user angry?"]),
        sdk.Noul(instructions="Was the user angry?", criteria={"true": {"any": 1}}),
        sdk.Choice(instructions="Who?", criteria={"the user": None}),
        sdk.Choice(instructions="Who?", criteria={"the user": ["a", "b"], "nobody": None}),
        sdk.Choice(instructions="Who?", criteria=dict.fromkeys(map(str, range(MAX_OPTIONS + 1)))),
        sdk.Score(instructions="How well?", criteria=["well"]),
        sdk.Box(instructions="the button"),
        sdk.Noul(instructions={"task": "step_det", "redundant_step_idx": [1, 2]}),
    ],
    ids=["task", "list", "criteria", "one option", "description", "many options", "one level", "box", "no head"],
)
def test_what_words_cannot_ask_is_refused_with_what_they_can(ask, question):
    with pytest.raises(sdk.TypeSafeUnprocessableEntityError, match="in words, with probabilities that nothing has"):
        ask({"q": question})


def test_plain_text_is_still_no_state(ask):
    with pytest.raises(sdk.TypeSafeUnprocessableEntityError, match="plain text"):
        ask({"q": sdk.Noul(instructions="Is this about billing?")}, "I was charged twice.")


def test_a_step_that_is_not_there_is_refused_in_words_too(ask):
    words = "Of which type is the redundant step [0, 1], given the evidence [2]?"
    with pytest.raises(sdk.TypeSafeUnprocessableEntityError, match="answered assistant call"):
        ask({"q": sdk.Choice(instructions=words, criteria=dict.fromkeys(REDUNDANCY_TYPES))})

"""Bodies that are nearly right: each is answered or refused, never a failure of the server, a hang, or memory kept."""

import gzip
import os
import random

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsieve.data.messages import write_message
from stepsieve.data.simulate import simulate
from stepsieve.data.trajectory import REDUNDANCY_TYPES
from stepsieve.eval.llm.transcript import transcript
from stepsieve.eval.load import server
from stepsieve.models.judge import Judge

httpx = pytest.importorskip("httpx")
zstandard = pytest.importorskip("zstandard")
pytest.importorskip("fastapi")

from stepsieve.models.serving import chat, systemone  # noqa: E402
from stepsieve.models.serving.refusals import Refused  # noqa: E402
from stepsieve.models.serving.work import Model  # noqa: E402

ONE, CHAT = "/v1/systemone", "/v1/chat/completions"
FUZZ = int(os.environ.get("STEPSIEVE_FUZZ", "1"))
"""How many times as many examples are tried: 80 takes each of the two bodies a minute or two."""
MEMORY = "process_resident_memory_bytes"


@pytest.fixture(scope="module")
def run():
    return next(run for run in simulate(40, seed=3) if len(run.labels) > 1)


@pytest.fixture(scope="module")
def system_one(run):
    """A body of POST /v1/systemone that can be answered."""
    label = run.labels[0]
    step, evidence = list(label.step), list(label.evidence)
    about = {"task": "step_cls", "redundant_step_idx": step, "evidence_step_idx": evidence}
    questions = {
        "type": {"type": "choice", "instructions": about, "criteria": dict.fromkeys(REDUNDANCY_TYPES)},
        "step": {"type": "noul", "instructions": f"Is step {step} redundant?", "criteria": {"true": "redundant"}},
    }
    messages = [write_message(message) for message in run.messages]
    return {"model": "any", "state": {"messages": messages, "policy": run.policy}, "questions": questions}


@pytest.fixture(scope="module")
def completion(run):
    """A body of POST /v1/chat/completions that can be answered."""
    form = '{"evidence_step_idx": [2, 3], "redundant_step_type": ""}'
    user = f"{transcript(run)}\n\nGold redundant step:\n{list(run.labels[0].step)}"
    return {"model": "any", "messages": [{"role": "system", "content": form}, {"role": "user", "content": user}]}


@pytest.fixture(scope="module")
def model():
    return Model(Judge.from_pretrained(), "fuzzed")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.none() | st.booleans() | NUMBERS | TEXT
VALUES = st.recursive(
    LEAVES | st.sampled_from(["[1, 2]", "step_cls", "[0] user", [1, 2], [-1], {"role": "user", "content": "x"}]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def changed(value, path, how, new):
    """The value with the place at the path replaced, left out or doubled."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(path) > 1:
        copy[path[0]] = changed(copy[path[0]], path[1:], how, new)
    elif how == "out":
        del copy[path[0]]
    elif how == "twice" and isinstance(copy, list):
        copy.insert(path[0], copy[path[0]])
    else:
        copy[path[0]] = new
    return copy


def mutate(data, body):
    for _ in range(data.draw(st.integers(1, 3))):
        all_places = list(places(body))
        # The parts near the top are few, and matter most.
        top = [path for path in all_places if len(path) < 4]
        path = data.draw(st.sampled_from(all_places) | st.sampled_from(top))
        body = changed(body, path, data.draw(st.sampled_from(["new", "out", "twice"])), data.draw(VALUES))
        if not isinstance(body, (dict, list)):
            break
    return body


def mutate_lines(data, text):
    lines = text.split("\n")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        how = data.draw(st.sampled_from(["out", "twice", "swap", "cut", "insert"]))
        if how == "out" and len(lines) > 1:
            del lines[at]
        elif how == "twice":
            lines.insert(at, lines[at])
        elif how == "swap":
            lines[at], lines[at - 1] = lines[at - 1], lines[at]
        elif how == "cut":
            lines[at] = lines[at][: data.draw(st.integers(0, 60))]
        else:
            known = st.sampled_from(["[0] user", "Gold evidence:", "[1]", "  content: 1", "[4, 5]"])
            lines.insert(at, data.draw(known | TEXT))
    return "\n".join(lines)


def understood(read, body, model):
    """A body is answered; or else it is refused, and not by the server's fault."""
    refused = None
    try:
        data = orjson.dumps(body)
        job = read(orjson.loads(data), len(data), model)
        job.reply(model.answer([job.work])[0])
    except Refused as error:
        refused = error
    if refused is not None:
        assert 400 <= refused.status < 500
        assert len(refused.line) < 3000
        orjson.dumps([refused.as_detail(), refused.as_error()])


@settings(max_examples=80 * FUZZ)
@given(st.data())
def test_fuzzed_system_one_bodies_are_answered_or_refused(model, system_one, data):
    understood(systemone.read, mutate(data, system_one), model)


@settings(max_examples=80 * FUZZ)
@given(st.data())
def test_fuzzed_chat_bodies_are_answered_or_refused(model, completion, data):
    if data.draw(st.booleans()):
        system, user = completion["messages"]
        content = mutate_lines(data, user["content"])
        understood(chat.read, {"model": "m", "messages": [system, {**user, "content": content}]}, model)
    else:
        understood(chat.read, mutate(data, completion), model)


def memory(client):
    """Resident bytes of the server, as its metrics tell; None where its system doesn't."""
    line = next((line for line in client.get("/metrics").text.splitlines() if line.startswith(f"{MEMORY} ")), None)
    return float(line.split()[1]) if line else None


@pytest.fixture(scope="module")
def client():
    with server() as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.mark.parametrize("path", [ONE, CHAT])
def test_fuzzed_bytes_get_a_reply_and_take_no_memory(client, system_one, completion, path):
    chance = random.Random(0)
    data = orjson.dumps(system_one if path == ONE else completion)
    encoders = {"": bytes, "gzip": gzip.compress, "zstd": zstandard.compress}

    def some(n):
        for _ in range(n):
            body = bytearray(data)
            for _ in range(chance.randint(1, 4)):
                at = chance.randrange(len(body))
                cut = chance.choice([b"", b"\0", b'"', b"[", b"}", b"9" * 40, b"-", body[at : at + 9] * 3])
                body[at : at + chance.randint(0, 9)] = cut
            encoding = chance.choice(list(encoders))
            packed = bytearray(encoders[encoding](bytes(body)))
            if encoding and chance.random() < 0.5:
                packed[chance.randrange(len(packed))] ^= 1 << chance.randrange(8)
            headers = {"Content-Type": "application/json", **({"Content-Encoding": encoding} if encoding else {})}
            reply = client.post(path, content=bytes(packed), headers=headers)
            assert reply.status_code in (200, 400, 413, 422), reply.text
            assert "Traceback" not in reply.text

    some(60)
    before = memory(client)
    some(80 * FUZZ)
    if before is not None:
        assert memory(client) - before < 30_000_000

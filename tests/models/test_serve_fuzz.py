"""Bodies that are nearly right: each is answered or refused, never a failure of the server, a hang, or memory kept."""

import gzip
import random

import orjson
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from stepsieve.models.judge import Judge

httpx = pytest.importorskip("httpx")
zstandard = pytest.importorskip("zstandard")
pytest.importorskip("fastapi")

from stepsieve.models.serving import chat, systemone  # noqa: E402
from stepsieve.models.serving.refusals import Refused  # noqa: E402
from stepsieve.models.serving.work import Model  # noqa: E402

ONE, CHAT = "/v1/systemone", "/v1/chat/completions"
EXAMPLES = 80
"""So many are tried in a round."""
MEMORY = "process_resident_memory_bytes"


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


def test_fuzzed_system_one_bodies_are_answered_or_refused(model, system_one, rounds):
    @settings(max_examples=EXAMPLES)
    @given(st.data())
    def some(data):
        understood(systemone.read, mutate(data, system_one), model)

    for number in rounds:
        seed(number)(some)()


def test_fuzzed_chat_bodies_are_answered_or_refused(model, completion, rounds):
    @settings(max_examples=EXAMPLES)
    @given(st.data())
    def some(data):
        if data.draw(st.booleans()):
            system, user = completion["messages"]
            content = mutate_lines(data, user["content"])
            understood(chat.read, {"model": "m", "messages": [system, {**user, "content": content}]}, model)
        else:
            understood(chat.read, mutate(data, completion), model)

    for number in rounds:
        seed(number)(some)()


def memory(client):
    """Resident bytes of the server, as its metrics tell; None where its system doesn't."""
    line = next((line for line in client.get("/metrics").text.splitlines() if line.startswith(f"{MEMORY} ")), None)
    return float(line.split()[1]) if line else None


@pytest.mark.parametrize("path", [ONE, CHAT])
def test_fuzzed_bytes_get_a_reply_and_take_no_memory(client, system_one, completion, path, rounds, mangled):
    chance = random.Random(0)
    data = orjson.dumps(system_one if path == ONE else completion)
    encoders = {"": bytes, "gzip": gzip.compress, "zstd": zstandard.compress}

    def some(n):
        for _ in range(n):
            encoding = chance.choice(list(encoders))
            packed = bytearray(encoders[encoding](mangled(chance, data)))
            if encoding and chance.random() < 0.5:
                packed[chance.randrange(len(packed))] ^= 1 << chance.randrange(8)
            headers = {"Content-Type": "application/json", **({"Content-Encoding": encoding} if encoding else {})}
            reply = client.post(path, content=bytes(packed), headers=headers)
            assert reply.status_code in (200, 400, 413, 422), reply.text
            assert "Traceback" not in reply.text

    some(60)
    before = memory(client)
    for _ in rounds:
        some(EXAMPLES)
    if before is not None:
        assert memory(client) - before < 30_000_000

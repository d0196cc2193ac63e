"""Models as judges and planners, over a real loopback HTTP server, and from recorded replies without one."""

import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson
import pytest

pytest.importorskip("openai", reason="the extra judges is not installed")

from stepsieve.data.errors import DataError
from stepsieve.eval.stagewise.consensus import consensus
from stepsieve.eval.stagewise.events import Event
from stepsieve.eval.stagewise.graph import Milestone, Minefield
from stepsieve.eval.stagewise.ladders import ladder_of
from stepsieve.eval.stagewise.llm import Endpoint
from stepsieve.eval.stagewise.llm_judges import ExpensiveJudge, StandardJudge
from stepsieve.eval.stagewise.planner import candidates
from stepsieve.eval.stagewise.settings import Candidates, EndpointSettings, Settings
from stepsieve.eval.stagewise.stages import Hit, Stage


class Model:
    """An OpenAI-compatible server on a loopback port. ``answer`` makes the content of the reply to a request."""

    def __init__(self):
        self.requests = []
        self.answer = lambda request: "{}"
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                request = orjson.loads(self.rfile.read(int(self.headers["Content-Length"])))
                model.requests.append((self.path, request))
                content = model.answer(request)
                message = {"role": "assistant", "content": content}
                choice = {"index": 0, "finish_reason": "stop", "message": message}
                record = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
                status, body = (200, record) if content is not None else (400, {"error": {"message": "I will not"}})
                data = orjson.dumps(body)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    made = Model()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def settings(model, tmp_path):
    return EndpointSettings(model.url, "m", str(tmp_path / "replies"), 10.0)


def verdict(score, confidence=0.8, steps=(4,)):
    return {"score": score, "confidence": confidence, "rationale": "so", "steps": list(steps)}


@pytest.fixture
def stage(view, desk):
    calls = (desk.observed("book_room", step=4, room_id="R1", guest="G1", price=10),)
    events = (Event("text", 3, "Shall I book R1?", actor="assistant"),)
    hits = (Hit(Minefield("drop_room"), 1, 2),)
    return Stage(Milestone("m", "book_room", goal="the room is booked"), "s0", calls, events, 1.0, (), hits, view)


def test_one_pass_judges_all_dimensions(model, settings, stage):
    model.answer = lambda request: orjson.dumps({"correctness": verdict(0.7), "safety": verdict(0.2, 0.5, ())}).decode()
    found = StandardJudge(Endpoint(settings)).score(stage, ["correctness", "safety"])
    assert (found["correctness"].score, found["correctness"].confidence, found["correctness"].steps) == (0.7, 0.8, (4,))
    assert found["safety"].uncertainty == 0.5
    ((path, request),) = model.requests
    assert path == "/v1/chat/completions"
    assert (request["model"], request["temperature"]) == ("m", 0)
    form = request["response_format"]
    assert form["type"] == "json_schema"
    assert form["json_schema"]["schema"]["required"] == ["correctness", "safety"]
    told = request["messages"][1]["content"]
    assert told.index("[3] assistant: Shall I book R1?") < told.index('[4] assistant calls book_room {"room_id":"R1"')
    assert "the room is booked" in told
    assert "Minefield stepped on at [2]: drop_room" in told


def test_a_specialist_takes_three_passes(model, settings, stage):
    scores = iter([0.3, 0.9, 0.6])
    model.answer = lambda request: orjson.dumps({"efficiency": verdict(next(scores), 0.9)}).decode()
    found = ExpensiveJudge(Endpoint(settings)).score(stage, ["efficiency"])
    assert len(model.requests) == 3
    # Mean 0.6; confidence 0.9 less the distance of the extremes, 0.6.
    assert found["efficiency"].score == pytest.approx(0.6)
    assert found["efficiency"].confidence == pytest.approx(0.3)


def test_the_same_request_is_asked_once_and_a_recording_needs_no_server(model, settings, stage):
    model.answer = lambda request: orjson.dumps({"safety": verdict(0.5)}).decode()
    first = StandardJudge(Endpoint(settings)).score(stage, ["safety"])
    endpoint = Endpoint(replace(settings, base_url=None))
    assert StandardJudge(endpoint).score(stage, ["safety"]) == first
    assert (len(model.requests), endpoint.asked) == (1, 1)
    with pytest.raises(DataError, match=r"a recorded reply, or endpoint\.base_url"):
        StandardJudge(endpoint).score(stage, ["correctness"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("I think it is fine.", "expected JSON"),
        ("[]", "expected a JSON object"),
        ("{}", "safety: expected a verdict"),
        (orjson.dumps({"safety": verdict(1.2)}).decode(), "safety.score: expected a number from 0 to 1"),
        (orjson.dumps({"safety": verdict(0.5, True)}).decode(), "safety.confidence: expected a number from 0 to 1"),
        (orjson.dumps({"safety": {**verdict(1), "steps": ["x"]}}).decode(), "safety.steps: expected a message index"),
        (None, "I will not"),
    ],
)
def test_replies_that_can_not_be_used(model, settings, stage, content, words):
    model.answer = lambda request: content
    with pytest.raises(DataError) as caught:
        StandardJudge(Endpoint(settings)).score(stage, ["safety"])
    assert words in str(caught.value)


def test_an_endpoint_that_is_not_there(settings, stage):
    with pytest.raises(DataError, match="the name of a model"):
        Endpoint(EndpointSettings())
    nobody = replace(settings, base_url="http://127.0.0.1:9/v1")
    with pytest.raises(DataError, match="expected a reply, found an error"):
        StandardJudge(Endpoint(nobody)).score(stage, ["safety"])


def test_the_ladders(settings):
    options = Settings(endpoint=settings)
    cheap, nobody = ladder_of("tier1", options)
    assert (cheap.standard, cheap.expensive, nobody) == (None, None, None)
    two, _ = ladder_of("tier12", options)
    assert (type(two.standard), two.expensive) == (StandardJudge, None)
    three, endpoint = ladder_of("llm", options)
    assert type(three.expensive) is ExpensiveJudge
    assert three.expensive.endpoint is endpoint
    with pytest.raises(DataError, match="the name of a model"):
        ladder_of("llm", Settings())


GOOD = {
    "milestones": [
        {"id": "a", "tool": "find_guest", "role": "read"},
        {"id": "b", "tool": "book_room", "role": "write"},
    ],
    "edges": [["a", "b"]],
    "bindings": [{"target": "b", "parameter": "guest", "source": "a", "field": "guest.id"}],
    "minefields": [{"tool": "drop_room"}],
}
BAD = {"milestones": [{"id": "a", "tool": "burn_room", "role": "write"}], "edges": []}
SHAPELESS = {"milestones": "none"}


def plan(view, endpoint, limits):
    return consensus(candidates(view, endpoint, limits), view)


def reply(*graphs):
    return orjson.dumps({"graphs": graphs}).decode()


def test_a_planner_stops_at_six_valid_candidates(model, settings, view):
    model.answer = lambda request: reply(GOOD, GOOD)
    made = plan(view, Endpoint(settings), Candidates())
    assert len(model.requests) == 3
    assert [own.tool for own in made.milestones] == ["book_room", "find_guest"]
    assert len(made.edges) == len(made.bindings) == len(made.minefields) == 1
    contents = [request["messages"][1]["content"] for _, request in model.requests]
    assert len(set(contents)) == 3
    assert all(request["temperature"] == 0 for _, request in model.requests)


def test_a_planner_asks_four_times_at_most(model, settings, view):
    model.answer = lambda request: reply(BAD, SHAPELESS)
    with pytest.raises(DataError, match=r"a valid candidate among 4, found none.*'burn_room'"):
        plan(view, Endpoint(settings), Candidates())
    assert len(model.requests) == 4


def test_invalid_candidates_are_replaced_as_far_as_the_batches_go(model, settings, view):
    model.answer = lambda request: reply(GOOD, BAD)
    found = candidates(view, Endpoint(settings), Candidates())
    assert len(model.requests) == 4
    assert sum(own.milestones[0].tool == "find_guest" for own in found) == 4
    assert len(plan(view, Endpoint(replace(settings, base_url=None)), Candidates()).milestones) == 2


def test_a_planner_is_told_what_is_public(model, settings, view):
    model.answer = lambda request: reply(GOOD, GOOD)
    plan(replace(view, policy="No pets."), Endpoint(settings), Candidates(wanted=2, batches=1))
    told = model.requests[0][1]["messages"][1]["content"]
    assert "Please book." in told
    assert "No pets." in told
    assert '"outputs":{"guest.id":"string"' in told

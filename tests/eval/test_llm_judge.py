"""The LLM judge against a server that speaks the protocol and misbehaves, against kills, and against our own server."""

import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import orjson
import pytest

from stepsieve.data.errors import run_cli
from stepsieve.data.redundancybench import write
from stepsieve.data.simulate import simulate
from stepsieve.eval.bench import predict_all
from stepsieve.eval.llm.cache import Cache
from stepsieve.eval.llm_judge import main
from stepsieve.eval.load import server
from stepsieve.eval.results import read
from stepsieve.eval.scores import match, score
from stepsieve.models.judge import PRETRAINED, Judge

pytest.importorskip("openai", reason="the extra judges is not installed")

SCRIPT = Path(__file__).parents[2] / "eval" / "llm_judge.py"
SOON = {"retry-after-ms": "5"}
MODEL = "stub-1"
PRICES = "stub-1: {input: 1, output: 4, cached: 0.5}\n"


@pytest.fixture(scope="module")
def corpus():
    # The stub tells runs apart by their length.
    return list({len(run.messages): run for run in simulate(60, seed=5) if run.labels}.values())[:6]


@pytest.fixture
def data(corpus, tmp_path):
    write(corpus, tmp_path / "data")
    (tmp_path / "prices.yaml").write_text(PRICES)
    return tmp_path / "data"


def command(data, url, task="cls", *more):
    arguments = ["--data", data, "--task", task, "--model", MODEL, "--output", data.parent / "out.json"]
    arguments += ["--base-url", f"{url}/v1", "--prices", data.parent / "prices.yaml", *more]
    return [sys.executable, str(SCRIPT), *map(str, arguments)]


class Found(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def judge(monkeypatch, capsys):
    """Runs the command in this process, which has imported the client already."""

    def run(data, url, task="cls", *more):
        monkeypatch.setattr(sys, "argv", command(data, url, task, *more)[1:])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run_cli(main)
        return Found(ended.value.code, *capsys.readouterr())

    return run


def result(data):
    return orjson.loads((data.parent / "out.json").read_bytes())


def named(body):
    """The trajectory (by its text) and the step that a request is about."""
    return body["messages"][-1]["content"]


def gold(corpus):
    """What the server says to be right about each StepCls question."""
    answers = {}
    for run in corpus:
        for label in run.labels:
            key = f"Gold redundant step: {list(label.step)}\n\nGold evidence: {list(label.evidence)}"
            answers.setdefault((key, len(run.messages)), label.type)
    return answers


def length(question):
    return 1 + max(int(index) for index in re.findall(r"^\[(\d+)\] ", question, re.MULTILINE))


def right(corpus):
    answers = gold(corpus)

    def text(body):
        question = next(m["content"] for m in body["messages"] if "Gold redundant step" in m["content"])
        return orjson.dumps(
            {"redundant_step_type": answers["\n\n".join(question.split("\n\n")[-2:]), length(question)]}
        ).decode()

    return text


def test_faults_of_every_kind_lose_nothing(corpus, data, judge, endpoint, act):
    """429, 500, a slow reply, a cut-off one, garbage in the place of one: each unit is answered all the same, once."""
    text, seen = right(corpus), Counter()

    def behave(number, body):
        question = named(body)
        seen[question] += 1
        if seen[question] > 1:
            return act(text(body))
        return [
            act(status=429, headers={"Retry-After": "0.3"}, body=b"{}"),
            act(status=500, headers=SOON, body=b"oops"),
            act(text(body), slow=2.0),
            act(text(body), cut=True),
            act(body=b"<html>not for you</html>"),
            act(body=b"{}"),
            act(body=b'{"choices": [', headers={"Content-Type": "application/json"}),
            act(text(body)),
        ][number % 8]

    endpoint.behave = behave
    found = judge(data, endpoint.url, "cls", "--timeout", "0.5", "--concurrency", "16")
    assert found.returncode == 0, found.stderr
    units = sum(len(run.labels) for run in corpus)
    assert units >= 8, "every fault is to occur"
    content = result(data)
    assert [record["error"] for record in content["results"]] == [None] * units
    assert all(record["predicted_type"] == record["redundant_step_type"] for record in content["results"])
    assert len(seen) == units
    # Retry-After was kept to.
    first = [n for n, body in enumerate(endpoint.requests) if n % 8 == 0 and endpoint.requests.index(body) == n]
    for n in first:
        again = next(m for m in range(n + 1, len(endpoint.requests)) if endpoint.requests[m] == endpoint.requests[n])
        assert endpoint.times[again] - endpoint.times[n] >= 0.3


def test_bench_scores_what_was_answered_and_costs_add_up(corpus, data, judge, endpoint, act):
    text = right(corpus)
    wrong = '{"redundant_step_type": "Abnormal Step"}'
    endpoint.behave = lambda number, body: act(
        text(body) if number % 2 else wrong,
        usage={"prompt_tokens": 1000, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 400}},
    )
    assert judge(data, endpoint.url).returncode == 0
    content = result(data)
    records = content["results"]
    right_ones = [record["predicted_type"] == record["redundant_step_type"] for record in records]
    assert 0 < sum(right_ones) < len(records)
    assert score(match(read(data.parent / "out.json"), corpus))["all"]["accuracy"] == sum(right_ones) / len(records)
    each = (600 * 1 + 400 * 0.5 + 50 * 4) / 1e6
    assert [record["usage"]["dollars"] for record in records] == pytest.approx([each] * len(records))
    usage = content["metadata"]["usage"]
    assert usage["dollars"] == pytest.approx(each * len(records))
    assert (usage["prompt"], usage["cached"], usage["completion"]) == tuple(len(records) * n for n in (1000, 400, 50))
    assert content["metadata"]["task"] == "classify"


def test_an_unusable_reply_is_repaired_once_or_wrong(corpus, data, judge, endpoint, act):
    """Half of the units repair their reply when they are told what is wrong with it; the others never do."""
    good, text = right(corpus), "It is a duplicated step."
    stubborn = set()

    def behave(number, body):
        if len(body["messages"]) == 2:
            if len(stubborn) < 3:
                stubborn.add(named(body))
            return act(text)
        told = body["messages"][-2:]
        assert told[0] == {"role": "assistant", "content": text}
        assert "can't be used" in told[1]["content"]
        return act(text if body["messages"][1]["content"] in stubborn else good(body))

    endpoint.behave = behave
    found = judge(data, endpoint.url, "cls", "--concurrency", "1")
    assert found.returncode == 0, found.stderr
    records = result(data)["results"]
    assert len(endpoint.requests) == 2 * len(records), "one repair each, and no more"
    failed = [record for record in records if record["error"]]
    assert len(failed) == 3
    assert all(record["predicted_type"] is None and "unusable" in record["error"] for record in failed)
    assert all(record["usage"]["requests"] == 2 for record in records)
    accuracy = score(match(read(data.parent / "out.json"), corpus))["all"]["accuracy"]
    assert accuracy == pytest.approx(1 - 3 / len(records))


@pytest.mark.parametrize(
    ("task", "text", "says"),
    [
        ("ret", '{"evidence_step_idx": [9000, 9001], "redundant_step_type": "Duplicated Step"}', "9000"),
        (
            "det",
            '[{"redundant_step_idx": [0, 1], "evidence_step_idx": [-1], "redundant_step_type": "Incorrect Step", '
            '"confidence": 0.5}]',
            "answered assistant call",
        ),
    ],
)
def test_wrong_indices_are_unusable(corpus, data, judge, endpoint, act, task, text, says):
    endpoint.behave = lambda number, body: act(text)
    found = judge(data, endpoint.url, task)
    assert found.returncode == 0, found.stderr
    assert all(says in record["error"] for record in result(data)["results"])
    assert all(says in body["messages"][-1]["content"] for body in endpoint.requests if len(body["messages"]) == 4)
    metric = {"ret": "joint_accuracy", "det": "avg_p@k"}[task]
    assert score(match(read(data.parent / "out.json"), corpus))["all"][metric] == 0


def test_a_kill_loses_nothing_and_nothing_answered_is_asked_again(corpus, data, judge, endpoint, act):
    """SIGKILL with some requests answered and others on their way; the same command then asks only the others."""
    text = right(corpus)
    units = sum(len(run.labels) for run in corpus)
    enough = units // 2

    def behave(number, body):
        if number >= enough:
            endpoint.hold.wait(30)
        return act(text(body))

    endpoint.hold.clear()
    endpoint.behave = behave
    process = subprocess.Popen(command(data, endpoint.url), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    cache = data.parent / "out.json.cache"
    until = time.monotonic() + 30
    while time.monotonic() < until and not (cache.exists() and kept(cache) >= enough):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=10)
    assert kept(cache) == enough
    assert not (data.parent / "out.json").exists()
    before = [named(body) for body in endpoint.answered]
    assert len(before) == enough

    endpoint.behave = lambda number, body: act(text(body))
    sent = len(endpoint.requests)
    again = judge(data, endpoint.url)
    assert again.returncode == 0, again.stderr
    later = [named(body) for body in endpoint.requests[sent:]]
    assert len(later) == units - enough
    assert not set(later) & set(before)
    content = result(data)
    assert all(record["predicted_type"] == record["redundant_step_type"] for record in content["results"])
    assert content["metadata"]["usage"]["requests"] == units
    assert f"{enough} kept from before" in again.stdout

    # A third time nothing is asked, and the file is the same to the byte.
    first, sent = (data.parent / "out.json").read_bytes(), len(endpoint.requests)
    assert judge(data, endpoint.url).returncode == 0
    assert len(endpoint.requests) == sent
    assert (data.parent / "out.json").read_bytes() == first


def kept(path):
    with Cache(path) as replies:
        return len(replies)


def test_an_endpoint_that_is_gone_is_one_line_and_what_it_said_is_kept(corpus, data, judge, endpoint, act):
    text = right(corpus)
    endpoint.behave = lambda number, body: act(text(body)) if number < 3 else act(status=503, body=b"{}", headers=SOON)
    found = judge(data, endpoint.url, "cls", "--retries", "1", "--concurrency", "1")
    assert found.returncode == 2
    assert found.stderr.startswith("error: expected an endpoint that answers")
    assert found.stderr.count("\n") == 1
    assert kept(data.parent / "out.json.cache") == 3


def test_a_unit_without_a_reply_is_told_and_asked_again_the_next_time(corpus, data, judge, endpoint, act):
    text = right(corpus)
    endpoint.behave = lambda number, body: act(text(body)) if number else act(status=400, body=b'{"error": "too long"}')
    found = judge(data, endpoint.url, "cls", "--concurrency", "1")
    assert found.returncode == 2
    assert "1 of" in found.stderr
    assert "asks these again" in found.stderr
    assert result(data)["results"][0]["predicted_type"] is None
    sent = len(endpoint.requests)
    assert judge(data, endpoint.url).returncode == 0
    assert len(endpoint.requests) == sent + 1
    assert result(data)["results"][0]["error"] is None


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--concurrency", "0"), "--concurrency"),
        (("--param", "temperature"), "--param"),
        (("--input", "oracle-plan"), "actions that solve it"),
        (("--prices", "missing.yaml"), "missing.yaml"),
    ],
)
def test_bad_settings_are_one_line_before_anything_is_asked(data, judge, endpoint, more, says):
    found = judge(data, endpoint.url, "cls", *more)
    assert found.returncode == 2
    assert says in found.stderr
    assert found.stderr.count("\n") == 1
    assert endpoint.requests == []


def test_a_wrong_key_is_one_line(data, judge, endpoint, act):
    endpoint.behave = lambda number, body: act(status=401, body=b'{"error": {"message": "who are you"}}')
    found = judge(data, endpoint.url)
    assert found.returncode == 2
    assert "refuses every request" in found.stderr
    assert found.stderr.count("\n") == 1


def test_a_dry_run_asks_nothing(data, judge, endpoint):
    found = judge(data, endpoint.url, "det", "--dry-run")
    assert found.returncode == 0
    assert re.search(r"6 requests, about [\d,]+ prompt and 1,500 reply tokens, \$0\.\d+", found.stdout)
    assert endpoint.requests == []
    assert not (data.parent / "out.json.cache").exists()


def test_our_server_stands_in_for_a_model_and_gives_the_answers_of_its_checkpoint(corpus, data, judge):
    """The prompts are understood: through HTTP, prompt and parser come the answers that the checkpoint gives here."""
    pytest.importorskip("fastapi")
    pytest.importorskip("typesafe_sdk")
    ours = {own.task: match(own, corpus) for own in predict_all(Judge.from_pretrained(), PRETRAINED, corpus)}
    with server() as url:
        for task in ("cls", "ret", "det"):
            found = judge(data, url, task)
            assert found.returncode == 0, found.stderr
            theirs = match(read(data.parent / "out.json"), corpus)
            assert (
                score(theirs)["all"].items()
                >= {
                    name: value
                    for name, value in score(ours[task])["all"].items()
                    if not name.startswith(("ece", "aurc"))
                }.items()
            )
        found = judge(data, url, "cls", "--api", "system-one", "--base-url", url)
    assert found.returncode == 0, found.stderr
    theirs = match(read(data.parent / "out.json"), corpus)
    assert score(theirs)["all"] == pytest.approx(score(ours["cls"])["all"], abs=1e-5)
    assert result(data)["metadata"]["usage"]["requests"] == len(corpus), "a run is read once"


def test_a_system_one_model_answers_all_three_tasks(corpus, data, judge, endpoint, act):
    """Two choices for EvidenceRet; for StepDet a noul for each step first. Each run is read once for each stage."""
    pytest.importorskip("typesafe_sdk")
    by_length = {len(run.messages): run for run in corpus}

    def behave(number, body):
        run = by_length[len(body["state"]["trajectory"]["messages"])]
        labels = {str(list(label.step)): label for label in run.labels}
        answers = {}
        for name, question in body["questions"].items():
            label = labels.get(re.search(r"\[[\d, ]+\]", question["instructions"])[0])
            if question["type"] == "noul":
                answers[name] = {"type": "noul", "noul": 0.9 if label else 0.1}
                continue
            wanted = label.type if "type" in question["instructions"] else str(list(label.evidence))
            choice = wanted if wanted in question["criteria"] else next(iter(question["criteria"]))
            others = dict.fromkeys(question["criteria"], 0.5 / len(question["criteria"]))
            chances = {**others, choice: 0.5}
            answers[name] = {"type": "choice", "choice": choice, "probabilities": chances, "confidence": 0.5}
        usage = {"input_tokens": 70, "output_tokens": 7}
        return act(body=orjson.dumps({"model": "one", "answers": answers, "usage": usage}))

    endpoint.behave = behave
    joint = [label for run in corpus for label in run.labels if len(label.evidence) > 2]
    labels = sum(len(run.labels) for run in corpus)
    for task, requests in (("cls", 1), ("ret", 1), ("det", 2)):
        sent = len(endpoint.requests)
        cache = data.parent / f"{task}.cache"
        found = judge(data, endpoint.url, task, "--api", "system-one", "--base-url", endpoint.url, "--cache", cache)
        assert found.returncode == 0, found.stderr
        assert len(endpoint.requests) - sent == requests * len(corpus)
        assert result(data)["metadata"]["usage"]["prompt"] == 70 * requests * len(corpus)
        scores = score(match(read(data.parent / "out.json"), corpus))["all"]
        if task == "cls":
            assert scores["accuracy"] == 1
        elif task == "ret":
            assert scores["joint_accuracy"] == pytest.approx(1 - len(joint) / labels)
        else:
            levels = {own["confidence"] for record in result(data)["results"] for own in record["predictions"]}
            assert sorted(levels) == pytest.approx([0.9 * 0.5 * 0.5])
            assert scores["p@1"] > 0

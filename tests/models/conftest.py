"""What the server's tests share: a server with the default settings, and requests that can be answered."""

import pytest

from stepsieve.data.messages import write_message
from stepsieve.data.simulate import simulate
from stepsieve.data.trajectory import REDUNDANCY_TYPES
from stepsieve.eval.llm.transcript import transcript
from stepsieve.eval.load import server


@pytest.fixture(scope="session")
def url():
    with server() as url:
        yield url


@pytest.fixture(scope="module")
def client(url):
    httpx = pytest.importorskip("httpx")
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def run():
    """A run with several labels."""
    return next(run for run in simulate(40, seed=3) if len(run.labels) > 2)


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def completion(run):
    """A body of POST /v1/chat/completions that can be answered."""
    form = '{"evidence_step_idx": [2, 3], "redundant_step_type": ""}'
    user = f"{transcript(run)}\n\nGold redundant step:\n{list(run.labels[0].step)}"
    return {"model": "any", "messages": [{"role": "system", "content": form}, {"role": "user", "content": user}]}

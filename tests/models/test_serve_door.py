"""The server at its door: the key, health and metrics, and why it doesn't start."""

import subprocess
import sys

import pytest

from stepsieve.data.errors import DataError
from stepsieve.data.messages import write_message
from stepsieve.data.simulate import simulate
from stepsieve.data.trajectory import REDUNDANCY_TYPES
from stepsieve.eval.load import SERVE, server
from stepsieve.models import serve

httpx = pytest.importorskip("httpx")
openai = pytest.importorskip("openai")
sdk = pytest.importorskip("typesafe_sdk")

KEY = "a-key-of-the-tests"
RETRY = sdk.RetryPolicy(max_retries=0)


@pytest.fixture(scope="module")
def asked():
    """A state and a question about it."""
    run = next(run for run in simulate(40, seed=3) if run.labels)
    step, evidence = map(list, (run.labels[0].step, run.labels[0].evidence))
    about = {"task": "step_cls", "redundant_step_idx": step, "evidence_step_idx": evidence}
    question = sdk.Choice(instructions=about, criteria=dict.fromkeys(REDUNDANCY_TYPES))
    return [write_message(message) for message in run.messages], {"q": question}


def test_a_key_is_asked_for_where_one_is_set(tmp_path, asked):
    (tmp_path / "key").write_text(f"{KEY}\n")
    with server("--key-file", str(tmp_path / "key"), "--name", "mine") as url:
        with sdk.TypeSafeClient(base_url=url, api_key=KEY, retry=RETRY) as client:
            assert client.system_one(*asked).model == "mine"
        with sdk.TypeSafeClient(base_url=url, api_key="wrong", retry=RETRY) as client:
            with pytest.raises(sdk.TypeSafeAuthenticationError, match="Bearer"):
                client.system_one(*asked)
            with pytest.raises(sdk.TypeSafeAuthenticationError):
                client.models.list()
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{url}/v1", api_key="wrong").models.list()
        assert httpx.get(f"{url}/metrics").status_code == 401
        assert httpx.get(f"{url}/healthz").status_code == 200
        for value in ("", "Bearer", "Basic x", "Bearer ключ"):
            assert httpx.get(f"{url}/v1/models", headers={"Authorization": value.encode()}).status_code == 401


def test_health_metrics_and_other_paths(url, asked):
    with sdk.TypeSafeClient(base_url=url, api_key="any", retry=RETRY) as client:
        client.system_one(*asked)
    healthy = {"status": "ok", "model": "stepsieve-pretrained", "heads": ["cls", "det", "ret"]}
    assert httpx.get(f"{url}/healthz").json() == healthy
    metrics = httpx.get(f"{url}/metrics").text
    assert 'stepsieve_requests_total{endpoint="/v1/systemone",status="200"}' in metrics
    assert "stepsieve_body_bytes 0.0" in metrics
    assert httpx.get(f"{url}/nowhere").json()["error"]["code"] == "not_found"
    wrong = httpx.get(f"{url}/v1/systemone")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")


def test_a_server_that_cannot_start_says_why_in_one_line(tmp_path):
    found = subprocess.run(
        [sys.executable, SERVE, "--checkpoint", tmp_path], capture_output=True, text=True, timeout=60
    )
    assert found.returncode == 2
    assert found.stderr.startswith(f"error: {tmp_path}")
    assert found.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--port", "70000"), "--port"),
        (("--host", "no such host"), "no such host"),
        (("--queue", "0"), "--queue"),
        (("--max-body", "nan"), "--max-body"),
        (("--timeout", "-1"), "--timeout"),
        (("--deadline", "inf"), "--deadline"),
        (("--key-file", "nowhere"), "--key-file"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_a_setting_that_is_none(arguments, word, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["serve.py", *arguments])
    with pytest.raises(DataError, match=word):
        serve.main()


def test_a_port_that_is_taken(url, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["serve.py", "--port", url.rpartition(":")[2]])
    with pytest.raises(DataError, match="expected an address that is free"):
        serve.main()


BLOCKED = "import runpy, sys; sys.modules[{module!r}] = None; runpy.run_path({script!r}, run_name='__main__')"


@pytest.mark.parametrize("module", ["fastapi", "uvicorn"])
def test_a_missing_extra_is_named(module):
    code = BLOCKED.format(module=module, script=str(SERVE))
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.returncode == 2
    assert found.stderr == f"error: {module} is not installed: pip install 'stepsieve[serve]'\n"

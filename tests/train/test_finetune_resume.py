"""Runs of the gradient loop that are killed and go on to the weights of one that was not, and runs of two processes."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import traceback
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

pytest.importorskip("accelerate", reason="the extra encoder is not installed")
import toy_task
from toy_task import LESSONS, SHORT, STAGES, WATCHED, Diary, Killed, changed, made, toy, trained, weights

from stepsieve.train import finetune as module
from stepsieve.train import loop
from stepsieve.train.config import EncoderOptions, Stage, TrainConfig
from stepsieve.train.finetune import finetune
from stepsieve.train.tasks import TASKS


@pytest.fixture(scope="module")
def unbroken(tiny_base):
    """By tune: the weights, the loss, and the log of a run on the toy task that nothing broke."""
    found = {}
    for tune in SHORT:
        diary = Diary()
        encoder, loss = trained(tiny_base, tune, log=diary)
        found[tune] = weights(encoder), loss, diary
    return found


@pytest.mark.parametrize("tune", SHORT)
@pytest.mark.parametrize(("place", "validation"), [(0.3, False), (0.6, False), (0.75, True)])
def test_a_killed_run_goes_on_to_the_same_weights(tiny_base, tmp_path, monkeypatch, unbroken, tune, place, validation):
    monkeypatch.setattr(module, "SAVE_SECONDS", 0.0)
    expected, loss, whole = unbroken[tune]
    kill = round(place * len(whole.steps))
    state, second = tmp_path / "deep" / "state.safetensors", Diary()
    with pytest.raises(Killed):
        trained(tiny_base, tune, state, Diary(kill, validation))
    encoder, again = trained(tiny_base, tune, state, second)
    # The step at which it was killed had not been saved yet: it is done again.
    assert second.steps == whole.steps[kill - 1 :]
    assert second.of("loss") == whole.of("loss")[kill - 1 :]
    assert again == loss
    assert not changed(expected, weights(encoder))
    assert [path.name for path in state.parent.iterdir()] == ["state.safetensors"]


def test_killed_again_and_again(tiny_base, tmp_path, monkeypatch, unbroken):
    monkeypatch.setattr(module, "SAVE_SECONDS", 0.0)
    expected, loss, whole = unbroken["lora"]
    state = tmp_path / "state.safetensors"
    for kill in range(2, len(whole.steps) + 1):
        with pytest.raises(Killed):
            trained(tiny_base, "lora", state, Diary(kill))
    encoder, again = trained(tiny_base, "lora", state)
    assert again == loss
    assert not changed(expected, weights(encoder))


def test_early_stopping_goes_on_where_it_stood(tiny_base, tmp_path):
    watched = [replace(x, label=(x.label + (n % 4 == 0)) % 3) for n, x in enumerate(toy(48, seed=2))]
    stage = replace(STAGES["scorer"], epochs=30, patience=2)
    whole, plain = Diary(), made(tiny_base)
    loss = finetune(plain, toy(96), watched, stage, log=whole)
    state, broken, diary, encoder = tmp_path / "state", made(tiny_base), Diary(), made(tiny_base)
    with pytest.raises(Killed):  # in the last epoch before it stops, after the best one
        finetune(broken, toy(96), watched, stage, state=state, log=Diary(whole.steps[-1]))
    assert finetune(encoder, toy(96), watched, stage, state=state, log=diary) == loss
    assert diary.of("validation") == whole.of("validation")[-1:]
    assert not changed(weights(plain), weights(encoder))


@pytest.mark.parametrize("tune", SHORT)
def test_a_finished_run_is_not_done_again(tiny_base, tmp_path, unbroken, tune):
    expected, loss, _ = unbroken[tune]
    state, diary = tmp_path / "state", Diary()
    trained(tiny_base, tune, state)
    encoder, again = trained(tiny_base, tune, state, diary)
    assert diary.entries == []
    assert again == loss
    assert not changed(expected, weights(encoder))


def test_states_are_saved_by_the_clock_and_at_the_end_of_an_epoch(tiny_base, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(module, "write_atomic", lambda path, content: written.append(path))
    trained(tiny_base, "scorer", tmp_path / "state")
    assert len(written) == SHORT["scorer"].epochs + 1


@pytest.fixture(scope="module")
def half(tiny_base, tmp_path_factory):
    """The bytes of a state saved in the middle of a run."""
    state = tmp_path_factory.mktemp("half") / "state"
    with pytest.raises(Killed):
        trained(tiny_base, "scorer", state, Diary(kill=15))
    return state.read_bytes()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: b"",
        lambda content: b"\xff" * 50,
        lambda content: content[:7],
        lambda content: content[:100],
        lambda content: content[:-1],
        lambda content: content.replace(b"weight scorer", b"weighs scorer"),
        lambda content: content.replace(b"__metadata__", b"__matedata__"),
    ],
    ids=["empty", "noise", "no header", "half a header", "a byte short", "other names", "no numbers"],
)
def test_a_state_that_cannot_be_read_is_as_good_as_none(tiny_base, tmp_path, unbroken, half, spoil):
    expected, _, whole = unbroken["scorer"]
    state, diary = tmp_path / "state", Diary()
    state.write_bytes(spoil(half))
    encoder, _ = trained(tiny_base, "scorer", state, diary)
    assert diary.steps == whole.steps
    assert not changed(expected, weights(encoder))


def test_the_state_of_another_run_is_as_good_as_none(tiny_base, tmp_path, unbroken, half):
    state, whole = tmp_path / "state", unbroken["lora"][2]
    state.write_bytes(half)
    encoder, _ = trained(tiny_base, "lora", state, diary := Diary())  # fewer weights in the file
    assert diary.steps == whole.steps
    assert not changed(unbroken["lora"][0], weights(encoder))
    # As many steps as this state, of a scorer alone: more weights in the file.
    stage = replace(STAGES["scorer"], epochs=1, batch_tokens=64)
    finetune(made(tiny_base), toy(len(whole.steps)), [], stage, state=state, log=(diary := Diary()))
    assert diary.steps == whole.steps
    state.write_bytes(half)
    trained(tiny_base, "scorer", state, diary := Diary(), epochs=2)  # another number of steps
    assert diary.steps[0] == 1


# --- other processes -------------------------------------------------------------------------------------------------

SCRIPT = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("here", sys.argv[1])
here = importlib.util.module_from_spec(spec)
spec.loader.exec_module(here)
here.start_three(*sys.argv[2:])
"""


def start_three(base, folder):
    """In a process without threads, which has all that is imported: three jobs as processes of their own."""
    made(base, "lora")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    if "lo" in [name for _, name in socket.if_nameindex()]:
        shared["GLOO_SOCKET_IFNAME"] = "lo"
    started = [fork(run_and_be_killed, base, f"{folder}/killed.safetensors")]
    started += [fork(run_together, base, folder, RANK=rank, LOCAL_RANK=rank, **shared) for rank in "01"]
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in started]
    Path(folder, "codes.json").write_bytes(orjson.dumps(codes))


def fork(job, *arguments, **environment):
    process = os.fork()
    if process:
        return process
    try:
        os.environ.update(environment)
        job(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_and_be_killed(base, state):
    module.SAVE_SECONDS = 0.0

    def log(entry):
        if entry["step"] == 8:
            os.kill(os.getpid(), signal.SIGKILL)

    trained(base, "lora", Path(state), log)


def run_together(base, out):
    """Trains as one of several processes, once by a script; writes what it ended with: weights, steps, losses."""
    rank = os.environ["RANK"]
    report = {}
    for tune in SHORT:
        diary, encoder = Diary(), made(base, tune, dropout=False)
        state = Path(out) / "states" / f"{tune}.safetensors"
        loss = finetune(encoder, LESSONS, WATCHED, TOGETHER[tune], 3, state, diary)
        report[tune] = [encoder.fingerprint(), loss, diary.steps, diary.of("validation")]
    stage = Stage("scorer", 1, 1e-2)
    options = EncoderOptions(base, 40, simulated=8, pretrain=replace(stage, tune="lora"), finetune=stage)
    settings = {"simulated": 16, "folds": 2, "inner_folds": 2, "baselines": False, "device": "cpu"}
    loop.train([TASKS["cls"]], TrainConfig(backend="encoder", out=f"{out}/cls", encoder=options, **settings))
    Path(out, f"rank{rank}.json").write_bytes(orjson.dumps(report))


TOGETHER = {tune: replace(stage, epochs=3, batch_tokens=128) for tune, stage in SHORT.items()}


@pytest.fixture(scope="module", autouse=True)
def started(tiny_base, tmp_path_factory):
    """The folder of three processes and the one that starts them: at once, to be done while other tests run."""
    folder = tmp_path_factory.mktemp("elsewhere")
    command = [sys.executable, "-c", SCRIPT, __file__, tiny_base, str(folder)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=Path(toy_task.__file__).parent, start_new_session=True, **pipes)
    yield folder, process
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.fixture(scope="module")
def elsewhere(started):
    """What they did: one was killed, and two trained together.

    Returns their folder, exit codes, and what they printed on stdout and stderr.
    """
    folder, process = started
    printed, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return folder, orjson.loads((folder / "codes.json").read_bytes()), printed, errors


def test_a_process_killed_by_the_system_goes_on_to_the_same_weights(elsewhere, tiny_base, unbroken):
    folder, codes, _, errors = elsewhere
    assert codes[:1] == [-signal.SIGKILL], errors
    expected, loss, whole = unbroken["lora"]
    diary = Diary()
    encoder, again = trained(tiny_base, "lora", folder / "killed.safetensors", diary)
    assert diary.steps == whole.steps[7:]
    assert again == loss
    assert not changed(expected, weights(encoder))


def test_processes_that_train_together_end_with_the_same_weights(elsewhere):
    folder, codes, _, errors = elsewhere
    assert codes[1:] == [0, 0], errors
    first, second = (orjson.loads((folder / f"rank{rank}.json").read_bytes()) for rank in "01")
    assert first == second
    assert {path.name for path in (folder / "states").iterdir()} == {"scorer.safetensors", "lora.safetensors"}


def test_of_processes_that_train_together_one_writes(elsewhere):
    folder, codes, printed, errors = elsewhere
    assert codes[1:] == [0, 0], errors
    assert printed.count("trained on") == 1
    names = {path.name for path in (folder / "cls").iterdir()}
    assert len([name for name in names if name.startswith("encoder-")]) == 1
    assert {"manifest.json", "metrics.json", "report.md", "cls"} <= names
    assert not [name for name in names if name.startswith(".")]


@pytest.mark.parametrize("tune", SHORT)
def test_two_processes_make_the_steps_of_one_with_twice_the_batches(elsewhere, tiny_base, tune):
    folder, *_ = elsewhere
    _, loss, steps, validation = orjson.loads((folder / "rank0.json").read_bytes())[tune]
    encoder, diary = made(tiny_base, tune, dropout=False), Diary()
    alone = finetune(encoder, LESSONS, WATCHED, replace(TOGETHER[tune], accumulate=2), 3, log=diary)
    assert steps == diary.steps
    assert validation == pytest.approx(diary.of("validation"), abs=1e-3)
    assert loss == pytest.approx(alone, abs=1e-3)

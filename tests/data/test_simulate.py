"""The simulator: determinism, and labels that hold when the world is asked again."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections import Counter
from collections.abc import Collection

import pytest

from stepsieve.data import redundancybench, references
from stepsieve.data.errors import DataError
from stepsieve.data.simulate import DOMAINS, Run, SimulationConfig, run_one, simulate
from stepsieve.data.simulate.derive import Step
from stepsieve.data.simulate.run import _DOMAINS
from stepsieve.data.simulate.world import RULE, World
from stepsieve.data.trajectory import ABNORMAL, DUPLICATED, EXPLORATORY, INCORRECT, REDUNDANCY_TYPES

RUNS = [run_one(index) for index in range(480)]
GOOD = [run for run in RUNS if run.trajectory.outcome == 1.0]


def replay(run: Run, skip: Collection[tuple[int, ...]] = (), until: Step | None = None) -> World:
    """A world after the run's calls, without those to skip and without faults; up to a step, where one is named."""
    world = run.start.copy()
    tools = _DOMAINS[run.trajectory.domain].tools
    for step in run.trace.steps:
        if step is until:
            break
        if step.reference not in skip and step.answer.failure != "transient":
            tools[step.tool](world, step.arguments)
    return world


def again(run: Run, step: Step, world: World) -> object:
    return _DOMAINS[run.trajectory.domain].tools[step.tool](world, step.arguments).payload


def test_a_seed_gives_the_same_runs_in_every_version():
    """What was measured on them, and trained on them, can be measured again."""
    runs = simulate(12, seed=0)
    text = repr([(run.id, run.messages, run.labels) for run in runs])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "8fac9e851302ce12"


def labelled(kind: str) -> list[tuple[Run, Step, tuple[int, ...]]]:
    found = []
    for run in GOOD:
        by = {step.reference: step for step in run.trace.steps}
        found += [(run, by[label.step], label.evidence) for label in run.trajectory.labels or () if label.type == kind]
    return found


def test_same_seed_same_runs_and_a_shorter_list_is_a_prefix() -> None:
    assert simulate(30, seed=3) == simulate(60, seed=3)[:30]
    assert simulate(30, seed=3) != simulate(30, seed=4)
    assert [run.trajectory for run in RUNS[:20]] == simulate(20)


def test_runs_do_not_depend_on_the_hash_seed() -> None:
    code = "from stepsieve.data.simulate import simulate; print(hash(0), [t.messages for t in simulate(9)])"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


def test_shape_of_the_corpus() -> None:
    assert {run.trajectory.domain for run in RUNS} == set(DOMAINS)
    assert len({run.trajectory.id for run in RUNS}) == len(RUNS)
    assert len({run.trajectory.group for run in RUNS}) == len(RUNS) / 3
    for run in RUNS:
        first, second = run.trajectory.messages[:2]
        assert (first.role, second.role) == ("assistant", "user")
        assert run.trajectory.subset == "simulated"
        assert run.trajectory.policy
        assert 6 <= len(run.trajectory.messages) <= 122


def test_messages_and_trace_tell_the_same_story() -> None:
    for run in RUNS:
        paired = [(it.call_index, it.result_index, it.call.requestor) for it in run.trajectory.interactions]
        assert paired == [(step.call_index, step.result_index, step.requestor) for step in run.trace.steps]
        for interaction, step in zip(run.trajectory.interactions, run.trace.steps, strict=True):
            assert interaction.error == bool(step.answer.failure)


def test_labels_are_valid_references() -> None:
    for run in RUNS:
        for label in run.trajectory.labels or ():
            references.validate_step(label.step, run.trajectory)
            references.validate_evidence(label.evidence, run.trajectory)


def test_failed_runs_exist_and_have_no_labels() -> None:
    failed = [run for run in RUNS if run.trajectory.outcome == 0.0]
    assert 0.05 < len(failed) / len(RUNS) < 0.16
    assert all(run.trajectory.labels is None for run in failed)
    assert all(run.trace.task.reached(run.end) == (run.trajectory.outcome == 1.0) for run in RUNS)


def test_shares_are_near_the_configured_ones() -> None:
    counts = Counter(label.type for run in GOOD for label in run.trajectory.labels or ())
    total = counts.total()
    for kind, share in SimulationConfig().shares.items():
        assert counts[kind] / total == pytest.approx(share, abs=0.06), kind
    assert 2.5 < total / len(GOOD) < 4.3


def test_shares_can_be_configured() -> None:
    config = SimulationConfig(shares={DUPLICATED: 1.0}, failure_share=0.0)
    counts = Counter(label.type for run in simulate(60, config=config) for label in run.labels or ())
    # A repeat that comes after the thing was settled is no longer a repeat: it is wrong.
    assert counts[DUPLICATED] > 0.9 * counts.total()
    assert not any(run.labels for run in simulate(30, config=SimulationConfig(labels_per_run=0)))


def test_goal_is_reached_without_the_labelled_steps() -> None:
    for run in GOOD:
        skip = {label.step for label in run.trajectory.labels or ()}
        assert run.trace.task.reached(replay(run, skip)), run.trajectory.id


def test_goal_is_missed_without_a_needed_write() -> None:
    missed = 0
    for run in GOOD:
        goal = {(key, name) for key, name, _ in run.trace.task.goal}
        labels = {label.step for label in run.trajectory.labels or ()}
        for step in run.trace.steps:
            if step.answer.changed & goal and step.reference not in labels:
                assert not run.trace.task.reached(replay(run, labels | {step.reference})), run.trajectory.id
                missed += 1
    assert missed > len(GOOD) / 2


def test_ids_in_kept_calls_are_known_without_the_labelled_steps() -> None:
    for run in GOOD:
        skip = {label.step[1] for label in run.trajectory.labels or ()}
        for step in run.trace.steps:
            if step.result_index in skip or step.requestor == "user" or step.answer.failure:
                continue
            ids = [value for value in step.arguments.values() if isinstance(value, str) and value in run.start.records]
            before = " ".join(
                message.content or ""
                for index, message in enumerate(run.trajectory.messages[: step.call_index])
                if index not in skip
            )
            assert all(value in before for value in ids), (run.trajectory.id, step.reference)


def test_a_duplicated_step_tells_nothing_new() -> None:
    cases = labelled(DUPLICATED)
    joint = sum(len(evidence) > 2 for _, _, evidence in cases)
    other = 0
    for run, step, evidence in cases:
        sources = [item for item in run.trace.steps if item.reference in references.pairs(evidence)]
        assert max(evidence) < step.call_index
        assert not step.answer.changed
        for fact, version in step.versions.items():
            assert any(item.versions.get(fact) == version for item in sources)
        if len(sources) == 1 and sources[0].same_call(step):
            assert again(run, step, replay(run, until=step)) == sources[0].answer.payload
        other += all(item.tool != step.tool for item in sources)
    assert joint
    assert other


def test_an_abnormal_step_is_a_fault_that_a_retry_cleared() -> None:
    cases = labelled(ABNORMAL)
    assert cases
    for run, step, evidence in cases:
        retry = next(item for item in run.trace.steps if item.reference == evidence)
        assert step.answer.failure == "transient"
        assert retry.same_call(step)
        assert not retry.answer.failure
        assert retry.call_index > step.call_index


def test_an_incorrect_step_was_known_to_be_wrong() -> None:
    cases = labelled(INCORRECT)
    kinds: Counter[str] = Counter()
    for run, step, evidence in cases:
        assert evidence == references.POLICY or max(evidence) < step.call_index
        kinds["policy" if evidence == references.POLICY else "call" if len(evidence) == 2 else "message"] += 1
        kinds["failed"] += bool(step.answer.failure)
        wrong = any(not values & run.trace.task.truth[slot] for slot, values in step.binds.items())
        assert wrong or step.answer.breach is not None
    assert kinds["call"] > kinds["policy"] > 0
    assert kinds["message"] > 0
    assert 0 < kinds["failed"] < len(cases) / 2


def test_an_exploratory_step_is_followed_by_what_mattered() -> None:
    siblings: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for run, step, evidence in labelled(EXPLORATORY):
        assert max(evidence) > step.call_index
        assert not step.answer.changed
        assert not step.answer.failure
        siblings[run.trajectory.id, evidence] += 1
    assert max(siblings.values()) > 2
    users = {run.trajectory.messages[evidence[0]].role for run, _, evidence in labelled(EXPLORATORY)}
    assert users == {"user", "assistant"}


def test_hard_negatives_exist() -> None:
    seen: Counter[str] = Counter()
    for run in GOOD:
        labels = {label.step for label in run.trajectory.labels or ()}
        kept = [step for step in run.trace.steps if step.requestor == "assistant" and step.reference not in labels]
        for place, step in enumerate(kept):
            for twin in (item for item in kept[:place] if item.same_call(step) and not item.answer.failure):
                assert step.answer.failure or step.answer.changed or step.versions != twin.versions
                seen["same call after a write"] += 1
            seen["permanent failure that nobody could foresee"] += (
                step.answer.failure == "permanent" and step.answer.breach != RULE
            )
            seen["fault never retried"] += step.answer.failure == "transient"
            seen["parallel"] += len(run.trajectory.messages[step.call_index].tool_calls) > 1
        objects = Counter(step.tool for step in kept if not step.answer.changed)
        seen["several candidates that are all used"] += any(count > 2 for count in objects.values())
    assert all(seen.values()), seen
    assert len(seen) == 5


def test_surface_differs_between_tasks() -> None:
    names = {call.name for run in RUNS for message in run.trajectory.messages for call in message.tool_calls}
    keys = {key for run in RUNS for it in run.trajectory.steps for key in it.call.arguments}
    assert len(names) > 300
    assert len(keys) > 30
    flags = {message.error for run in RUNS for message in run.trajectory.messages if message.role == "tool"}
    assert flags == {None, False, True}


@pytest.mark.parametrize(
    "values",
    [
        {"failure_share": 1.5},
        {"domains": ("moon",)},
        {"domains": ()},
        {"shares": {"Silly Step": 1.0}},
        {"shares": {DUPLICATED: 0.0}},
        {"shares": {DUPLICATED: -1.0}},
        {"labels_per_run": -1.0},
        {"labels_per_run": float("inf")},
        {"failure_share": float("nan")},
        {"runs_per_task": 4},
    ],
)
def test_bad_configuration_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(DataError, match="expected"):
        SimulationConfig(**values)  # type: ignore[arg-type]


def test_command_line_writes_what_the_reader_reads(tmp_path, capfd) -> None:
    out = tmp_path / "corpus"
    base = [sys.executable, "-m", "stepsieve.data.simulate"]
    subprocess.run([*base, "--n", "12", "--seed", "5", "--out", str(out)], check=True)
    assert str(out) in capfd.readouterr().out.splitlines()[-1]
    expected = {trajectory.id: trajectory for trajectory in simulate(12, seed=5)}
    read = redundancybench.read(out)
    assert {trajectory.id for trajectory in read} == set(expected)
    for trajectory in read:
        twin = expected[trajectory.id]
        assert trajectory.messages == twin.messages
        assert (trajectory.labels, trajectory.outcome, trajectory.group) == (twin.labels, twin.outcome, twin.group)
    for bad in (["--n", "-1"], ["--n", "many"], ["--domains", "moon"]):
        code = subprocess.run([*base, *bad, "--out", str(tmp_path / "other")], check=False).returncode
        error = capfd.readouterr().err
        assert code == 2
        assert len(error.splitlines()) == 1
    assert not (tmp_path / "other").exists()
    assert subprocess.run([*base, "--out", str(out)], check=False).returncode == 2


def test_all_four_types_in_every_domain() -> None:
    seen = {(run.trajectory.domain, label.type) for run in GOOD for label in run.trajectory.labels or ()}
    assert seen == {(domain, kind) for domain in DOMAINS for kind in REDUNDANCY_TYPES}

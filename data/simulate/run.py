"""Configuration and the loop: task, agent, run, labels, trajectory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from stepsieve.data.errors import DataError
from stepsieve.data.simulate import derive, device, device_plan, shop, shop_plan, travel, travel_plan
from stepsieve.data.simulate.agent import BYE, DONE, SORRY
from stepsieve.data.simulate.session import Flaws, GaveUp, Session
from stepsieve.data.simulate.surface import Surface, phrase
from stepsieve.data.simulate.world import Task, Tool, World
from stepsieve.data.trajectory import ABNORMAL, DUPLICATED, EXPLORATORY, INCORRECT, REDUNDANCY_TYPES, Trajectory


@dataclass(frozen=True)
class _Domain:
    policy: str
    tools: Mapping[str, Tool]
    build: Callable[[random.Random, str], tuple[World, Task]]
    play: Callable[[Session], None]


_DOMAINS: Mapping[str, _Domain] = {
    "travel": _Domain(travel.POLICY, travel.TOOLS, travel.build, travel_plan.play),
    "shop": _Domain(shop.POLICY, shop.TOOLS, shop.build, shop_plan.play),
    "device": _Domain(device.POLICY, device.TOOLS, device.build, device_plan.play),
}
DOMAINS: tuple[str, ...] = tuple(_DOMAINS)
"""The domains that can be simulated."""

PAPER_SHARES: Mapping[str, float] = {EXPLORATORY: 0.635, INCORRECT: 0.219, DUPLICATED: 0.117, ABNORMAL: 0.029}
"""Shares of the four types over all labels of RedundancyBench (arXiv 2605.29893)."""

_PROFILES: Mapping[str, Mapping[str, float]] = {
    # How much of each flaw an agent has beside the average, and how often it reads again what it changed.
    "careful": {EXPLORATORY: 0.8, INCORRECT: 0.5, DUPLICATED: 0.6, "verifies": 0.7},
    "hasty": {EXPLORATORY: 1.0, INCORRECT: 1.6, DUPLICATED: 1.0, "verifies": 0.1},
    "wordy": {EXPLORATORY: 1.1, INCORRECT: 0.9, DUPLICATED: 1.6, "verifies": 0.4},
}
# Budgets that find no place in a run are lost; these factors make up for what each type loses on average.
_YIELD = {EXPLORATORY: 4.6, INCORRECT: 1.66, DUPLICATED: 0.74, ABNORMAL: 1.18}


@dataclass(frozen=True)
class SimulationConfig:
    """What to simulate.

    Attributes:
        shares: share of each redundancy type among all labels, about; four non-negative numbers, not all zero.
        labels_per_run: mean number of redundant steps that a run is given room for, from 0 to 50; long
            runs of it find no place, so that large numbers are not reached.
        failure_share: share of runs whose agent gives up before the goal, in [0, 1].
        astray_share: share of runs whose agent goes astray, in [0, 1]: it makes a change to the wrong record, leaves it
            out, or goes round in circles until it gives up. Some reach the goal all the same.
        domains: which of DOMAINS, drawn evenly.
        parallel_share: share of runs whose agent puts several look-ups into one message, in [0, 1].
        patience: probability that a faulted look-up is tried again after others rather than at once, in [0, 1].
        runs_per_task: how many agents run each task, from 1 to 3.

    Raises:
        DataError: a value outside its range, an unknown type or domain.
    """

    shares: Mapping[str, float] = field(default_factory=lambda: dict(PAPER_SHARES))
    labels_per_run: float = 3.4
    failure_share: float = 0.1
    astray_share: float = 0.0
    domains: tuple[str, ...] = DOMAINS
    parallel_share: float = 0.1
    patience: float = 0.2
    runs_per_task: int = 3

    def __post_init__(self) -> None:
        for name in ("failure_share", "astray_share", "parallel_share", "patience"):
            if not 0 <= getattr(self, name) <= 1:
                raise DataError(f"expected a number from 0 to 1, found {getattr(self, name)!r}", field=name)
        if not self.domains or set(self.domains) - set(DOMAINS):
            raise DataError(f"expected some of {', '.join(DOMAINS)}, found {list(self.domains)}", field="domains")
        if set(self.shares) - set(REDUNDANCY_TYPES) or min(self.shares.values(), default=-1) < 0:
            found = dict(self.shares)
            raise DataError(f"expected a share from 0 for each redundancy type, found {found}", field="shares")
        if not sum(self.shares.values()) > 0:
            raise DataError("expected at least one share above 0", field="shares")
        if not 0 <= self.labels_per_run <= 50:
            raise DataError(f"expected a number from 0 to 50, found {self.labels_per_run!r}", field="labels_per_run")
        if self.runs_per_task not in (1, 2, 3):
            raise DataError(f"expected 1, 2 or 3, found {self.runs_per_task!r}", field="runs_per_task")


@dataclass(frozen=True)
class Run:
    """One simulated run with all that its labels follow from.

    Attributes:
        trajectory: what a user of the corpus sees.
        trace: the steps as the world saw them.
        start: the world before the run; copy it before a replay.
        end: the world after the run.
    """

    trajectory: Trajectory
    trace: derive.Trace
    start: World
    end: World


def simulate(n: int, seed: int = 0, config: SimulationConfig | None = None) -> list[Trajectory]:
    """Simulate ``n`` runs. Run i depends on (seed, i, config) alone: a shorter list is a prefix of a longer.

    Failed runs have outcome 0.0 and labels None: redundancy is defined on successful runs.

    Raises:
        DataError: ``n`` below 0.
    """
    if n < 0:
        raise DataError(f"expected a number of trajectories from 0, found {n}", field="n")
    return list(iter_trajectories(n, seed, config))


def iter_trajectories(n: int, seed: int = 0, config: SimulationConfig | None = None) -> Iterator[Trajectory]:
    """The same runs one at a time."""
    for index in range(n):
        yield run_one(index, seed, config).trajectory


def run_one(index: int, seed: int = 0, config: SimulationConfig | None = None) -> Run:
    """Simulate run ``index`` of a seed, with its trace and its worlds."""
    config = config or SimulationConfig()
    group, agent_index = divmod(index, config.runs_per_task)
    rng = random.Random(f"{seed}:task:{group}")
    domain = rng.choice(config.domains)
    place = _DOMAINS[domain]
    task_id = f"{domain}-{group:05d}"
    start, task = place.build(rng, task_id)
    surface_rng = random.Random(f"{seed}:surface:{group}")
    run_rng = random.Random(f"{seed}:run:{index}")
    agents = surface_rng.sample(sorted(_PROFILES), config.runs_per_task)
    agent = agents[agent_index]
    world = start.copy()
    surface = Surface(surface_rng, run_rng)
    flaws = _flaws(run_rng, config, _PROFILES[agent])
    _lead_astray(flaws, random.Random(f"{seed}:astray:{index}"), config.astray_share)
    session = Session(world, place.tools, task, surface, run_rng, flaws)
    try:
        place.play(session)
    except GaveUp:
        _leave(session)
    trace = session.trace()
    reached = task.reached(world)
    trajectory = Trajectory(
        id=f"simulated:{domain}:{index}",
        messages=tuple(session.messages),
        policy=place.policy,
        domain=domain,
        task_id=task_id,
        subset="simulated",
        agent=agent,
        labels=derive.labels(trace) if reached else None,
        qualities=derive.qualities(trace),
        outcome=float(reached),
        task=_record(task),
    )
    return Run(trajectory, trace, start, world)


def _flaws(rng: random.Random, config: SimulationConfig, profile: Mapping[str, float]) -> Flaws:
    """Draw the budgets of one run: a total, then the types of it by share and profile."""
    total = sum(config.shares.values())
    counts = {}
    mood = rng.gammavariate(2.0, 0.5)
    for kind in REDUNDANCY_TYPES:
        mean = (
            config.labels_per_run * config.shares.get(kind, 0.0) / total * profile.get(kind, 1.0) * _YIELD[kind] * mood
        )
        counts[kind] = _poisson(rng, mean)
    quits = rng.random() < config.failure_share
    return Flaws(
        explore=counts[EXPLORATORY],
        wrong=counts[INCORRECT],
        faults_at=frozenset(rng.sample(range(8), min(counts[ABNORMAL], 8))),
        recheck_at=frozenset(rng.sample(range(9), min(counts[DUPLICATED], 9))),
        quits_at=rng.randint(1, 4) if quits else None,
        parallel=rng.random() < config.parallel_share,
        patience=config.patience,
        verifies=rng.random() < profile["verifies"],
    )


def _lead_astray(flaws: Flaws, rng: random.Random, share: float) -> None:
    """Draw whether and how a run goes astray. A generator of its own leaves all else of the run as it is without."""
    if rng.random() < share:
        flaws.strays = rng.random() < 0.6
        flaws.harms = rng.random() < 0.7
        flaws.circles_at = None if flaws.strays else rng.randint(2, 6)


def _poisson(rng: random.Random, mean: float) -> int:
    """A Poisson number by counting exponential gaps; fine for the small means here."""
    count, left = 0, mean
    while (left := left - rng.expovariate(1.0)) > 0:
        count += 1
    return count


def _leave(session: Session) -> None:
    """The agent ends the run: it admits that nothing came of it, or claims that all is done."""
    if session.rng.random() < 0.6:
        session.assistant(session.rng.choice(SORRY))
        session.user(session.rng.choice(("Then I'll try again another day.", "What a pity.", "That's disappointing.")))
    else:
        session.assistant(phrase(session.rng, DONE, what="Everything is settled.", name="you"))
        session.user(session.rng.choice(BYE))


def _record(task: Task) -> dict[str, object]:
    return {"id": task.id, "kind": task.kind, "goal": [list(item) for item in task.goal]}

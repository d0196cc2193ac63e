"""The built-in simulator: labelled trajectories without any download.

A small world with three domains (a travel desk, a shop, a support line where the user has tools too), each with
records, tools that read and change them, a policy, and tasks with a goal state. A scripted agent with tunable flaws
solves the tasks with a scripted user. Gold labels are derived from what was read, changed and said when (derive.py),
never written by the flaw itself.
"""

from __future__ import annotations

from stepsieve.data.simulate.run import DOMAINS, Run, SimulationConfig, iter_trajectories, run_one, simulate

__all__ = ["DOMAINS", "Run", "SimulationConfig", "iter_trajectories", "run_one", "simulate"]

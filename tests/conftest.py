"""What all tests share: the same hypothesis examples in every run, a simulated corpus, the released one if present."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from stepsieve.data.ingest import load
from stepsieve.data.simulate import simulate

# Small models gain nothing from threads, and tests that run side by side lose by them. Inherited by subprocesses.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("same", derandomize=True, deadline=None, max_examples=40)
settings.load_profile("same")

RELEASED = Path(__file__).parents[2] / "shared" / "data" / "redundancybench"


@pytest.fixture(scope="session")
def simulated():
    """120 simulated trajectories, failed ones among them."""
    return simulate(120, seed=11)


@pytest.fixture(scope="session")
def released():
    """RedundancyBench as released; skips where it does not lie beside the checkout."""
    if not RELEASED.is_dir():
        pytest.skip(f"the released RedundancyBench is not beside the checkout: {'/'.join(RELEASED.parts[-3:])}")
    return list(load(RELEASED))

"""Stop: will a run that is still going succeed, will it fail, and when is that sure enough to stop it?

python train/stop.py                                       # on the built-in simulator, no download
python train/stop.py --data gpt-4o-airline.json            # on runs with outcomes; then eval/stop.py
"""

from stepsieve.data.errors import run_cli
from stepsieve.train.config import parse
from stepsieve.train.loop import train
from stepsieve.train.tasks import TASKS


def main() -> None:
    config = parse("stop", __doc__)
    train([TASKS["stop"]], config)


if __name__ == "__main__":
    run_cli(main)

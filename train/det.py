"""StepDet: which steps of a run are redundant, of which type, on what evidence? Ranked. (RedundancyBench)

python train/det.py                                        # on the built-in simulator
python train/det.py --data DIR --split human-cv            # on a corpus
python train/det.py --data DIR --min-precision 0.99        # return only what can be deleted safely
"""

from stepsieve.data.errors import run_cli
from stepsieve.train.config import parse
from stepsieve.train.loop import train
from stepsieve.train.tasks import TASKS


def main() -> None:
    config = parse("det", __doc__)
    train([TASKS["det"]], config)


if __name__ == "__main__":
    run_cli(main)

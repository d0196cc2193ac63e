"""StepCls: given a redundant step and its evidence, which of the four types is it? (RedundancyBench, section 4)

python train/cls.py                                        # on the built-in simulator, no download
python train/cls.py --data DIR --split human-cv            # on a corpus
python train/cls.py --train simulated --data DIR           # simulated training, real test
"""

from stepsieve.data.errors import run_cli
from stepsieve.train.config import parse
from stepsieve.train.loop import train
from stepsieve.train.tasks import TASKS


def main() -> None:
    config = parse("cls", __doc__)
    train([TASKS["cls"]], config)


if __name__ == "__main__":
    run_cli(main)

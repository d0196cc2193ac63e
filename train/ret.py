"""EvidenceRet: given a redundant step, what shows it, and of which type is it? Both must match. (RedundancyBench)

python train/ret.py                                        # on the built-in simulator
python train/ret.py --data DIR --split human-cv            # on a corpus
"""

from stepsieve.data.errors import run_cli
from stepsieve.train.config import parse
from stepsieve.train.loop import train
from stepsieve.train.tasks import TASKS


def main() -> None:
    config = parse("ret", __doc__)
    train([TASKS["ret"]], config)


if __name__ == "__main__":
    run_cli(main)

"""All heads in one checkpoint: StepCls, EvidenceRet and StepDet. This makes the checkpoint that is shipped.

python train/all.py --data DIR --out models/pretrained
"""

from stepsieve.data.errors import run_cli
from stepsieve.train.config import parse
from stepsieve.train.loop import train
from stepsieve.train.tasks import TASKS


def main() -> None:
    config = parse("all", __doc__)
    train([TASKS[name] for name in ("cls", "ret", "det")], config)


if __name__ == "__main__":
    run_cli(main)

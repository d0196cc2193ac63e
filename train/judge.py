"""Judge: how good was what the assistant did, message by message, in four dimensions? (DynSTEER, section 3.3)

python train/judge.py                                      # on the built-in simulator, no download
python train/judge.py --data hotpotqa.jsonl                # on AgentProcessBench; then eval/process.py
"""

from stepsieve.data.errors import run_cli
from stepsieve.train.config import parse
from stepsieve.train.loop import train
from stepsieve.train.tasks import TASKS


def main() -> None:
    config = parse("judge", __doc__)
    train([TASKS["judge"]], config)


if __name__ == "__main__":
    run_cli(main)

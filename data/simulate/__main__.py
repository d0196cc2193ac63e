"""``python -m stepsieve.data.simulate``: write simulated trajectories in the layout of RedundancyBench."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from stepsieve.data.errors import DataError, Parser, run_cli
from stepsieve.data.simulate import DOMAINS, SimulationConfig, simulate


def main() -> None:
    """Reads the command line, simulates, writes.

    Raises:
        DataError: an argument that can't be used.
    """
    args = _parser().parse_args()
    # Imported here so that --help and bad arguments answer at once.
    from stepsieve.data import redundancybench

    if args.out.exists() and (not args.out.is_dir() or any(args.out.iterdir())):
        raise DataError(f"expected a new or empty folder for --out, found {args.out}")
    config = SimulationConfig(
        domains=tuple(args.domains), failure_share=args.failures, labels_per_run=args.labels_per_run
    )
    trajectories = simulate(args.n, args.seed, config)
    try:
        redundancybench.write(trajectories, args.out)
    except OSError as error:
        raise DataError(f"expected a folder that can be written for --out: {error.strerror}", file=args.out) from None
    types = Counter(label.type for trajectory in trajectories for label in trajectory.labels or ())
    for name, count in types.most_common():
        print(f"{count:7d}  {name}")
    failed = sum(trajectory.labels is None for trajectory in trajectories)
    print(
        f"wrote {len(trajectories)} trajectories ({failed} failed, {sum(types.values())} labels) "
        f"to {args.out / 'automated_annotation'}"
    )


def _parser() -> Parser:
    parser = Parser(
        prog="python -m stepsieve.data.simulate",
        description="Simulate agent runs with gold redundancy labels and write them in the layout of RedundancyBench.",
    )
    parser.add_argument("--n", type=int, default=500, help="number of trajectories (default: %(default)s)", metavar="N")
    parser.add_argument("--seed", type=int, default=0, help="decides everything; n=500 is a prefix of n=1000")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to; must be new or empty")
    parser.add_argument("--domains", nargs="+", default=list(DOMAINS), help="which domains (default: all)")
    parser.add_argument("--failures", type=float, default=0.1, help="share of runs that fail (default: %(default)s)")
    parser.add_argument(
        "--labels-per-run",
        type=float,
        default=3.4,
        help="mean number of redundant steps per run (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    run_cli(main)

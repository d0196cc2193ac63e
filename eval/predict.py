"""Redundant steps of many trajectories: any number of files of any known format in, one line per trajectory out.

    python eval/predict.py --input DIR --output out.jsonl                               # the shipped checkpoint
    python eval/predict.py --input 'runs/**/*.jsonl.gz' more.json --output out.parquet  # files, globs, folders
    zcat runs.gz | python eval/predict.py --input - --output out.jsonl                  # standard input
    python eval/predict.py --input /shared/runs --output out.parquet --engine ray --ray-address HOST:6379  # a cluster

A line is {"trajectory_id", "predictions": [{"redundant_step_idx", "redundant_step_type", "evidence_step_idx",
"confidence"}]}, the most confident first. A job that was cut short goes on where it was when the same command is given
again. Its file does not depend on the engine, the number of workers, nor on how often it was cut.
"""

from __future__ import annotations

import resource
import sys
import time
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

import orjson
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from stepsieve.data.errors import DataError, Parser, run_cli
from stepsieve.data.jsonio import dumps
from stepsieve.eval import sources
from stepsieve.eval.cluster import score_on_ray
from stepsieve.eval.output import Output, check
from stepsieve.eval.sources import Piece
from stepsieve.eval.work import Options, Predictor, Scored, checkpoint_folder, cores, score_here

Advance = Callable[[int], None]
Tell = Callable[[DataError], None]
Score = Callable[[Iterable[Piece]], Generator[Scored, None, None]]


def predict(output: Output, pieces: Iterable[Piece], score: Score, advance: Advance, tell: Tell) -> None:
    """Score the pieces that are not done yet, and put the output in its place.

    Args:
        score: gives the results of pieces, in order.
        advance: called with the number of bytes of the input that are done.
        tell: called with what can't be used; it is left out unless this raises.

    Raises:
        DataError: no trajectory at all.
    """
    seen = {orjson.loads(line)["trajectory_id"] for line in output.written()}
    if not output.progress.complete:
        left = _after(pieces, output.progress.pieces, advance)
        with closing(score(left)) as results:
            for scored in results:
                _add(output, scored, seen, tell)
                advance(scored.progress)
        if not output.progress.trajectories:
            raise DataError("expected at least one trajectory that can be used, found none")
    output.finish()


def _after(pieces: Iterable[Piece], done: int, advance: Advance) -> Iterator[Piece]:
    for number, piece in enumerate(pieces):
        if number < done:
            advance(piece.progress)
        else:
            yield piece


def _add(output: Output, scored: Scored, seen: set[str], tell: Tell) -> None:
    problems = list(scored.problems)
    rows = []
    for row in scored.rows:
        if row.id in seen:
            problems.append(DataError("expected one trajectory of this id, found another", trajectory=row.id))
        else:
            seen.add(row.id)
            rows.append(row)
    for problem in problems:
        tell(problem)
    lines = b"".join(row.line for row in rows)
    output.add(lines, len(rows), sum(row.predictions for row in rows), len(problems))


def _raise(error: DataError) -> NoReturn:
    raise error


def job(paths: Sequence[Path], options: Options) -> dict[str, Any]:
    """What decides every byte of the output: the files as they are, the checkpoint, what is asked, how it is cut."""
    files = [(str(file), file.stat()) for file in sources.files_of(paths) if file.exists()]
    state = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in files]
    return {
        "inputs": sha256(dumps([[str(path) for path in paths], state])).hexdigest(),
        "checkpoint": sha256((checkpoint_folder(options) / "manifest.json").read_bytes()).hexdigest(),
        "returned": options.returned,
        "explain": options.explain,
        "device": options.device,
        "pieces": [sources.PIECE_ITEMS, sources.PIECE_BYTES, sources.SMALL_FILE],
    }


# --- the command -----------------------------------------------------------------------------------------------------


def _arguments() -> Namespace:
    parser = Parser("eval/predict.py", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--input", nargs="+", required=True, metavar="PATH", help='files, folders, globs, or "-": any known format')
    add("--output", required=True, metavar="FILE", help="a name in .jsonl, .jsonl.gz, .jsonl.zst or .parquet")
    add("--checkpoint", metavar="DIR", help="a checkpoint directory (default: the shipped one)")
    add("--engine", choices=["local", "ray"], default="local", help="where to compute (default: local: this machine)")
    add("--ray-address", metavar="HOST:PORT", help="a running cluster (default: $RAY_ADDRESS, or Ray on this machine)")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="for encoder heads; gbdt ones use the CPU")
    add("--workers", type=int, metavar="N", help="processes that score (default: one per core or GPU, if worth it)")
    add("--on-error", choices=["skip", "raise"], default="skip", help="a trajectory that can't be used (default: skip)")
    add("--explain", action="store_true", help='add "because": the five features that moved each prediction most')
    returned = parser.add_mutually_exclusive_group()
    returned.add_argument("--safe", action="store_true", help="only steps that can be pruned safely")
    returned.add_argument("--everything", action="store_true", help="every step, with its confidence")
    return parser.parse_args()


def main() -> None:
    started = time.perf_counter()
    arguments = _arguments()
    if arguments.workers is not None and arguments.workers < 1:
        raise DataError(f"expected at least 1, found {arguments.workers}", field="--workers")
    if arguments.ray_address and arguments.engine != "ray":
        raise DataError(f"expected nothing with --engine {arguments.engine}", field="--ray-address")
    returned = "safe" if arguments.safe else "everything" if arguments.everything else "best"
    skip = arguments.on_error == "skip"
    options = Options(arguments.checkpoint, returned, arguments.explain, skip, arguments.device)
    target = Path(arguments.output)
    check(target)
    paths = sources.find(arguments.input)
    if any(file.exists() and target.exists() and file.samefile(target) for file in sources.files_of(paths)):
        raise DataError("expected an output that is not among the inputs", file=target)
    score = _engine(arguments, options)
    # What was read from a pipe can't be read again.
    resumable = Path(sources.STDIN) not in paths
    with closing(Output(target, job(paths, options), resumable)) as output:
        before = output.progress
        if output.restarted:
            print(f"what an earlier, different job had left in {target}.part is dropped")
        if before.pieces:
            print(f"going on after {before.trajectories:,} trajectories that are done")
        try:
            _with_bar(output, paths, score, skip, resumable)
        except KeyboardInterrupt:
            hint = "; the same command goes on from here" if resumable and output.progress.pieces else ""
            print(f"interrupted{hint}", file=sys.stderr)
            sys.exit(130)
        memory = _peak_memory(with_workers=arguments.engine == "local")
        print(_summary(output, before.trajectories, time.perf_counter() - started, memory))


def _engine(arguments: Namespace, options: Options) -> Score:
    """What scores. Raises DataError for a checkpoint that can't be used before anything is started."""
    if arguments.engine == "local":
        return partial(score_here, predictor=Predictor(options), workers=arguments.workers or cores())
    reads_text = Predictor(replace(options, device="cpu")).reads_text
    workers = arguments.workers
    return partial(score_on_ray, options=options, reads_text=reads_text, address=arguments.ray_address, workers=workers)


def _with_bar(output: Output, paths: Sequence[Path], score: Score, skip: bool, sized: bool) -> None:
    """Predict under a progress bar on a terminal; elsewhere stderr holds errors and nothing else."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    total = sum(file.stat().st_size for file in sources.files_of(paths) if file.exists()) if sized else None
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("predicting", total=total)

        def tell(error: DataError) -> None:
            progress.console.print(f"skipped: {error}", markup=False, highlight=False, soft_wrap=True)

        advance = partial(progress.advance, bar)
        predict(output, sources.pieces(paths), score, advance, tell if skip else _raise)


def _summary(output: Output, before: int, seconds: float, memory: str) -> str:
    done = output.progress
    return (
        f"{done.trajectories:,} trajectories, {done.predictions:,} predictions, {done.skipped:,} skipped "
        f"in {seconds:.1f} s ({(done.trajectories - before) / seconds:,.0f} trajectories/s), "
        f"peak memory {memory}; written to {output.target}"
    )


def _peak_memory(with_workers: bool) -> str:
    unit = 1 if sys.platform == "darwin" else 1024
    own, others = (
        resource.getrusage(who).ru_maxrss * unit / 1e6 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return f"{own:,.0f} MB" + (f" and {others:,.0f} MB per worker" if with_workers and others else "")


if __name__ == "__main__":
    run_cli(main)

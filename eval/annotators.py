"""What several annotators said of the same runs: people, LLM judges, our models; each in a file of any known form."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from stepsieve.data import redundancybench, references
from stepsieve.data.documents import documents, opened
from stepsieve.data.errors import DataError
from stepsieve.data.jsonio import found
from stepsieve.data.messages import MAX_TEXT
from stepsieve.data.trajectory import REDUNDANCY_TYPES, Label, Reference, Trajectory
from stepsieve.eval.detection import Detection, rank
from stepsieve.eval.results import DET, TITLES, read


class Group(NamedTuple):
    """One redundancy that an annotator names: step, type and evidence together, the paper's triplet.

    Evidence is normalised, so that equal groups are equal tuples. A field that a model left unusable is None.
    """

    step: Reference | None
    type: str | None
    evidence: Reference | None


Groups = tuple[Group, ...]


@dataclass(frozen=True)
class Annotator:
    """One annotator.

    Attributes:
        name: what tables call it.
        groups: by trajectory id, each group once, the most confident first; a run that it failed to answer is absent.
        foreign: how many runs it answered that the data has not.
    """

    name: str
    groups: Mapping[str, Groups]
    foreign: int = 0

    def steps(self, run: str) -> dict[Reference, Group]:
        """The group of each step that it names in a run that it answered: its first, where it names several."""
        own: dict[Reference, Group] = {}
        for group in self.groups[run]:
            if group.step is not None:
                own.setdefault(group.step, group)
        return own


def of_labels(labels: Sequence[Label]) -> Groups:
    """The groups of some labels."""
    return _distinct(Group(label.step, label.type, label.evidence) for label in labels)


def of_detections(detections: Sequence[Detection]) -> Groups:
    """The groups of predicted triples, by confidence as the benchmark ranks them. A type that is none is unusable."""
    return _distinct(
        Group(own.step, own.type if own.type in REDUNDANCY_TYPES else None, own.evidence) for own in rank(detections)
    )


def _distinct(groups: Iterator[Group]) -> Groups:
    normal = (g._replace(evidence=None if g.evidence is None else references.normalise(g.evidence)) for g in groups)
    return tuple(dict.fromkeys(normal))


def gold(runs: Sequence[Trajectory], name: str = "gold") -> Annotator:
    """The labels that come with the runs."""
    return Annotator(name, {run.id: of_labels(run.labels) for run in runs if run.labels is not None})


def majority(annotators: Sequence[Annotator], runs: Sequence[Trajectory], name: str = "majority") -> Annotator:
    """The groups that more than half of the annotators name, in runs that all of them answered."""
    groups: dict[str, Groups] = {}
    for run in runs:
        if all(run.id in own.groups for own in annotators):
            named = [group for own in annotators for group in own.groups[run.id]]
            groups[run.id] = tuple(group for group in dict.fromkeys(named) if 2 * named.count(group) > len(annotators))
    return Annotator(name, groups)


# --- files -----------------------------------------------------------------------------------------------------------


def load_annotator(path: Path | str, runs: Sequence[Trajectory]) -> Annotator:
    """One annotator from a file or a folder.

    What is read: a StepDet result file or JSON Lines (eval/results.py); an annotation file of RedundancyBench, a list
    of rows with ``trajectory_id`` or ``task_id``; a folder in the released layout, of which all annotation files are.

    Raises:
        DataError: a file of another form, two rows for one run, a label that its run can't have, or no run in common.
    """
    path = Path(path)
    if path.is_dir():
        files = [folder / redundancybench.ANNOTATION for folder in redundancybench.domain_folders(path)]
        annotator = _of_rows(path.name, [(file, row) for file in files if file.is_file() for row in _rows(file)], runs)
    elif (rows := _annotation_rows(path)) is not None:
        annotator = _of_rows(path.stem, [(path, row) for row in rows], runs)
    else:
        annotator = _of_results(path, runs)
    if not annotator.groups:
        raise DataError("expected annotations of the data's trajectories, found none", file=path)
    return annotator


def _of_results(path: Path, runs: Sequence[Trajectory]) -> Annotator:
    predictions = read(path)
    if predictions.task != DET:
        raise DataError(f"expected predictions of {TITLES[DET]}, found {TITLES[predictions.task]}", file=path)
    known = {run.id for run in runs}
    groups = {
        run: of_detections(own) for run, own in predictions.trajectories.items() if own is not None and run in known
    }
    return Annotator(predictions.name, groups, len(predictions.trajectories.keys() - known))


def _annotation_rows(path: Path) -> list[Any] | None:
    """The rows of an annotation file; None for a file of another form, which is then read no further."""
    try:
        with opened(path) as stream:
            _, first = next(documents(stream, 2 * MAX_TEXT))
    except DataError as error:
        raise error.at(file=path) from None
    return first if isinstance(first, list) else None


def _rows(path: Path) -> list[Any]:
    rows = _annotation_rows(path)
    if rows is None:
        raise DataError("expected a list of annotations", file=path)
    return rows


def _of_rows(name: str, rows: Sequence[tuple[Path, Any]], runs: Sequence[Trajectory]) -> Annotator:
    known = {run.id: run for run in runs}
    groups: dict[str, Groups] = {}
    foreign: set[Hashable] = set()
    for file, row in rows:
        key = None
        try:
            key = _run_of(row, file.resolve().parent.name, runs)
            if key not in known:
                foreign.add(key)
            elif key in groups:
                raise DataError("expected one annotation of this trajectory, found two", trajectory=key)
            else:
                groups[key] = of_labels(list(redundancybench.read_labels(row, known[key])))
        except DataError as error:
            raise error.at(file=file, trajectory=key) from None
    return Annotator(name, groups, len(foreign))


def _run_of(row: object, folder: str, runs: Sequence[Trajectory]) -> str:
    """The id of the trajectory that an annotation row is about.

    A row with a task alone is one of the human subset: of the domain that its folder is named for, or else of the only
    domain that has the task.
    """
    if not isinstance(row, dict):
        raise DataError(f"expected an annotation object, found {found(row)}")
    if isinstance(row.get("trajectory_id"), str):
        return str(row["trajectory_id"])
    task = row.get("task_id")
    if isinstance(task, bool) or not isinstance(task, (str, int)):
        raise DataError(f"expected text, found {found(task)}", field="task_id")
    same = [run for run in runs if run.subset == "human" and run.task_id == str(task)]
    own = [run for run in same if run.domain == folder]
    if len(own or same) > 1:
        raise DataError(f"expected a folder named for the domain: {len(same)} have the task {str(task)!r}")
    return (own or same)[0].id if same else f"task {task}"

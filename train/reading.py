"""Encoders for a training run: one that simulated runs taught, and its fine-tuned copies for each training set."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepsieve.data.splits import assign_groups
from stepsieve.data.trajectory import Trajectory
from stepsieve.models.fusion import score_columns
from stepsieve.models.judge import Judge
from stepsieve.models.prompts import Lesson, Reader
from stepsieve.train.config import EncoderOptions
from stepsieve.train.examples import HeadSpec, Table, tabulate

if TYPE_CHECKING:
    from stepsieve.models.encoder import Encoder

Log = Callable[[dict[str, Any]], None]
"""Takes the stage's name and the figures of a step."""

VALIDATION = 8
"""One task in so many is kept from fine-tuning, to stop it in time."""


class Reading:
    """The encoders of a training run.

    Attributes:
        encoder: the one that all others are copies of.
        reader: for whom prompts are written.
    """

    def __init__(
        self,
        options: EncoderOptions,
        heads: Sequence[HeadSpec],
        simulated: Sequence[Trajectory],
        seed: int,
        device: str,
        states: Path,
        log: Log,
    ) -> None:
        """Make the encoder, and teach it on simulated trajectories unless it starts from a checkpoint.

        Args:
            simulated: none of them may be trained on or tested later.
            states: a folder for the states of unfinished training, from which it is resumed.
        """
        self.options, self.seed, self.states, self.log = options, seed, states, log
        self.encoder = _start(options, seed, device)
        self.reader = Reader(self.encoder.count, options.window)
        self._origin = self.encoder.fingerprint()
        self._fitted: dict[tuple[int, ...], Encoder] = {}
        if options.start is None and options.pretrain.tune != "none":
            shown = [run for run in simulated if run.labels is not None]
            held = len(shown) // VALIDATION
            varied = Reader(self.encoder.count, options.window, varied=True)
            lessons = [x for head in heads for x in tabulate(head, shown[held:], reader=varied).lessons]
            watched = [x for head in heads for x in tabulate(head, shown[:held], reader=self.reader).lessons]
            self._train(self.encoder, lessons, watched, options.pretrain, "pretraining")
            self._origin = self.encoder.fingerprint()  # where all copies start
        if options.finetune.tune in ("none", "scorer"):
            self.encoder.remembered = {}  # one base for all folds: what it read once need not be read again

    def fitted(self, tables: Sequence[Table], runs: Sequence[Trajectory], train: npt.NDArray[np.int64]) -> Encoder:
        """The encoder fine-tuned on the questions about the training trajectories; the same one when asked again."""
        stage = self.options.finetune
        if stage.tune == "none":
            return self.encoder
        key = tuple(train.tolist())
        if key not in self._fitted:
            own = [runs[i] for i in train]
            folds = assign_groups(own, VALIDATION, self.seed) if len({run.group for run in own}) >= VALIDATION else {}
            held = np.array([i for i in train if folds.get(runs[i].group, -1) == 0], dtype=np.int64)
            lessons = [lesson for table in tables for lesson in table.lessons_of(np.setdiff1d(train, held))]
            watched = [lesson for table in tables for lesson in table.lessons_of(held)]
            encoder = self.encoder.copy(whole=stage.tune != "scorer")
            self._train(encoder, lessons, watched, stage, "fine-tuning")
            self._fitted[key] = encoder
        return self._fitted[key]

    def forget(self) -> None:
        """Drop the fine-tuned encoders, which can be large."""
        self._fitted.clear()

    def columns(self, encoder: Encoder, spec: HeadSpec, table: Table) -> npt.NDArray[np.float32]:
        """(n, k) the encoder's scores for the rows of a table; NaN for what it was not offered."""
        found = np.full((len(table), len(spec.score_names)), np.nan, dtype=np.float32)
        prompts = [table.lessons[number].prompt for number in np.unique(table.example)]
        if prompts:
            found[table.offered] = score_columns(encoder.logits(prompts), spec.by_candidate)
        return found

    def _train(
        self, encoder: Encoder, lessons: Sequence[Lesson], watched: Sequence[Lesson], stage: Any, name: str
    ) -> None:
        from stepsieve.train.finetune import finetune

        lessons, watched = ([x for x in own if x.label >= 0] for own in (lessons, watched))
        # A state is that of one start, one stage and one set of lessons, and of no other.
        key = (self._origin, encoder.precision, asdict(stage), self.seed, _digest(lessons, watched))
        state = self.states / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.safetensors"

        def log(entry: dict[str, float]) -> None:
            self.log({**entry, "stage": name})

        finetune(encoder, lessons, watched, stage, self.seed, state, log)


@contextmanager
def read_anew(judge: Judge) -> Iterator[None]:
    """Its encoders read everything, as they would anywhere else, and not what this training run remembers."""
    encoders = {id(head.encoder): head.encoder for head in judge.heads.values() if head.encoder is not None}
    remembered = {key: encoder.remembered for key, encoder in encoders.items()}
    for encoder in encoders.values():
        encoder.remembered = None
    try:
        yield
    finally:
        for key, encoder in encoders.items():
            encoder.remembered = remembered[key]


def _start(options: EncoderOptions, seed: int, device: str) -> Encoder:
    """The encoder as it is before any training here."""
    from stepsieve.models import checkpoint
    from stepsieve.models.base_model import MINILM, MODERNBERT, Lora
    from stepsieve.models.encoder import Encoder, pick_device

    where = pick_device(device)
    if options.start is not None:
        encoder = checkpoint.load_encoder(Path(options.start))
        encoder.window = options.window
    else:
        base = options.base if options.base != "auto" else (MINILM if where == "cpu" else MODERNBERT)
        adapted = "lora" in (options.pretrain.tune, options.finetune.tune)
        lora = Lora(options.rank, 2 * options.rank) if adapted else None
        encoder = Encoder.from_base(base, options.window, lora, seed)
    return encoder.to(where, options.precision)


def _digest(*lessons: Sequence[Lesson]) -> str:
    digest = hashlib.sha256()
    for own in lessons:
        for lesson in own:
            digest.update(repr(lesson).encode())
            digest.update(b"" if lesson.prompt.facts is None else lesson.prompt.facts.tobytes())
        digest.update(b"/")
    return digest.hexdigest()

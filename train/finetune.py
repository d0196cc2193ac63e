"""The gradient loop of the encoder: questions of all tasks in one batch, on one device or several.

Batches hold packs of like length. The learning rate is a function of the step, and so is the randomness of a step:
a run that was killed goes on from its last saved step to the same weights, bit by bit on one machine.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from stepsieve.data.errors import DataError, require
from stepsieve.models.checkpoint import write_atomic
from stepsieve.models.encoder import BATCH_TOKENS, Encoder, facts_of
from stepsieve.models.packing import Pack
from stepsieve.models.prompts import Lesson
from stepsieve.train.config import Stage

SAVE_SECONDS = 20.0
"""At least so long between two saved states, but for those of an epoch's end."""

WITHOUT = 0.25
"""Share of the questions that are learned without their structured features: words alone must do for some."""

WARM_UP = 0.1
"""Share of the steps in which the learning rate rises."""

Log = Callable[[dict[str, float]], None]
"""Takes ``step``, ``steps``, ``loss``, ``rate`` after each step, ``validation`` after each epoch."""


def finetune(
    encoder: Encoder,
    lessons: Sequence[Lesson],
    validation: Sequence[Lesson],
    stage: Stage,
    seed: int = 0,
    state: Path | None = None,
    log: Log = lambda entry: None,
) -> float:
    """Train an encoder in place; it ends with the weights of the best epoch on the validation lessons.

    Args:
        lessons: what is learned; those of no weight change nothing.
        validation: what early stopping watches; without any the last epoch's weights stay.
        state: a file that the run is saved in, and resumed from where it exists.

    Returns:
        the loss on validation, of the mean lesson; NaN without any.

    Raises:
        DataError: an adapter is to be trained, and the encoder has none.
    """
    accelerate = require("accelerate", "encoder")
    accelerator = accelerate.Accelerator(
        cpu=encoder.device.type == "cpu",
        # A base may have layers that no answer comes from, such as a pooler.
        kwargs_handlers=[accelerate.DistributedDataParallelKwargs(find_unused_parameters=stage.tune != "scorer")],
    )
    place, places = accelerator.process_index, accelerator.num_processes
    if places > 1:
        encoder.to(accelerator.device, encoder.precision)
    parameters = _trainable(encoder, stage)
    lessons, validation = ([lesson for lesson in own if lesson.weight > 0] for own in (lessons, validation))
    if not lessons:
        return math.nan
    encoder.scorer.scale_to(facts_of([lesson.prompt for lesson in lessons]).to(encoder.device))
    make = _Cached if stage.tune == "scorer" else _Live
    source, watched = (make(encoder, own) for own in (lessons, validation))
    module = accelerator.prepare_model(source.module) if places > 1 else source.module
    optimizer = torch.optim.AdamW(parameters.values(), lr=stage.rate, weight_decay=stage.decay)
    scaler = torch.amp.GradScaler(encoder.device.type, enabled=encoder.precision == "fp16")

    size = stage.accumulate * places
    # The number of batches varies a little with their order; the number of steps must not.
    count = -(-len(source.batches(np.random.default_rng([seed, 0]), stage.batch_tokens)) // size)
    total = stage.epochs * count
    run, path = _Run(parameters, optimizer, scaler, total), state if accelerator.is_main_process else None
    run.resume(state)
    accelerator.wait_for_everyone()
    for epoch in range(run.step // count, stage.epochs):
        if run.stale > stage.patience:
            break
        batches = source.batches(np.random.default_rng([seed, epoch]), stage.batch_tokens)
        module.train()
        encoder.tree.eval()  # without dropout in the base: attention with it takes several times longer on a CPU
        for number in range(run.step - epoch * count, count):
            torch.manual_seed(hash((seed, epoch, number, place)) % 2**32)
            optimizer.param_groups[0]["lr"] = rate = stage.rate * _schedule(run.step / total)
            # The last step is filled up from the first batches.
            step = [batches[(number * size + k) % len(batches)] for k in range(size)]
            weight = sum(lesson.weight for batch in step for lesson in source.lessons_of(batch))
            own, loss = step[place::places], 0.0
            for batch in own:
                with accelerator.no_sync(module) if places > 1 and batch is not own[-1] else nullcontext():
                    # Gradients are averaged over the processes: so each batch counts as if all were one.
                    part = _loss(source, module, batch) * (places / weight)
                    scaler.scale(part).backward()
                loss += float(part.detach())
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(list(parameters.values()), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            run.step += 1
            log({"step": run.step, "steps": total, "loss": loss, "rate": rate})
            if run.step % count and time.monotonic() - run.saved >= SAVE_SECONDS:
                run.save(path)
        if validation:
            mean = _mean_loss(watched)
            run.watch(accelerate.utils.broadcast_object_list([mean])[0])  # all processes stop together
            log({"step": run.step, "steps": total, "validation": mean})
        run.save(path)
    run.finish(path)
    return run.best if validation else math.nan


class _Live:
    """Batches that go through the whole encoder."""

    def __init__(self, encoder: Encoder, lessons: Sequence[Lesson]) -> None:
        self.encoder, self.lessons = encoder, lessons
        self.packs = encoder.packs([lesson.prompt for lesson in lessons])
        self.module: nn.Module = _Whole(encoder)

    def batches(self, generator: np.random.Generator, tokens: int) -> list[list[Pack]]:
        """All packs, those of like length together, in random order."""
        noise = generator.uniform(0.9, 1.1, len(self.packs))
        order = np.argsort([-len(pack) * own for pack, own in zip(self.packs, noise, strict=True)])
        found = list(self.encoder.batches([self.packs[i] for i in order], tokens))
        return [found[i] for i in generator.permutation(len(found))]

    def lessons_of(self, batch: Sequence[Pack]) -> list[Lesson]:
        """The lessons of a batch, in order."""
        return [self.lessons[n] for pack in batch for n in pack.prompts.tolist()]

    def scores(self, module: nn.Module, batch: Sequence[Pack]) -> Tensor:
        """(n_options,) scores of the options of its lessons, one lesson after another."""
        facts = facts_of([lesson.prompt for lesson in self.lessons_of(batch)], WITHOUT if module.training else 0.0)
        with self.encoder.autocast():
            scores: Tensor = module(facts.to(self.encoder.device), *self.encoder.tensors(batch))
        return scores.float()


class _Cached:
    """Batches whose options the frozen encoder has read already: only the scorer is still to be trained."""

    def __init__(self, encoder: Encoder, lessons: Sequence[Lesson]) -> None:
        self.lessons = lessons
        prompts = [lesson.prompt for lesson in lessons]
        self.sizes = np.array([len(prompt.options) for prompt in prompts], dtype=np.int64)
        self.starts = np.cumsum(self.sizes) - self.sizes
        self.read = torch.cat(encoder.read(prompts) or [torch.zeros(0)]).to(encoder.device)
        self.facts = facts_of(prompts).to(encoder.device)
        self.module: nn.Module = encoder.scorer

    def batches(self, generator: np.random.Generator, tokens: int) -> list[list[int]]:
        """All lessons in random order."""
        order = generator.permutation(len(self.lessons)).tolist()
        size = max(1, tokens // 64)
        return [order[start : start + size] for start in range(0, len(order), size)]

    def lessons_of(self, batch: Sequence[int]) -> list[Lesson]:
        return [self.lessons[n] for n in batch]

    def scores(self, module: nn.Module, batch: Sequence[int]) -> Tensor:
        sizes = self.sizes[batch]
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        rows = torch.from_numpy(np.repeat(self.starts[batch], sizes) + within).to(self.read.device)
        scores: Tensor = module(self.read[rows], self.facts[rows])
        return scores


class _Whole(nn.Module):
    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.tree, self.scorer = encoder.tree, encoder.scorer

    def forward(self, facts: Tensor, *tree: Tensor) -> Tensor:
        scores: Tensor = self.scorer(self.tree(*tree), facts)
        return scores


def lesson_losses(scores: Tensor, lessons: Sequence[Lesson]) -> Tensor:
    """(n_lessons,) cross-entropy of each; of levels of a scale, the ranked probability score is added.

    Args:
        scores: (n_options,) the options of all lessons, one lesson after another.
    """
    sizes = [len(lesson.prompt.options) for lesson in lessons]
    table = nn.utils.rnn.pad_sequence(list(scores.split(sizes)), batch_first=True, padding_value=-1e4)
    labels = torch.tensor([lesson.label for lesson in lessons], device=scores.device)
    losses = nn.functional.cross_entropy(table, labels, reduction="none")
    ordered = torch.tensor([lesson.prompt.ordered for lesson in lessons], device=scores.device)
    # Two levels off is worse than one: squared difference of the cumulative distributions (Epstein, 1969).
    reached = torch.arange(table.shape[1], device=scores.device)[None] >= labels[:, None]
    gaps = (table.softmax(1).cumsum(1) - reached.float()).square().sum(1)
    return losses + ordered * gaps


def _loss(source: _Live | _Cached, module: nn.Module, batch: Any) -> Tensor:
    """The sum of the weighted losses of a batch's lessons."""
    scores, lessons = source.scores(module, batch), source.lessons_of(batch)
    weights = torch.tensor([lesson.weight for lesson in lessons], device=scores.device)
    return (weights * lesson_losses(scores, lessons)).sum()


def _mean_loss(source: _Live | _Cached) -> float:
    source.module.eval()
    with torch.inference_mode():
        batches = source.batches(np.random.default_rng(0), BATCH_TOKENS)
        total = sum(float(_loss(source, source.module, batch)) for batch in batches)
    return total / sum(lesson.weight for lesson in source.lessons)


def _schedule(share: float) -> float:
    """The learning rate's factor when a share of the steps is done: linear warm-up, then half a cosine."""
    if share < WARM_UP:
        return (share + 1e-3) / (WARM_UP + 1e-3)
    return 0.5 * (1 + math.cos(math.pi * (share - WARM_UP) / (1 - WARM_UP)))


def _trainable(encoder: Encoder, stage: Stage) -> dict[str, nn.Parameter]:
    """What a stage trains, by name; all else is frozen."""
    for name, parameter in encoder.tree.named_parameters():
        parameter.requires_grad = stage.tune == "full" or (stage.tune == "lora" and "lora_" in name)
    if stage.tune == "lora" and not any(parameter.requires_grad for parameter in encoder.tree.parameters()):
        raise DataError("expected an encoder with an adapter to tune by lora, found none")
    named = [*encoder.tree.named_parameters(prefix="tree"), *encoder.scorer.named_parameters(prefix="scorer")]
    return {name: parameter for name, parameter in named if parameter.requires_grad}


class _Run:
    """Where a training run of ``total`` steps stands: weights, optimizer, step, and the best weights so far."""

    def __init__(self, parameters: dict[str, nn.Parameter], optimizer: Any, scaler: Any, total: int) -> None:
        self.parameters, self.optimizer, self.scaler, self.total = parameters, optimizer, scaler, total
        self.step, self.stale, self.best, self.saved = 0, 0, math.inf, time.monotonic()
        self.best_weights: dict[str, Tensor] = {}

    def watch(self, loss: float) -> None:
        """Takes the loss of an epoch on validation."""
        self.stale = 0 if loss < self.best else self.stale + 1
        if loss < self.best:
            self.best = loss
            self.best_weights = {name: p.detach().clone() for name, p in self.parameters.items()}

    def finish(self, path: Path | None) -> None:
        """Take the best weights. The last state is these alone: there is nothing to go on with."""
        for name, value in self.best_weights.items():
            self.parameters[name].data.copy_(value)
        if self.optimizer.state:
            self.best_weights.clear()
            self.optimizer.state.clear()
            self.save(path)

    def save(self, path: Path | None) -> None:
        """Write the state, whole or not at all: safetensors, with the numbers as JSON in its header."""
        if path is None:
            return
        tensors = {f"weight {name}": p.detach() for name, p in self.parameters.items()}
        tensors |= {f"best {name}": value for name, value in self.best_weights.items()}
        for name, p in self.parameters.items():
            tensors |= {f"{key} {name}": value for key, value in self.optimizer.state.get(p, {}).items()}
        numbers = {"total": self.total, "step": self.step, "stale": self.stale, "best": self.best}
        header = {"run": json.dumps({**numbers, "scaler": self.scaler.state_dict()})}
        write_atomic(path, save({name: t.contiguous().cpu().clone() for name, t in tensors.items()}, header))
        self.saved = time.monotonic()

    def resume(self, path: Path | None) -> None:
        """Go on from a saved state. One that can't be read, or is of another run, is as good as none."""
        if path is None or not path.exists():
            return
        tensors: dict[str, dict[str, Tensor]] = {}
        try:
            with safe_open(path, framework="pt") as file:
                numbers = json.loads(file.metadata()["run"])
                for key in file.keys():  # noqa: SIM118 (it is no dict)
                    kind, name = key.split(" ")
                    tensors.setdefault(kind, {})[name] = file.get_tensor(key).clone()
            weights, best, steps = (tensors.pop(kind, {}) for kind in ("weight", "best", "step"))
            shapes, own = ({k: t.shape for k, t in table.items()} for table in (weights, self.parameters))
            if shapes != own or numbers["total"] != self.total:
                return
        except (SafetensorError, KeyError, TypeError, ValueError):
            return
        self.step, self.stale, self.best = numbers["step"], numbers["stale"], numbers["best"]
        self.scaler.load_state_dict(numbers["scaler"])
        self.best_weights = {name: value.to(self.parameters[name].device) for name, value in best.items()}
        for name, p in self.parameters.items():
            p.data.copy_(weights[name])
            if name in steps:
                moments = {key: own[name].to(p.device) for key, own in tensors.items()}
                self.optimizer.state[p] = {"step": steps[name], **moments}

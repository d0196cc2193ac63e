"""A toy task that a random encoder learns in a second, and what tests of the gradient loop see of its training."""

from dataclasses import replace

import numpy as np
import torch

from stepsieve.models.base_model import Lora
from stepsieve.models.encoder import Encoder
from stepsieve.models.prompts import Lesson, Prompt
from stepsieve.train.config import Stage
from stepsieve.train.finetune import finetune

WORDS = ("cat", "dog", "fox")
FAST = {"scorer": Stage("scorer", 12, 5e-2), "lora": Stage("lora", 8, 1e-2), "full": Stage("full", 6, 3e-3)}
STAGES = {name: replace(stage, batch_tokens=512, patience=99) for name, stage in FAST.items()}
"""Stages that learn the toy task in a second."""


def pieces(*texts):
    return tuple((text, 40) for text in texts)


def toy(n, seed=1):
    """Lessons whose answer stands in the text; all of one length, none over the state of another."""
    numbers = np.random.default_rng(seed).permutation(900)[:n] + 100
    options = tuple(map(pieces, "abc"))
    return [Lesson(Prompt(pieces(f"{k} {WORDS[k % 3]}"), pieces("which?"), options), int(k % 3)) for k in numbers]


def numbered(n, seed=1):
    """Lessons whose answer stands in a structured feature alone."""
    lessons = [(lesson, np.array([[lesson.label * 10]], dtype=np.float32)) for lesson in toy(n, seed)]
    silent = pieces("nothing")
    return [replace(x, prompt=replace(x.prompt, state=silent, facts=facts)) for x, facts in lessons]


def made(tiny_base, tune="scorer", dropout=True):
    encoder = Encoder.from_base(tiny_base, 64, Lora(4, 8) if tune == "lora" else None)
    if not dropout:
        encoder.scorer.drop.p = 0.0
    return encoder


def weights(encoder):
    state = {f"tree.{k}": v for k, v in encoder.tree.state_dict().items()}
    return {
        k: v.clone() for k, v in (state | {f"scorer.{k}": v for k, v in encoder.scorer.state_dict().items()}).items()
    }


def changed(before, after):
    return {name for name, value in before.items() if not torch.equal(value, after[name])}


def accuracy(encoder, lessons):
    logits = encoder.logits([lesson.prompt for lesson in lessons])
    return np.mean([z.argmax() == lesson.label for z, lesson in zip(logits, lessons, strict=True)])


def cross_entropy(encoder, lessons):
    """(n,) by the textbook, from the encoder's answers."""
    logits = encoder.logits([lesson.prompt for lesson in lessons])
    return np.array([np.log(np.exp(z).sum()) - z[x.label] for z, x in zip(logits, lessons, strict=True)])


class Killed(Exception):
    pass


class Diary:
    """A log that keeps what it is told, and may be killed by it.

    Args:
        kill: the step at which it raises. validation: raise only when that step's epoch was validated.
    """

    def __init__(self, kill=0, validation=False):
        self.entries, self.kill, self.validation = [], kill, validation

    def __call__(self, entry):
        self.entries.append(entry)
        if entry["step"] == self.kill and ("validation" in entry) >= self.validation:
            raise Killed

    def of(self, name):
        return [entry[name] for entry in self.entries if name in entry]

    @property
    def steps(self):
        return [entry["step"] for entry in self.entries if "loss" in entry]


# --- a short run -----------------------------------------------------------------------------------------------------

SHORT = {tune: replace(STAGES[tune], epochs=4, batch_tokens=256) for tune in ("scorer", "lora")}
LESSONS, WATCHED = toy(24), toy(9, seed=2)


def trained(tiny_base, tune, state=None, log=lambda entry: None, **changes):
    """An encoder trained on the toy task, and its loss."""
    encoder = made(tiny_base, tune)
    loss = finetune(encoder, LESSONS, WATCHED, replace(SHORT[tune], **changes), seed=3, state=state, log=log)
    return encoder, loss

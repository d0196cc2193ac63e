"""What the gradient loop makes smaller: losses by hand, and how much a lesson counts."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("accelerate", reason="the extra encoder is not installed")
import torch
from toy_task import STAGES, Diary, changed, cross_entropy, made, pieces, toy, weights

from stepsieve.models.prompts import Lesson, Prompt
from stepsieve.train.finetune import finetune, lesson_losses


def asked(n_options, label, ordered=False, weight=1.0):
    options = tuple(pieces(str(k)) for k in range(n_options))
    return Lesson(Prompt(pieces("x"), pieces("y"), options, ordered), label, weight)


def losses(probabilities, *lessons):
    scores = torch.tensor(np.log(np.concatenate(probabilities)), dtype=torch.float32)
    return lesson_losses(scores, lessons).tolist()


def test_the_loss_is_the_cross_entropy_over_each_lessons_own_options():
    found = losses([[1, 3], [1, 2, 1, 4], [5]], asked(2, 1), asked(4, 0), asked(1, 0))
    assert found == pytest.approx([-np.log(0.75), -np.log(1 / 8), 0], abs=1e-6)


def test_of_levels_the_ranked_probability_score_is_added():
    shares = [0.2, 0.3, 0.5]
    # Cumulative 0.2, 0.5, 1 against 1, 1, 1 (the first is right), 0, 1, 1 and 0, 0, 1.
    scores = [0.8**2 + 0.5**2, 0.2**2 + 0.5**2, 0.2**2 + 0.5**2]
    for label in range(3):
        (found,) = losses([shares], asked(3, label, ordered=True))
        assert found == pytest.approx(-np.log(shares[label]) + scores[label], abs=1e-6)


def test_levels_and_other_options_in_one_batch():
    found = losses([[1, 1], [1, 1, 2], [1, 1]], asked(2, 0, True), asked(3, 2), asked(2, 1, True))
    assert found == pytest.approx([np.log(2) + 0.25, np.log(2), np.log(2) + 0.25], abs=1e-6)


def test_two_levels_off_is_worse_than_one():
    near, far = losses([[0.05, 0.9, 0.05], [0.9, 0.05, 0.05]], *[asked(3, 2, ordered=True)] * 2)
    assert near < far


@pytest.mark.parametrize("tune", ["scorer", "lora"])
def test_a_lesson_counts_by_its_weight(tiny_base, tune):
    lessons = [replace(x, weight=w) for x, w in zip(toy(6), (0.5, 1, 3, 1, 0, 2), strict=True)]
    own = np.array([lesson.weight for lesson in lessons])
    encoder, diary = made(tiny_base, tune, dropout=False), Diary()
    expected = own @ cross_entropy(encoder, lessons) / own.sum()
    stage = replace(STAGES[tune], epochs=1, batch_tokens=8192)
    finetune(encoder, lessons, lessons, stage, log=diary)
    assert diary.of("loss") == pytest.approx([expected], abs=1e-5)
    after = own @ cross_entropy(encoder, lessons) / own.sum()
    assert diary.of("validation") == pytest.approx([after], abs=1e-5)


def test_lessons_of_no_weight_change_nothing(tiny_base):
    void = [replace(x, weight=0.0) for x in toy(30, seed=5)]
    alone, beside = made(tiny_base, "lora"), made(tiny_base, "lora")
    stage = replace(STAGES["lora"], epochs=2)
    first = finetune(alone, toy(24), toy(9, seed=2), stage)
    second = finetune(beside, void[:10] + toy(24) + void[10:], toy(9, seed=2) + void, stage)
    assert first == second
    assert not changed(weights(alone), weights(beside))

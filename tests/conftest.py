"""What all tests share: the same hypothesis examples in every run, a simulated corpus, the released one if present."""

import itertools
import os
import time
from pathlib import Path

import pytest
from hypothesis import settings

from stepsieve.data.ingest import load
from stepsieve.data.simulate import simulate

# Small models gain nothing from threads, and tests that run side by side lose by them. Inherited by subprocesses.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("same", derandomize=True, deadline=None, max_examples=40)
settings.load_profile("same")

FUZZ = float(os.environ.get("STEPSIEVE_FUZZ", 0))
"""For how many seconds each fuzzing test goes on; 0: for one round."""
RELEASED = Path(__file__).parents[2] / "shared" / "data" / "redundancybench"


@pytest.fixture(scope="session")
def simulated():
    """120 simulated trajectories, failed ones among them."""
    return simulate(120, seed=11)


@pytest.fixture(scope="session")
def released():
    """RedundancyBench as released; skips where it does not lie beside the checkout."""
    if not RELEASED.is_dir():
        pytest.skip(f"the released RedundancyBench is not beside the checkout: {'/'.join(RELEASED.parts[-3:])}")
    return list(load(RELEASED))


@pytest.fixture
def rounds():
    """0, 1, ... for as long as fuzzing is to go on, one round at least."""
    end = time.monotonic() + FUZZ
    return itertools.takewhile(lambda number: not number or time.monotonic() < end, itertools.count())


@pytest.fixture(scope="session")
def mangled():
    """Bytes with a few places cut out, doubled or overwritten: ``mangled(chance, data)``."""

    def mangle(chance, data):
        made = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(made) + 1)
            cut = chance.choice([b"", b"\0", b'"', b"[", b"}", b"\n", b"9" * 40, b"-", made[at : at + 9] * 3])
            made[at : at + chance.randint(0, 9)] = cut
        return bytes(made)

    return mangle


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory):
    """The folder of a random encoder of two layers, a base that needs no download."""
    pytest.importorskip("transformers", reason="the extra encoder is not installed")
    return build_encoder(tmp_path_factory.mktemp("tiny"))


def build_encoder(folder: Path, seed: int = 0) -> str:
    """Writes a tokenizer of single characters and a BERT of two layers; returns the folder as a base's name."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    characters = [chr(code) for code in range(33, 127)]
    words = special + characters + [f"##{character}" for character in characters]
    tokenizer = Tokenizer(models.WordPiece({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    BertModel(config).save_pretrained(folder)
    return str(folder)

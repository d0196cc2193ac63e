"""One small encoder that answers typed questions about a state in one pass (the System One style).

A prompt is read as a tree: the state, then each question as a branch of it, then each option as a branch of its
question, led by the tokenizer's mask token. A token attends to its own branch and to what that grows from, never to
another question or option, and its position counts from the root. So any number of questions share one reading of the
state, and packing them changes no answer; so do options in any number, order and wording. One scorer reads every
option's leading token: a softmax over the options answers a choice, of yes and no a noul, over the levels a score.

The base is any transformers encoder (``AutoModel``) that takes a mask of its own and position ids, with an adapter
(LoRA, through peft) or without.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from stepsieve.data.errors import DataError, require
from stepsieve.data.features import RETRIEVAL_FEATURES
from stepsieve.data.windows import Pieces
from stepsieve.models.base_model import Lora, load_base, with_lora
from stepsieve.models.packing import PACK_TOKENS, Pack, collate, grow
from stepsieve.models.prompts import Prompt

Floats = npt.NDArray[np.float32]

FACTS = len(RETRIEVAL_FEATURES)
"""Structured features of an option. Those of a step, and of a pair, are the first of them; the others are NaN then."""

BATCH_TOKENS, CPU_TOKENS = 8192, 1024
"""Tokens of a batch, padding included, where nothing else is asked for, and where answers come from a CPU: a larger
batch would fall out of its caches."""


class Scorer(nn.Module):
    """How well an option fits, shared by all tasks, questions and options.

    Two readings are added: one of what the encoder made of the option, and, where structured features are at hand, one
    of both together, in which the option's state gates the features. Words alone must do for a question without any.
    """

    mean: Tensor
    spread: Tensor

    def __init__(self, width: int, hidden: int = 256, facts: int = 128) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, hidden)
        self.drop = nn.Dropout(0.2)
        self.outer = nn.Linear(hidden, 1)
        self.facts = nn.Linear(2 * FACTS, facts)
        self.gate = nn.Linear(width, facts)
        self.both = nn.Linear(width + facts, hidden)
        self.last = nn.Linear(hidden, 1)
        self.register_buffer("mean", torch.zeros(2 * FACTS))
        self.register_buffer("spread", torch.zeros(2 * FACTS))

    def forward(self, options: Tensor, facts: Tensor) -> Tensor:
        """(n,) scores from what the encoder made of the options (n, width) and their features (n, FACTS) float32.

        A row of features that is NaN throughout stands for none.
        """
        state = self.norm(options)
        read = self.outer(self.drop(nn.functional.gelu(self.inner(state))))
        missing = torch.isnan(facts)
        scaled = ((_columns(facts) - self.mean) / (self.spread + 0.01)).clamp(-5, 5)
        given = self.drop(nn.functional.gelu(self.facts(scaled)))
        both = torch.cat([state, given * torch.sigmoid(self.gate(state))], dim=1)
        known = self.last(self.drop(nn.functional.gelu(self.both(both)))) * ~missing.all(dim=1, keepdim=True)
        scores: Tensor = (read + known).squeeze(-1)
        return scores

    def scale_to(self, facts: Tensor) -> None:
        """Standardise features by these (n, FACTS), once: what was trained on one scale is not shown another."""
        if facts.shape[0] and not self.spread.any():
            columns = _columns(facts)
            self.mean.copy_(columns.mean(dim=0))
            self.spread.copy_(columns.std(dim=0, correction=0))


def _columns(facts: Tensor) -> Tensor:
    """(n, 2 FACTS): counts on a logarithmic scale, with their sign, then where a value is missing."""
    values = torch.nan_to_num(torch.sign(facts) * torch.log1p(torch.abs(facts)))
    return torch.cat([values, torch.isnan(facts).to(values.dtype)], dim=1)


class Tree(nn.Module):
    """The base as it reads packs: tokens in, the state of each option's leading token out."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base

    def forward(self, ids: Tensor, positions: Tensor, question: Tensor, option: Tensor, marks: Tensor) -> Tensor:
        """(n_options, width) from four (n_packs, length) int64 and the options' places in the flattened batch."""
        mask = sees(question, option)[:, None]
        hidden: Tensor = self.base(input_ids=ids, attention_mask=mask, position_ids=positions).last_hidden_state
        return hidden.flatten(0, 1)[marks]


def sees(question: Tensor, option: Tensor) -> Tensor:
    """(n, length, length) bool: which tokens each attends to, its own branch and what that grows from.

    Padding (question -1) is seen by padding alone.
    """
    same_question = question[:, :, None] == question[:, None, :]
    same_option = option[:, :, None] == option[:, None, :]
    root, trunk = (question == 0)[:, None, :], (option == 0)[:, None, :]
    return root | same_question & (trunk | same_option)


class Encoder:
    """A tokenizer, a base with or without adapter, and the scorer.

    Attributes:
        window: tokens of a state.
        device: where it computes.
        remembered: what was read of which prompt, for a base that does not change and is asked again and again; None:
            nothing is kept.
    """

    def __init__(self, tokenizer: Any, base: nn.Module, scorer: Scorer, window: int, source: str) -> None:
        self.tokenizer = tokenizer
        self.tree = Tree(base)
        self.scorer = scorer
        self.window = window
        self.source = source
        self.device = torch.device("cpu")
        self.precision = "float32"
        self.longest = min(getattr(base.config, "max_position_embeddings", PACK_TOKENS), 8192)
        self.remembered: dict[Prompt, Tensor] | None = None
        self._known: dict[str, npt.NDArray[np.int64]] = {}

    @classmethod
    def from_base(cls, name: str, window: int = 256, lora: Lora | None = None, seed: int = 0) -> Encoder:
        """A new encoder over a base: ``minilm``, a folder, or an id of the hub. Its scorer knows nothing yet.

        Raises:
            DataError: no such base, or it is no encoder with a mask token.
        """
        tokenizer, base = load_base(name)
        if tokenizer.mask_token_id is None or tokenizer.sep_token_id is None:
            raise DataError(f"expected a base whose tokenizer has a mask and a separator token, found {name!r}")
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            scorer = Scorer(base.config.hidden_size)
            if lora is not None:
                base = with_lora(base, lora)
        return cls(tokenizer, base, scorer, window, name)

    def to(self, device: str | torch.device, precision: str = "auto") -> Encoder:
        """Move to a device and compute there in float32, bf16 or fp16; auto: bf16 on CUDA where it can, or fp16."""
        self.device = torch.device(device)
        if precision == "auto":
            half = "bf16" if self.device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp16"
            precision = half if self.device.type == "cuda" else "float32"
        self.precision = precision
        self.tree.to(self.device)
        self.scorer.to(self.device)
        return self

    # --- tokens ------------------------------------------------------------------------------------------------------

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text."""
        return [len(ids) for ids in self.tokens(texts)]

    def tokens(self, texts: Sequence[str]) -> list[npt.NDArray[np.int64]]:
        """The tokens of each text; one that was read before is not read again."""
        fresh = sorted({text for text in texts if text not in self._known})
        if fresh:
            if len(self._known) + len(fresh) > 200_000:
                self._known = {text: self._known[text] for text in set(texts) if text in self._known}
            found = self.tokenizer(fresh, add_special_tokens=False, verbose=False)["input_ids"]
            self._known.update(zip(fresh, (np.array(ids, dtype=np.int64) for ids in found), strict=True))
        return [self._known[text] for text in texts]

    def forget(self) -> None:
        """Drop the tokens of texts that were read before."""
        self._known = {}

    def packs(self, prompts: Sequence[Prompt], packing: bool = True) -> list[Pack]:
        """Prompts as trees, those over one state together, longest first.

        Args:
            packing: False to read the state anew for each question.
        """
        texts = {text for prompt in prompts for pieces in _all_pieces(prompt) for text, _ in pieces}
        ordered = sorted(texts)
        known = dict(zip(ordered, self.tokens(ordered), strict=True))
        cls_id = self.tokenizer.cls_token_id
        start = self.tokenizer.sep_token_id if cls_id is None else cls_id

        def read(lead: int, pieces: Pieces) -> npt.NDArray[np.int64]:
            return np.concatenate([[lead], *(known[text][:limit] for text, limit in pieces)]).astype(np.int64)

        together: dict[Any, list[int]] = {}
        for number, prompt in enumerate(prompts):
            together.setdefault(prompt.state if packing else number, []).append(number)
        packs: list[Pack] = []
        for numbers in together.values():
            state = read(start, prompts[numbers[0]].state)
            branches = [
                [read(self.tokenizer.sep_token_id, prompts[n].question)]
                + [read(self.tokenizer.mask_token_id, option) for option in prompts[n].options]
                for n in numbers
            ]
            packs += grow(state, branches, numbers, self.longest)
        return sorted(packs, key=len, reverse=True)

    def batches(self, packs: Sequence[Pack], max_tokens: int = BATCH_TOKENS) -> Iterator[list[Pack]]:
        """Packs of like length together, at most ``max_tokens`` with padding, or one alone."""
        batch: list[Pack] = []
        for pack in packs:
            longest = max(len(pack), max(map(len, batch), default=0))
            if batch and longest * (len(batch) + 1) > max_tokens:
                yield batch
                batch = []
            batch.append(pack)
        if batch:
            yield batch

    def tensors(self, batch: Sequence[Pack]) -> tuple[Tensor, ...]:
        """What ``Tree`` reads, on the device."""
        pin = self.device.type == "cuda"
        arrays = [torch.from_numpy(array) for array in collate(batch, self.tokenizer.pad_token_id or 0)]
        return tuple((a.pin_memory() if pin else a).to(self.device, non_blocking=pin) for a in arrays)

    # --- answers -----------------------------------------------------------------------------------------------------

    def logits(self, prompts: Sequence[Prompt], packing: bool = True) -> list[Floats]:
        """How well each option fits: one (n_options,) float32 for each prompt; softmax gives probabilities."""
        if not prompts:
            return []
        self.scorer.eval()
        hidden = self.read(prompts, packing)
        with torch.inference_mode():
            options, facts = torch.cat(hidden).to(self.device), facts_of(prompts).to(self.device)
            flat = self.scorer(options, facts).float().cpu().numpy()
        return np.split(flat, np.cumsum([len(own) for own in hidden])[:-1])

    def read(self, prompts: Sequence[Prompt], packing: bool = True) -> list[Tensor]:
        """What the scorer reads: one (n_options, width) float32 on the CPU for each prompt."""
        known = {} if self.remembered is None else self.remembered
        fresh = list(dict.fromkeys(prompt for prompt in prompts if prompt not in known))
        found = dict(zip(fresh, self._read(fresh, packing), strict=True))
        if self.remembered is not None:
            self.remembered.update(found)
        return [found[prompt] if prompt in found else known[prompt] for prompt in prompts]

    def _read(self, prompts: Sequence[Prompt], packing: bool) -> list[Tensor]:
        self.tree.eval()
        found: list[Tensor] = [torch.zeros(0)] * len(prompts)
        with torch.inference_mode(), self.autocast():
            most = CPU_TOKENS if self.device.type == "cpu" else BATCH_TOKENS
            for batch in self.batches(self.packs(prompts, packing), most):
                hidden = self.tree(*self.tensors(batch)).float().cpu()
                sizes = [size for pack in batch for size in pack.sizes.tolist()]
                numbers = [number for pack in batch for number in pack.prompts.tolist()]
                for number, own in zip(numbers, hidden.split(sizes), strict=True):
                    found[number] = own.clone()
        return found

    def autocast(self) -> Any:
        """The context in which the base computes in its precision."""
        half = torch.float16 if self.precision == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, dtype=half, enabled=self.precision != "float32")

    def copy(self, whole: bool) -> Encoder:
        """Another encoder with a scorer of its own and, where ``whole``, a base of its own."""
        tree = copy.deepcopy(self.tree) if whole else self.tree
        made = Encoder(self.tokenizer, tree.base, copy.deepcopy(self.scorer), self.window, self.source)
        made.device, made.precision, made._known = self.device, self.precision, self._known
        made.remembered = None if whole else self.remembered
        return made

    # --- files -------------------------------------------------------------------------------------------------------

    def fingerprint(self) -> str:
        """A hash of all weights and the window."""
        digest = hashlib.sha256(str(self.window).encode())
        for module in (self.tree, self.scorer):
            for name, tensor in sorted(module.state_dict().items()):
                digest.update(name.encode())
                digest.update(tensor.detach().float().cpu().numpy().tobytes())
        return digest.hexdigest()[:10]

    def save(self, folder: Path) -> None:
        """Write ``base`` (as ``AutoModel`` and ``AutoTokenizer`` read it), ``adapter`` (peft), and the scorer."""
        base: Any = self.tree.base
        self.tokenizer.save_pretrained(folder / "base")
        if hasattr(base, "peft_config"):
            base.peft_config["default"].base_model_name_or_path = ""  # where it lay here is nobody's business
            base.save_pretrained(folder / "adapter", save_embedding_layers=False)
            (folder / "adapter" / "README.md").unlink(missing_ok=True)  # an empty form
            # Its own base, which may have been trained too, and not the one that it once was made from.
            copy.deepcopy(base).unload().save_pretrained(folder / "base")
        else:
            base.save_pretrained(folder / "base")
        weights = {name: tensor.contiguous() for name, tensor in self.scorer.state_dict().items()}
        save_file(weights, folder / "scorer.safetensors")
        (folder / "encoder.json").write_bytes(orjson.dumps({"window": self.window}))

    @classmethod
    def load(cls, folder: Path) -> Encoder:
        """Read what ``save`` wrote.

        Raises:
            DataError: no encoder there.
        """
        tokenizer, base = load_base(str(folder / "base"))
        if (folder / "adapter").exists():
            peft = require("peft", "encoder")
            base = peft.PeftModel.from_pretrained(base, folder / "adapter")
        scorer = Scorer(base.config.hidden_size)
        scorer.load_state_dict(load_file(folder / "scorer.safetensors"))
        settings = orjson.loads((folder / "encoder.json").read_bytes())
        return cls(tokenizer, base, scorer, int(settings["window"]), str(folder / "base"))


def facts_of(prompts: Sequence[Prompt], without: float = 0.0) -> Tensor:
    """(n_options, FACTS) float32: the structured features of all options, NaN where there are none.

    Args:
        without: share of the prompts, drawn with torch's generator, that are to do without theirs.
    """
    left_out = (torch.rand(len(prompts)) < without).tolist()
    sizes = np.array([len(prompt.options) for prompt in prompts])
    table = np.full((int(sizes.sum()), FACTS), np.nan, dtype=np.float32)
    for start, size, prompt, without_it in zip(np.cumsum(sizes) - sizes, sizes, prompts, left_out, strict=True):
        if prompt.facts is not None and not without_it:
            table[start : start + size, : prompt.facts.shape[1]] = prompt.facts
    return torch.from_numpy(table)


def pick_device(wanted: str) -> str:
    """``cpu``, ``cuda`` or ``mps`` from one of these or ``auto``.

    Raises:
        DataError: there is no such device.
    """
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return next(name for name in ("cuda", "mps", "cpu") if there[name])
    if not there.get(wanted):
        raise DataError(f"expected a device among {', '.join(n for n in there if there[n])} or auto, found {wanted!r}")
    return wanted


def _all_pieces(prompt: Prompt) -> tuple[Pieces, ...]:
    return (prompt.state, prompt.question, *prompt.options)

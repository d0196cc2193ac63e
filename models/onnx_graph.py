"""An encoder as an ONNX graph, and the same with linear layers in int8 (onnxruntime's dynamic quantisation)."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from stepsieve.data.errors import require
from stepsieve.models.encoder import Encoder, facts_of, sees
from stepsieve.models.onnx_encoder import EXTRA, INPUTS, OUTPUTS, TREE_INPUTS
from stepsieve.models.prompts import Prompt

OPSET = 17
HIDDEN = -1e9
"""What is added to the attention to a token that isn't seen. Not infinity, which costs a check for rows of NaN."""


class _Whole(nn.Module):
    """What the graph computes: ``Tree`` and ``Scorer`` in one."""

    def __init__(self, base: nn.Module, scorer: nn.Module) -> None:
        super().__init__()
        self.base, self.scorer = base, scorer

    def forward(
        self, ids: Tensor, positions: Tensor, question: Tensor, option: Tensor, marks: Tensor, facts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(n_options,) and (n_options, width) from what ``INPUTS`` names."""
        mask = torch.where(sees(question, option), 0.0, HIDDEN)[:, None]
        read = self.base(input_ids=ids, attention_mask=mask, position_ids=positions).last_hidden_state
        hidden = read.flatten(0, 1)[marks]
        return self.scorer(hidden, facts), hidden


def float_graph(encoder: Encoder, prompts: Sequence[Prompt]) -> Any:
    """The ``onnx.ModelProto`` of an encoder in float32, any adapter merged into its base; the encoder stays as it is.

    Args:
        prompts: what it is traced on, at least two states; the graph takes any other.
    """
    onnx = require("onnx", EXTRA)
    base = copy.deepcopy(encoder.tree.base)
    if hasattr(base, "merge_and_unload"):
        base = base.merge_and_unload()
    whole = _Whole(base, copy.deepcopy(encoder.scorer)).to("cpu").float().eval()
    batch = encoder.packs(prompts)[:2]
    asked = [prompts[number] for pack in batch for number in pack.prompts.tolist()]
    tensors = tuple(tensor.cpu() for tensor in (*encoder.tensors(batch), facts_of(asked)))
    axes = {name: {0: "packs", 1: "length"} for name in TREE_INPUTS[:-1]}
    axes |= {name: {0: "options"} for name in ("marks", "facts", *OUTPUTS)}
    content = io.BytesIO()
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # the tracer's: the newer exporter needs one more package and gains nothing
        torch.onnx.export(
            whole, tensors, content, dynamo=False, opset_version=OPSET, dynamic_axes=axes,
            input_names=list(INPUTS), output_names=list(OUTPUTS),
        )  # fmt: skip
    return onnx.load_from_string(content.getvalue())


def linear_layers(model: Any) -> list[str]:
    """The nodes that are linear layers of the base, in their order; the scorer's are no ``MatMul`` in the graph."""
    constants = {tensor.name for tensor in model.graph.initializer}
    return [node.name for node in model.graph.node if node.op_type == "MatMul" and node.input[1] in constants]


def quantised(model: Any, layers: Sequence[str]) -> bytes:
    """A graph as a file has it, these linear layers in int8: a scale for each output, and for each input as it comes.

    Weights have 7 bits, so that no sum overflows on processors without VNNI: a graph answers the same on all.
    """
    require("onnxruntime", EXTRA)
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.quantization.quant_utils import add_pre_process_metadata

    if not layers:  # which the library takes for all of them
        content: bytes = model.SerializeToString()
        return content
    add_pre_process_metadata(model)  # or it warns: its preparations fuse other nodes than these
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        quantize_dynamic(
            model, path, op_types_to_quantize=["MatMul"], nodes_to_quantize=list(layers),
            per_channel=True, reduce_range=True,
        )  # fmt: skip
        return path.read_bytes()

"""An encoder as an ONNX graph, and as many of its linear layers in int8 as its answers allow.

In int8 the weights have a scale for each output, and are rounded one input after another so that each makes up for the
errors before it on simulated runs (GPTQ, Frantar et al., 2023). The few inputs with a weight many times the usual size
stay in float32, or the others would be rounded to the steps of theirs. Activations don't fit into 8 bits, for the same
reason: they are the sum of two int8 terms, a rounded one and what that left over, which still takes less time than one
product in float32. Some layers do more harm than others, and which do depends on the weights: each is tried alone, and
they are taken in order of the harm for the work saved, until answers change too much.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from stepsieve.data.errors import require
from stepsieve.models.encoder import CPU_TOKENS, Encoder, facts_of, sees
from stepsieve.models.onnx_encoder import EXTRA, INPUTS, OUTPUTS, TREE_INPUTS, open_graph
from stepsieve.models.prompts import Prompt

Floats = npt.NDArray[np.float32]
Probabilities = npt.NDArray[np.float64]

LEVELS = 63
"""Weights are rounded to 7 bits: without VNNI a CPU adds two products of 8 by 8 bits in 16, and more would overflow."""

OUTLIER = 8.0
"""An input with a weight of more than so many times the root mean square of its output's weights stays in float32."""

DAMPING = 0.01
"""Share of the mean square of a layer's inputs that is added to each: what keeps rounding from fitting noise."""

MARGIN = 0.3
"""Share of the allowed difference that may be used up on the prompts that layers are chosen with: others vary more."""

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


# --- int8 ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exam:
    """Prompts as inputs of a graph.

    Attributes:
        feeds: for each batch its arrays by the names in ``INPUTS``.
        sizes: for each batch (n_prompts,) how many options each prompt has.
    """

    feeds: Sequence[Mapping[str, npt.NDArray[Any]]]
    sizes: Sequence[npt.NDArray[np.int64]]

    @classmethod
    def of(cls, encoder: Encoder, prompts: Sequence[Prompt]) -> Exam:
        """The prompts packed and batched."""
        feeds, sizes = [], []
        for batch in encoder.batches(encoder.packs(prompts), CPU_TOKENS):
            asked = [prompts[number] for pack in batch for number in pack.prompts.tolist()]
            arrays = [tensor.cpu().numpy() for tensor in (*encoder.tensors(batch), facts_of(asked))]
            feeds.append(dict(zip(INPUTS, arrays, strict=True)))
            sizes.append(np.array([len(prompt.options) for prompt in asked]))
        return cls(feeds, sizes)

    def half(self) -> Exam:
        """Every other batch."""
        return Exam(self.feeds[::2], self.sizes[::2])

    def probabilities(self, model: Any) -> Probabilities:
        """(n_options,) of all options, from a model's answers."""
        session = open_graph(model.SerializeToString())
        scores = [session.run(["scores"], dict(feed))[0] for feed in self.feeds]
        return probabilities(np.concatenate(scores), np.concatenate(self.sizes))


@dataclass(frozen=True)
class Rounded:
    """Weights in int8.

    Attributes:
        weight: (inputs, outputs) int8. scale: (outputs,) float32, what each output is multiplied by.
        outliers: (n,) inputs that are left out there. exact: (n, outputs) float32, their weights.
    """

    weight: npt.NDArray[np.int8]
    scale: Floats
    outliers: npt.NDArray[np.int64]
    exact: Floats


def probabilities(scores: npt.NDArray[Any], sizes: npt.NDArray[np.int64]) -> Probabilities:
    """(n_options,) softmax of scores over the options of each prompt."""
    start = np.cumsum(sizes) - sizes
    raised = np.exp(scores.astype(np.float64) - np.repeat(np.maximum.reduceat(scores, start), sizes))
    found: Probabilities = raised / np.repeat(np.add.reduceat(raised, start), sizes)
    return found


def linear_layers(model: Any) -> dict[str, Floats]:
    """The weights (inputs, outputs) of each linear layer of the base, by the name of its node."""
    onnx = require("onnx", EXTRA)
    weights = {tensor.name: tensor for tensor in model.graph.initializer if len(tensor.dims) == 2}
    return {
        node.name: onnx.numpy_helper.to_array(weights[node.input[1]])
        for node in model.graph.node
        if node.op_type == "MatMul" and node.input[1] in weights
    }


def choose(model: Any, exam: Exam, allowed: float) -> dict[str, Rounded]:
    """The layers in int8 with which no probability changes by more than a share ``MARGIN`` of ``allowed``.

    Returns:
        by the name of each layer's node, its weights.
    """
    weights = linear_layers(model)
    moments = _second_moments(model, exam)
    inputs = {node.name: node.input[0] for node in model.graph.node if node.name in weights}
    rounded = {name: round_weights(own, moments[inputs[name]]) for name, own in weights.items()}

    def change(own: Exam, right: Probabilities, names: Sequence[str]) -> Probabilities:
        return own.probabilities(quantise(model, {name: rounded[name] for name in names})) - right

    part, right = exam.half(), exam.half().probabilities(model)
    harm = {name: float(np.square(change(part, right, [name])).mean()) / weights[name].size for name in weights}
    ordered, right = sorted(weights, key=harm.__getitem__), exam.probabilities(model)
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high + 1) // 2
        if np.abs(change(exam, right, ordered[:middle])).max() <= MARGIN * allowed:
            low = middle
        else:
            high = middle - 1
    return {name: rounded[name] for name in ordered[:low]}


def _second_moments(model: Any, exam: Exam) -> dict[str, npt.NDArray[np.float64]]:
    """(inputs, inputs) the sum of x xᵀ over all tokens, by the name of each linear layer's input."""
    onnx = require("onnx", EXTRA)
    layers = linear_layers(model)
    names = sorted({node.input[0] for node in model.graph.node if node.name in layers})
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    watched.graph.output.extend(onnx.helper.make_tensor_value_info(name, 1, None) for name in names)
    session = open_graph(watched.SerializeToString())
    found: dict[str, Any] = dict.fromkeys(names, 0.0)
    for feed in exam.feeds:
        for name, rows in zip(names, session.run(names, dict(feed)), strict=True):
            flat = rows.reshape(-1, rows.shape[-1])
            found[name] = found[name] + (flat.T @ flat).astype(np.float64)
    return found


def round_weights(weights: Floats, moments: npt.NDArray[np.float64]) -> Rounded:
    """Weights (inputs, outputs) in int8, the inputs that matter most first.

    Args:
        moments: (inputs, inputs) the sum of x xᵀ over inputs x of the layer.
    """
    far = (np.abs(weights) > OUTLIER * np.sqrt(np.square(weights).mean(axis=0))).any(axis=1)
    rest, outliers = np.flatnonzero(~far), np.flatnonzero(far)
    scale = np.maximum(np.abs(weights[rest]).max(axis=0), 1e-12) / LEVELS
    size = np.diag(moments)
    order = rest[np.argsort(-size[rest], kind="stable")]
    damped = moments[np.ix_(order, order)] + DAMPING * max(float(size.mean()), 1e-12) * np.eye(len(order))
    # Row j of the upper Cholesky factor of the inverse says how the inputs after j make up for an error of j.
    factor = np.linalg.cholesky(np.linalg.inv(damped)).T
    left = weights[order].astype(np.float64)
    found = np.zeros(weights.shape, dtype=np.int8)
    for place, row in enumerate(order.tolist()):
        found[row] = np.clip(np.rint(left[place] / scale), -LEVELS, LEVELS)
        error = (left[place] - found[row] * scale) / factor[place, place]
        left[place + 1 :] -= np.outer(factor[place, place + 1 :], error)
    return Rounded(found, scale.astype(np.float32), outliers, weights[outliers])


def quantise(model: Any, layers: Mapping[str, Rounded]) -> Any:
    """A copy of a model with some layers in int8.

    Args:
        layers: by the name of each layer's node, its weights.
    """
    onnx = require("onnx", EXTRA)
    made = onnx.ModelProto()
    made.CopyFrom(model)
    nodes: list[Any] = []
    split: set[str] = set()
    for node in model.graph.node:
        if node.name not in layers:
            nodes.append(node)
            continue
        own, given = layers[node.name], node.input[0]
        if given not in split:
            nodes += _two_terms(onnx.helper, given)
            split.add(given)
        nodes += _product(onnx.helper, node, bool(len(own.outliers)))
        arrays = {"weight": own.weight, "scale": own.scale, "outliers": own.outliers, "exact": own.exact}
        made.graph.initializer.extend(
            onnx.numpy_helper.from_array(array, f"{node.name}.{name}") for name, array in arrays.items()
        )
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    kept = [onnx.TensorProto.FromString(t.SerializeToString()) for t in made.graph.initializer if t.name in used]
    del made.graph.initializer[:]
    made.graph.initializer.extend(kept)
    made.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    return made


def _two_terms(helper: Any, given: str) -> list[Any]:
    """Nodes that give an input rounded to int8, with its scale and zero, and what that left over."""
    whole = [f"{given}.int8", f"{given}.scale", f"{given}.zero"]
    return [
        helper.make_node("DynamicQuantizeLinear", [given], whole),
        helper.make_node("DequantizeLinear", whole, [f"{given}.rounded"]),
        helper.make_node("Sub", [given, f"{given}.rounded"], [f"{given}.rest"]),
    ]


def _product(helper: Any, node: Any, outliers: bool) -> list[Any]:
    """Nodes for the products of both terms of a layer's input with its weights, in the place of its own node."""
    given, name, (made,) = node.input[0], node.name, node.output
    weight, scale = f"{name}.weight", f"{name}.scale"
    first = [f"{given}.int8", weight, f"{given}.scale", scale, f"{given}.zero"]
    own, both = {"domain": "com.microsoft"}, f"{name}.both" if outliers else made
    nodes = [
        helper.make_node("MatMulIntegerToFloat", first, [f"{name}.first"], **own),
        helper.make_node("DynamicQuantizeMatMul", [f"{given}.rest", weight, scale], [f"{name}.second"], **own),
        helper.make_node("Add", [f"{name}.first", f"{name}.second"], [both]),
    ]
    if outliers:
        nodes += [
            helper.make_node("Gather", [given, f"{name}.outliers"], [f"{name}.far"], axis=-1),
            helper.make_node("MatMul", [f"{name}.far", f"{name}.exact"], [f"{name}.third"]),
            helper.make_node("Add", [both, f"{name}.third"], [made]),
        ]
    return nodes

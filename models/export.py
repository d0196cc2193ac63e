"""The encoder of a checkpoint as ONNX, in float32 and in int8, to run on a CPU through onnxruntime.

    python -m stepsieve.models.export --checkpoint runs/cls --output runs/onnx

The folder holds ``model.onnx`` and ``model.int8.onnx``, the scorer, the tokenizer and ``encoder.json``;
``stepsieve.models.onnx_encoder.OnnxEncoder`` reads it. Layers become int8 in order of how little that changes, as many
as keep every probability within 0.01 of torch's on simulated runs; that is then checked on other runs, and the exit
code is 1 where it does not hold. It holds for processors with VNNI (or on ARM); on others onnxruntime's int8 products
can overflow, so export where the graph is to run.
"""

from __future__ import annotations

import os
import shutil
import sys
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import orjson

from stepsieve.data.errors import DataError, Parser, require, run_cli
from stepsieve.data.features import index_pairs, retrieval_features, step_features
from stepsieve.data.features.candidates import candidates
from stepsieve.data.features.index import Index
from stepsieve.data.simulate import simulate
from stepsieve.data.trajectory import Trajectory
from stepsieve.models.prompts import Prompt, Reader, evidence_prompts, shortlist, step_prompts, type_prompts

if TYPE_CHECKING:
    from stepsieve.models.encoder import Encoder

TOLERANCE = 1e-2
"""By so much an exported probability may differ from torch's."""

CHOICE_RUNS, CHOICE_SEED = 4, 101
CHECK_RUNS, CHECK_SEED = 24, 909
"""Simulated runs: those that int8 layers are chosen with, and those that the result is checked on."""


@dataclass(frozen=True)
class Exported:
    """What an export came to.

    Attributes:
        off: precision -> the largest difference of a probability from torch's.
        sizes: precision -> bytes of the graph.
        layers: linear layers of the base. int8: how many of them are in int8.
        prompts: how many were compared.
    """

    off: dict[str, float]
    sizes: dict[str, int]
    layers: int
    int8: int
    prompts: int

    @property
    def agrees(self) -> bool:
        """No probability is off by more than ``TOLERANCE``."""
        return max(self.off.values()) <= TOLERANCE


def export(encoder: Encoder, folder: Path) -> Exported:
    """Write an encoder as ONNX, whole or not at all, and compare its answers with torch's.

    Args:
        folder: a new one, or one that this has written before.

    Raises:
        DataError: something else is there, or onnx or onnxruntime is not installed.
    """
    if folder.exists() and not (folder / "model.onnx").is_file() and not _empty(folder):
        raise DataError("expected a new folder or an exported one, found something else", file=folder)
    fresh, old = (folder.with_name(f".{folder.name}.{os.getpid()}.{name}") for name in ("new", "old"))
    try:
        fresh.mkdir(parents=True)
        layers, int8 = _write(encoder, fresh)
        found = _compare(encoder, fresh, layers, int8)
        if folder.exists():
            os.replace(folder, old)
        os.replace(fresh, folder)
    finally:
        if old.exists() and not folder.exists():
            os.replace(old, folder)
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    return found


def simulated_prompts(reader: Reader, runs: Sequence[Trajectory]) -> list[Prompt]:
    """All that a judge could ask of labelled runs: of each step, and of the type and evidence of the redundant ones."""
    index = Index(runs)
    steps, rows = step_features(index), np.flatnonzero(index.calls.assistant)
    labels = [(number, label.step, label.evidence) for number, run in enumerate(runs) for label in run.labels or ()]
    redundant, pairs = index_pairs(index, labels)
    among = candidates(index, redundant)
    features, shown = retrieval_features(index, among, steps), shortlist(index, redundant, among)
    return [
        *step_prompts(index, rows, steps[rows], reader),
        *type_prompts(index, redundant, [evidence for *_, evidence in labels], pairs, reader),
        *evidence_prompts(index, redundant, among, shown, features, reader),
    ]


def _empty(folder: Path) -> bool:
    return folder.is_dir() and next(folder.iterdir(), None) is None


def _write(encoder: Encoder, folder: Path) -> tuple[int, int]:
    """Write all files; returns how many linear layers there are, and how many of them in int8."""
    from safetensors.torch import save_file

    from stepsieve.models.onnx_encoder import GRAPHS
    from stepsieve.models.onnx_graph import Exam, choose, float_graph, linear_layers, quantise

    reader = Reader(encoder.count, encoder.window)
    prompts = simulated_prompts(reader, simulate(CHOICE_RUNS, CHOICE_SEED))
    model = float_graph(encoder, prompts)
    chosen = choose(model, Exam.of(encoder, prompts), TOLERANCE)
    (folder / GRAPHS["float32"]).write_bytes(model.SerializeToString())
    (folder / GRAPHS["int8"]).write_bytes(quantise(model, chosen).SerializeToString())
    encoder.tokenizer.save_pretrained(folder)
    weights = {name: tensor.cpu().contiguous() for name, tensor in encoder.scorer.state_dict().items()}
    save_file(weights, folder / "scorer.safetensors")
    width = encoder.scorer.norm.normalized_shape[0]
    settings = {"window": encoder.window, "longest": encoder.longest, "width": width}
    (folder / "encoder.json").write_bytes(orjson.dumps(settings))
    return len(linear_layers(model)), len(chosen)


def _compare(encoder: Encoder, folder: Path, layers: int, int8: int) -> Exported:
    """The files as they will be used, beside torch."""
    from stepsieve.models.onnx_encoder import GRAPHS, OnnxEncoder
    from stepsieve.models.onnx_graph import probabilities

    prompts = simulated_prompts(Reader(encoder.count, encoder.window), simulate(CHECK_RUNS, CHECK_SEED))
    sizes = np.array([len(prompt.options) for prompt in prompts])
    right = probabilities(np.concatenate(encoder.logits(prompts)), sizes)
    off = {
        precision: float(
            np.abs(
                probabilities(np.concatenate(OnnxEncoder.load(folder, precision).logits(prompts)), sizes) - right
            ).max()
        )
        for precision in GRAPHS
    }
    written = {precision: (folder / name).stat().st_size for precision, name in GRAPHS.items()}
    return Exported(off, written, layers, int8, len(prompts))


def _arguments() -> Namespace:
    form = RawDescriptionHelpFormatter
    parser = Parser("python -m stepsieve.models.export", description=__doc__, formatter_class=form)
    parser.add_argument("--checkpoint", metavar="DIR", required=True, help="a checkpoint directory with an encoder")
    parser.add_argument("--output", metavar="FOLDER", required=True, help="where to write")
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    for modules, extra in ((("torch", "transformers"), "encoder"), (("onnx", "onnxruntime"), "onnx")):
        for module in modules:
            require(module, extra)
    from stepsieve.models.checkpoint import load_encoder
    from stepsieve.models.onnx_encoder import GRAPHS

    encoder = load_encoder(Path(arguments.checkpoint), "cpu")
    print("trying each linear layer in int8, which takes some minutes", file=sys.stderr, flush=True)
    found = export(encoder, Path(arguments.output))
    for precision, name in GRAPHS.items():
        part = f", {found.int8} of {found.layers} linear layers" if precision == "int8" else ""
        print(f"{name}: {found.sizes[precision] / 1e6:.1f} MB{part}, off by at most {found.off[precision]:.1e}")
    print(f"compared with torch in probability on {found.prompts} questions about simulated runs")
    print(f"written to {arguments.output}")
    if not found.agrees:
        print(f"error: expected probabilities within {TOLERANCE} of torch's, found one off by more", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    run_cli(main)

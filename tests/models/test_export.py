"""The encoder as ONNX on a random base of two layers: it answers as torch does, in float32 and in int8."""

import sys

import numpy as np
import orjson
import pytest

pytest.importorskip("peft", reason="the extra encoder is not installed")
pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
import onnx
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from stepsieve.data.errors import DataError
from stepsieve.data.simulate import simulate
from stepsieve.models import checkpoint, export, onnx_graph, prompts
from stepsieve.models.base_model import Lora
from stepsieve.models.calibrate import Temperature
from stepsieve.models.checkpoint import Head
from stepsieve.models.encoder import Encoder, facts_of
from stepsieve.models.fusion import score_names
from stepsieve.models.onnx_encoder import INPUTS, OnnxEncoder, open_graph
from stepsieve.models.onnx_graph import Exam, choose, linear_layers, quantise, round_weights
from stepsieve.models.prompts import Prompt, Reader
from stepsieve.models.scorer import create

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module", autouse=True)
def small():
    """Few runs, and questions of few tokens: those of the tiny tokenizer are single characters."""
    limits = {"QUESTION": 12, "FACTS": 6, "LINE": 6, "OPTION_LINE": 6, "OPTION_FACTS": 6, "OPTIONS": 4}
    with pytest.MonkeyPatch.context() as patch:
        for name, tokens in limits.items():
            patch.setattr(prompts, name, tokens)
        patch.setattr(export, "CHOICE_RUNS", 2)
        patch.setattr(export, "CHECK_RUNS", 2)
        yield


@pytest.fixture(scope="module")
def encoder(tiny_base):
    """With an adapter that changes something, and answers far from uniform."""
    made = Encoder.from_base(tiny_base, window=40, lora=Lora(4, 8), seed=3)
    with torch.no_grad():
        for name, parameter in made.tree.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
        made.scorer.outer.weight.mul_(5)
        made.scorer.last.weight.mul_(5)
    return made


@pytest.fixture(scope="module")
def saved(encoder, tmp_path_factory):
    """A checkpoint with the encoder."""
    folder = tmp_path_factory.mktemp("saved")
    classes = ("a", "b", "c", "d")
    names = score_names(classes, by_candidate=False)
    scorer = create("encoder", names, len(classes))
    checkpoint.save(folder, Head("cls", "encoder", scorer, Temperature(), classes, names, "0", encoder=encoder), {})
    return folder


@pytest.fixture(scope="module")
def exported(encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "onnx"
    before = encoder.fingerprint()
    found = export.export(encoder, folder)
    assert encoder.fingerprint() == before
    return folder, found


@pytest.fixture(scope="module")
def asked(encoder):
    """Prompts with features and one without."""
    found = export.simulated_prompts(Reader(encoder.count, encoder.window), simulate(3, 7))
    return [*found, Prompt(found[0].state, (("why?", 4),), ((("a", 1),), (("bc", 2),), (("d", 1),)))]


def differences(left, right):
    sizes = np.array([len(own) for own in left])
    both = [onnx_graph.probabilities(np.concatenate(own), sizes) for own in (left, right)]
    return np.abs(both[0] - both[1]).max()


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("int8", export.TOLERANCE)])
@pytest.mark.parametrize("packing", [True, False], ids=["packed", "single"])
def test_the_graph_answers_as_torch_does(encoder, exported, asked, precision, tolerance, packing):
    right = encoder.logits(asked)
    assert max(np.ptp(own) for own in right) > 0.5
    graph = OnnxEncoder.load(exported[0], precision)
    found = graph.logits(asked, packing)
    assert [len(own) for own in found] == [len(prompt.options) for prompt in asked]
    assert differences(found, right) <= tolerance


def test_packing_changes_no_answer_of_the_graph(exported, asked):
    graph = OnnxEncoder.load(exported[0], "float32")
    assert len(graph.packs(asked)) < len(graph.packs(asked, packing=False)) == len(asked)
    assert differences(graph.logits(asked), graph.logits(asked, packing=False)) <= 1e-5


def test_the_graph_alone_gives_the_scores_too(encoder, exported, asked):
    batch = encoder.packs(asked)[:3]
    own = [asked[number] for pack in batch for number in pack.prompts]
    arrays = [tensor.numpy() for tensor in (*encoder.tensors(batch), facts_of(own))]
    session = open_graph((exported[0] / "model.onnx").read_bytes())
    assert [given.name for given in session.get_inputs()] == list(INPUTS)
    scores, hidden = session.run(["scores", "hidden"], dict(zip(INPUTS, arrays, strict=True)))
    np.testing.assert_allclose(scores, np.concatenate(encoder.logits(own)), atol=1e-4)
    np.testing.assert_allclose(hidden, torch.cat(encoder.read(own)).numpy(), atol=1e-4)


def test_what_is_exported_is_said_and_read_back(encoder, exported):
    folder, found = exported
    assert found.agrees
    assert found.layers == 12
    assert 0 < found.int8 <= 12
    assert found.sizes == {"float32": (folder / "model.onnx").stat().st_size,
                           "int8": (folder / "model.int8.onnx").stat().st_size}  # fmt: skip
    assert found.sizes["int8"] < found.sizes["float32"]
    graph = OnnxEncoder.load(folder)
    assert (graph.window, graph.longest) == (encoder.window, encoder.longest)
    texts = ["[1] user: book", "find(city=rome) -> id=7"]
    assert graph.count(texts) == encoder.count(texts)
    assert graph.to("cpu") is graph
    with pytest.raises(DataError, match="expected the device cpu"):
        graph.to("cuda")
    assert [path.name for path in folder.parent.iterdir()] == ["onnx"]


def test_an_export_replaces_one_and_nothing_else(encoder, exported, tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="expected a new folder"):
        export.export(encoder, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    folder = exported[0]
    before = (folder / "encoder.json").read_bytes()

    def fails(*_):
        raise OSError("no space left")

    monkeypatch.setattr(export, "_compare", fails)
    with pytest.raises(OSError, match="no space"):
        export.export(encoder, folder)
    assert (folder / "encoder.json").read_bytes() == before
    assert [path.name for path in folder.parent.iterdir()] == ["onnx"]


# --- int8 ------------------------------------------------------------------------------------------------------------


def product(weights):
    """A graph of one linear layer."""
    inputs = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", weights.shape[0]])
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", weights.shape[1]])
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "layer")
    graph = helper.make_graph([node], "g", [inputs], [output], [numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", onnx_graph.OPSET)], ir_version=8)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 10_000), st.booleans(), st.booleans())
def test_one_layer_in_int8(inputs, outputs, seed, large_weight, large_input):
    rng = np.random.default_rng(seed)
    weights, x = rng.normal(size=(inputs, outputs)).astype(np.float32), rng.normal(size=(9, inputs)).astype(np.float32)
    weights[0, 0] *= 100 if large_weight else 1
    x[0, 0] *= 100 if large_input else 1
    rounded = round_weights(weights, (x.T @ x).astype(np.float64))
    whole = rounded.weight * rounded.scale
    whole[rounded.outliers] = rounded.exact
    model = quantise(product(weights), {"layer": rounded})
    onnx.checker.check_model(model)
    (found,) = open_graph(model.SerializeToString()).run(None, {"x": x})
    # Two terms of 8 bits each: what is left is 1/255² of the range, in the steps of which both are rounded.
    step = np.ptp(np.append(x, 0)) / 255 / 255
    assert np.abs(found - x @ whole).max() <= step * np.abs(whole).sum(axis=0).max() + 1e-4


def test_inputs_with_extreme_weights_stay_exact():
    weights = RNG.normal(size=(400, 8)).astype(np.float32)
    weights[[3, 77], 2] = 40
    rounded = round_weights(weights, np.eye(400))
    assert rounded.outliers.tolist() == [3, 77]
    np.testing.assert_array_equal(rounded.exact, weights[[3, 77]])
    assert not rounded.weight[[3, 77]].any()


def test_rounding_makes_up_for_itself():
    mixed = RNG.normal(size=(64, 64)) @ RNG.normal(size=(64, 64))
    x, weights = RNG.normal(size=(2000, 64)) @ mixed, RNG.normal(size=(64, 32)).astype(np.float32)
    rounded = round_weights(weights, x.T @ x)
    scale = np.abs(weights).max(axis=0) / onnx_graph.LEVELS
    nearest = np.rint(weights / scale) * scale
    errors = [np.square(x @ (own - weights)).mean() for own in (rounded.weight * rounded.scale, nearest)]
    assert errors[0] < errors[1] / 2


def test_the_more_difference_is_allowed_the_more_layers_are_chosen(encoder, asked):
    model = onnx_graph.float_graph(encoder, asked)
    exam = Exam.of(encoder, asked)
    assert len(exam.half().feeds) == -(-len(exam.feeds) // 2)
    counts = [len(choose(model, exam, allowed)) for allowed in (0, 1e-3, 2)]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == len(linear_layers(model)) == 12
    assert not [node for node in model.graph.node if node.domain]  # the model itself stays as it was


# --- the command -----------------------------------------------------------------------------------------------------


def command(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["export", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        export.run_cli(export.main)
    return end.value.code


def test_the_command(saved, tmp_path, monkeypatch, capsys):
    out = tmp_path / "deep" / "onnx"
    assert command(monkeypatch, "--checkpoint", saved, "--output", out) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == ["model.onnx", "model.int8.onnx"]
    assert "of 12 linear layers" in lines[1]
    assert lines[-1] == f"written to {out}"
    assert orjson.loads((out / "encoder.json").read_bytes())["window"] == 40


def test_an_int8_graph_that_is_off_is_exit_code_1(saved, tmp_path, monkeypatch, capsys):
    off = export.Exported({"float32": 1e-6, "int8": 0.02}, {"float32": 2, "int8": 1}, 12, 3, 5)
    monkeypatch.setattr(export, "export", lambda *_: off)
    assert command(monkeypatch, "--checkpoint", saved, "--output", tmp_path / "out") == 1
    captured = capsys.readouterr()
    assert "off by at most 2.0e-02" in captured.out
    assert captured.err.splitlines()[-1].startswith("error: expected probabilities within 0.01")


@pytest.mark.parametrize("case", ["no checkpoint", "no encoder", "no onnxruntime", "no output", "not an export"])
def test_bad_input_is_one_line(case, saved, tmp_path, monkeypatch, capsys):
    folder, out = saved, tmp_path / "out"
    expected = {"no checkpoint": "manifest.json", "no encoder": "with an encoder", "not an export": "new folder",
                "no onnxruntime": "pip install 'stepsieve[onnx]'", "no output": "--output"}[case]  # fmt: skip
    if case == "no checkpoint":
        folder = tmp_path / "nothing"
    if case == "no encoder":
        folder = export.Path(checkpoint.__file__).parent / "pretrained"
    if case == "no onnxruntime":
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
    if case == "not an export":
        out.write_text("a file")
    arguments = ["--checkpoint", folder, "--output", out][: 2 if case == "no output" else 4]
    assert command(monkeypatch, *arguments) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert expected in error


def test_a_folder_that_is_no_export(exported, tmp_path):
    with pytest.raises(DataError, match="expected a folder written by"):
        OnnxEncoder.load(tmp_path)
    for path in exported[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "model.int8.onnx").write_bytes(b"no graph")
    with pytest.raises(DataError, match="expected a graph that onnxruntime can run") as error:
        OnnxEncoder.load(tmp_path)
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


def test_prompts_for_the_graph_are_those_for_the_encoder(exported, asked):
    graph = OnnxEncoder.load(exported[0])
    assert export.simulated_prompts(Reader(graph.count, graph.window), simulate(3, 7)) == asked[:-1]

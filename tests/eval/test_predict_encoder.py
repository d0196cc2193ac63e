"""Corpus prediction by heads that read text: where they compute, and in what batches."""

import orjson
import pytest

pytest.importorskip("transformers", reason="the extra encoder is not installed")
import torch

from stepsieve.data.ingest import load
from stepsieve.eval import sources, work
from stepsieve.models.encoder import Encoder
from stepsieve.models.judge import Judge


def test_the_device_reaches_the_encoder(command, fused, few, tmp_path, monkeypatch):
    devices, to = [], Encoder.to
    monkeypatch.setattr(Encoder, "to", lambda self, device, *rest: devices.append(device) or to(self, device, *rest))
    arguments = ("--input", few, "--output", tmp_path / "o.jsonl", "--checkpoint", fused)
    code, _, problems = command(*arguments, "--device", "cpu")
    assert (code, problems, devices) == (0, "", ["cpu"])
    rows = [orjson.loads(row)["predictions"] for row in (tmp_path / "o.jsonl").read_bytes().splitlines()]
    found = Judge.from_pretrained(fused, "cpu").detect_batch(list(load(few)))
    assert rows == [[prediction.to_dict() for prediction in own] for own in found]
    assert any(rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_refused(command, fused, few, tmp_path):
    arguments = ("--input", few, "--output", tmp_path / "o.jsonl", "--checkpoint", fused)
    code, said, problems = command(*arguments, "--device", "cuda")
    assert (code, said) == (2, "")
    assert problems.startswith("error: expected a device among cpu")
    assert problems.count("\n") == 1


def test_batches_are_of_like_length_and_bounded(fused, few, monkeypatch):
    batches, tensors = [], Encoder.tensors

    def noted(self, batch):
        batches.append([len(pack) for pack in batch])
        return tensors(self, batch)

    monkeypatch.setattr(Encoder, "tensors", noted)
    predictor = work.Predictor(work.Options(str(fused), device="cpu"))
    for piece in sources.pieces([few]):
        assert predictor.piece(piece).rows
    assert max(map(len, batches)) > 1
    assert all(own == sorted(own, reverse=True) for own in batches)
    assert all(max(own) * len(own) <= 1024 or len(own) == 1 for own in batches)


def test_what_text_adds_is_not_explained(command, fused, few, tmp_path):
    arguments = ("--input", few, "--output", tmp_path / "o.jsonl", "--checkpoint", fused)
    code, _, problems = command(*arguments, "--explain")
    assert code == 2
    assert "expected gbdt heads to explain, found 'fusion'" in problems

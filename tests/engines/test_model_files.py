"""Model files that are not what they say are refused by folder, tensor and fix; transformers would fill in random numbers, and leave out the rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from asyncflow.engines.model import ModelShape, build_model, hf_tensors, load_hf

SHAPE = ModelShape(vocab_size=40, hidden_size=64, intermediate_size=96, heads=2, eos_token_id=2)
NAME = "model.layers.0.mlp.up_proj.weight"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_model(SHAPE).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def _fewer_layers(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1, "layer_types": config["layer_types"][:1]}))


def _change(change: Callable[[Tensors], object]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return rewrite


def _cut(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_change(lambda tensors: tensors.pop(NAME)), f"its files lack 1 of the model's tensors, the first is '{NAME}'"),
        (_change(lambda tensors: tensors.update(more=torch.ones(3))), "describes a model without 1 of its tensors, the first is 'more'"),
        (_fewer_layers, "describes a model without 12 of its tensors, the first is 'model.layers.1"),
        (_change(lambda tensors: tensors[NAME][3, 4].fill_(float("nan"))), f"its tensor '{NAME}' holds NaN or infinite numbers"),
        (_change(lambda tensors: tensors[NAME][3, 4].fill_(float("-inf"))), f"its tensor '{NAME}' holds NaN or infinite numbers"),
        (_change(lambda tensors: tensors.update({NAME: tensors[NAME][:, 1:].clone()})), "its weights cannot be read"),
        (_cut, "its weights cannot be read"),
        (lambda folder: (folder / "model.safetensors").unlink(), "its weights cannot be read"),
    ],
    ids=["missing", "extra", "fewer layers", "NaN", "infinite", "shape", "cut", "none"],
)
def test_files_that_do_not_hold_the_models_weights_whole_and_finite_are_refused(folder: Path, harm: Callable[[Path], None], words: str) -> None:
    harm(folder)
    with pytest.raises(ValueError, match=r"model path .* is refused: .*; no model is loaded; name a folder") as refusal:
        load_hf(folder)
    assert str(folder) in str(refusal.value)
    assert words in str(refusal.value)


def test_a_tied_tensor_may_be_there_under_both_names_and_halves_become_whole(folder: Path) -> None:
    kept = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(kept | {"lm_head.weight": kept["model.embed_tokens.weight"].clone()}, folder / "model.safetensors", metadata={"format": "pt"})
    assert {(name, tensor.dtype) for name, tensor in hf_tensors(load_hf(folder))} == {(name, torch.float32) for name in kept}

"""What a walk over sharded weights is made of, each part alone: which rank holds what, names, ties, the ring of memory."""

from __future__ import annotations

import itertools
import json
from collections import deque
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard, _StridedShard

from checkpoint_engine.sharded.adapter import adapter_config
from checkpoint_engine.sharded.blocks import Block, _runs
from checkpoint_engine.sharded.entries import select
from checkpoint_engine.sharded.experts import unstacked
from checkpoint_engine.sharded.names import adapter_names, base_name
from checkpoint_engine.sharded.ring import Ring, ring_bytes


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[int], list[int], list[Placement]]:
    """(shape, mesh, placements): what FSDP2, HSDP, tensor parallelism and both on one dimension make of a tensor, uneven and empty parts included."""
    shape = draw(st.lists(st.integers(0, 11), min_size=1, max_size=3))
    mesh = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    dims = st.integers(0, len(shape) - 1)
    strided = st.builds(lambda dim, split: _StridedShard(dim, split_factor=split), dims, st.integers(2, 3))
    kinds = st.one_of(st.just(Replicate()), dims.map(Shard), strided)
    return shape, mesh, [draw(kinds) for _ in mesh]


@settings(max_examples=200, deadline=None)
@given(layouts())
def test_every_rank_holds_what_torch_gives_it_and_all_parts_make_the_whole(layout: tuple[list[int], list[int], list[Placement]]) -> None:
    shape, mesh, placements = layout
    whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
    again = torch.full_like(whole, -1)
    for place in itertools.product(*map(range, mesh)):
        local = whole
        for placement, ranks, rank in zip(placements, mesh, place, strict=True):
            if not placement.is_replicate():
                local = placement._split_tensor(local, ranks, with_padding=False)[0][rank]
        block = Block(0, _runs(shape, placements, mesh, place))
        assert block.shape == tuple(local.shape)
        block.place(again, local)
        if block.is_dense(shape):
            region = block.region(whole)
            assert region.is_contiguous()
            assert torch.equal(region, local)
    assert torch.equal(again, whole)


@given(st.lists(st.one_of(st.none(), st.integers(0, 512))))
def test_pieces_of_a_ring_never_overlap_and_an_empty_ring_has_room_for_all(steps: list[int | None]) -> None:
    ring = Ring(ring_bytes(512, 2), torch.device("cpu"))
    taken: deque[tuple[torch.Tensor, int]] = deque()
    for number, nbytes in enumerate(steps):
        if nbytes is None:
            if taken:
                piece, mark = taken.popleft()
                assert (piece == mark).all(), "somebody else wrote into it"
                ring.give()
            continue
        piece = ring.take(nbytes)
        assert piece is not None or taken
        if piece is not None:
            assert piece.nbytes == nbytes
            taken.append((piece.fill_(number % 256), number % 256))


@pytest.mark.parametrize(
    ("key", "base", "adapter"),
    [
        ("model.norm.weight", "model.norm.weight", None),
        ("module._orig_mod.layers.1._fsdp_wrapped_module._checkpoint_wrapped_module.mlp.up_proj.weight", "layers.1.mlp.up_proj.weight", None),
        ("base_model.model.model.layers.0.q_proj.base_layer.weight", "model.layers.0.q_proj.weight", None),
        ("base_model.model.model.layers.0.q_proj.lora_A.default.weight", None, "base_model.model.model.layers.0.q_proj.lora_A.weight"),
        ("base_model.model.model.layers.0.q_proj.lora_B.default.bias", None, "base_model.model.model.layers.0.q_proj.lora_B.bias"),
        ("base_model.model.model.layers.0.q_proj.lora_A.other.weight", None, None),
        ("model.layers.0.q_proj.lora_B.weight", None, "base_model.model.model.layers.0.q_proj.lora_B.weight"),
        ("model.layers.0.q_proj.lora_B", None, "base_model.model.model.layers.0.q_proj.lora_B.weight"),
        ("base_model.model.embed.lora_embedding_A.default", None, "base_model.model.embed.lora_embedding_A"),
        ("base_model.model.q_proj.lora_magnitude_vector.default.weight", None, "base_model.model.q_proj.lora_magnitude_vector"),
        ("base_model.model.lm_head.modules_to_save.default.weight", None, "base_model.model.lm_head.weight"),
        ("base_model.model.lm_head.modules_to_save.other.weight", None, None),
        ("base_model.model.lm_head.original_module.weight", "lm_head.weight", None),
    ],
)
def test_names_are_those_that_hugging_face_and_peft_save(key: str, base: str | None, adapter: str | None) -> None:
    assert base_name(key) == base
    assert adapter_names()(key) == adapter


def test_tied_tensors_are_published_once_under_the_name_that_is_no_declared_copy() -> None:
    class Tied(torch.nn.Module):
        _tied_weights_keys: ClassVar = {"first.weight": "second.weight"}

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(3, 2, bias=False), torch.nn.Linear(3, 2, bias=False)
            self.first.weight = self.second.weight
            self.register_buffer("kept", torch.ones(2))
            self.register_buffer("passing", torch.ones(2), persistent=False)

    selection = select(Tied(), base_name)
    assert [entry.name for entry in selection.entries] == ["kept", "second.weight"]
    assert selection.aliases == {"first.weight": "second.weight"}


def test_floats_are_cast_but_for_what_is_kept_and_what_is_no_plain_float() -> None:
    ones = torch.ones(2)
    state = {"a.weight": ones, "router.bias": ones.clone(), "steps": ones.long(), "q": ones.to(torch.float8_e4m3fn)}
    selection = select(state, base_name, torch.bfloat16, ("*.bias",))
    assert [str(entry.dtype) for entry in selection.entries] == ["torch.bfloat16", "torch.float32", "torch.int64", "torch.float8_e4m3fn"]
    assert [entry.nbytes for entry in selection.entries] == [4, 8, 16, 2]
    assert selection.fingerprint() != select(state, base_name).fingerprint()


def test_what_cannot_be_published_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'module.a' and another key"):
        select({"a": torch.ones(1), "module.a": torch.ones(1)}, base_name)
    with pytest.raises(ValueError, match="'a' is on the meta device"):
        select({"a": torch.empty(1, device="meta")}, base_name)
    with pytest.raises(TypeError, match="'a' is a int"):
        select({"a": 3, "layer._extra_state": None}, base_name)


def test_an_adapters_configuration_follows_from_its_tensors(tmp_path: Path) -> None:
    layers = [f"base_model.model.model.layers.{i}.{name}" for i in range(2) for name in ("q_proj", "v_proj")]
    shapes = [(f"{layer}.lora_A.weight", (4, 24)) for layer in layers] + [(f"{layer}.lora_B.weight", (24, 4)) for layer in layers]
    config = adapter_config([*shapes, ("base_model.model.lm_head.weight", (9, 24))], lora_alpha=8, base="Qwen/Qwen2.5-0.5B")
    config.write(tmp_path)
    written = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (written["r"], written["lora_alpha"], written["target_modules"]) == (4, 8, ["q_proj", "v_proj"])
    assert (written["peft_type"], written["modules_to_save"], written["use_dora"]) == ("LORA", ["lm_head"], False)
    with pytest.raises(ValueError, match="one configuration takes one rank"):
        adapter_config([*shapes, ("base_model.model.o_proj.lora_A.weight", (8, 24))], lora_alpha=8)
    with pytest.raises(ValueError, match="one rank"):
        adapter_config([], lora_alpha=8)


def test_stacked_experts_come_one_by_one_as_views() -> None:
    fused, down = torch.randn(3, 8, 5), torch.randn(3, 5, 4)
    found = dict(unstacked("model.layers.0.mlp.experts.gate_up_proj", fused)) | dict(unstacked("model.layers.0.mlp.experts.down_proj", down))
    assert list(found)[:2] == ["model.layers.0.mlp.experts.0.gate_proj.weight", "model.layers.0.mlp.experts.0.up_proj.weight"]
    assert len(found) == 9
    assert torch.equal(found["model.layers.0.mlp.experts.2.up_proj.weight"], fused[2, 4:])
    assert found["model.layers.0.mlp.experts.1.down_proj.weight"].data_ptr() == down[1].data_ptr()
    assert [name for name, _ in unstacked("model.layers.0.mlp.down_proj.weight", down[0])] == ["model.layers.0.mlp.down_proj.weight"]

"""Sharded models walked by real ranks (gloo): the whole tensors bit for bit as they were before sharding, in bounded memory, under saved names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ce_helpers import Named, bits
from safetensors.torch import load_file
from sharded_ranks import run_ranks, tiny_moe, tiny_qwen
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import Placement

from checkpoint_engine.sharded import ShardedWalk, WalkAbandoned, WalkBroken, adapter_names

TIMEOUT_S = 20.0
IDS = torch.arange(8).reshape(1, 8)


def odd_wholes() -> dict[str, tuple[torch.Tensor, Placement | None]]:
    g = torch.Generator().manual_seed(3)
    nan = torch.tensor([0x7FC00001, 0x7F800001, -1, 5, 9], dtype=torch.int32).view(torch.float32)
    return {
        "ten_rows": (torch.randn(10, 3, generator=g), Shard(0)),
        "one_row": (torch.randn(1, 5, generator=g), Shard(0)),
        "three": (torch.randn(3, generator=g), Shard(0)),
        "ten_columns": (torch.randn(3, 10, generator=g), Shard(1)),
        "middle": (torch.randn(3, 5, 2, generator=g), Shard(1)),
        "bf16": (torch.randn(7, 3, generator=g).bfloat16(), Shard(0)),
        "fp8": (torch.randn(9, 3, generator=g).to(torch.float8_e4m3fn), Shard(0)),
        "truths": (torch.tensor([True, False, True, True, False]), Shard(0)),
        "int64": (torch.tensor([2**62, -1, 4, 5, 6]), Shard(0)),
        "nan": (nan, Shard(0)),
        "empty": (torch.empty(0, 4), Shard(0)),
        "replica": (torch.randn(4, 3, generator=g), Replicate()),
        "scalar": (torch.tensor(2.5), Replicate()),
        "plain": (torch.randn(6, 4, generator=g).t(), None),
    }


def sharded(whole: torch.Tensor, mesh: DeviceMesh, placement: Placement) -> DTensor:
    local = whole if placement.is_replicate() else placement._split_tensor(whole, mesh.size(), with_padding=False)[0][mesh.get_local_rank()]
    return DTensor.from_local(local, mesh, [placement], run_check=False, shape=whole.shape, stride=whole.stride())


def taken(walk: ShardedWalk) -> Named:
    """What a walk yields, copied as a consumer must."""
    return [(name, tensor.detach().clone()) for name, tensor in walk.tensors()]


def differing(found: Named, expected: dict[str, torch.Tensor]) -> list[str]:
    """Names that are missing, not wanted, twice, or of other bits, dtype or shape."""
    twice = [name for i, (name, _) in enumerate(found) if name in dict(found[:i])]
    got = dict(found)
    wrong = [name for name in got.keys() & expected.keys() if bits(got[name]) != bits(expected[name])]
    return sorted([*twice, *wrong, *(got.keys() ^ expected.keys())])


def check_walk(walk: ShardedWalk, expected: dict[str, torch.Tensor], what: str) -> list[str]:
    """On the root: what differs, if anything; elsewhere: what was yielded, which must be nothing."""
    found = taken(walk)
    return [f"{what}: {name}" for name in (differing(found, expected) if walk.is_root else dict(found))]


def walk_odd_tensors(rank: int) -> list[str]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    wholes = odd_wholes()
    state = {name: whole if placement is None else sharded(whole, mesh, placement) for name, (whole, placement) in wholes.items()}
    expected = {name: whole for name, (whole, _) in wholes.items()}
    problems = []
    for prefetch in (0, 1, 4):
        walk = ShardedWalk(lambda: state, prefetch=prefetch, timeout_s=TIMEOUT_S)
        problems += check_walk(walk, expected, f"prefetch {prefetch}")
    last = dist.get_world_size() - 1
    problems += check_walk(ShardedWalk(lambda: state, root=last, timeout_s=TIMEOUT_S), expected, f"root {last}")
    cast = {name: whole.bfloat16() if whole.dtype == torch.float32 and name != "nan" else whole for name, whole in expected.items()}
    walk = ShardedWalk(lambda: state, dtype=torch.bfloat16, keep_dtype=("na?",), timeout_s=TIMEOUT_S)
    return problems + check_walk(walk, cast, "bfloat16")


@pytest.mark.parametrize("world", [2, 4])
def test_tensors_of_every_kind_and_uneven_parts_come_whole_bit_for_bit(world: int) -> None:
    assert run_ranks(world, walk_odd_tensors) == [[]] * world


def by_fsdp(model: torch.nn.Module, mesh: DeviceMesh, **settings: Any) -> torch.nn.Module:
    for layer in model.model.layers:  # type: ignore[union-attr]
        fully_shard(layer, mesh=mesh, **settings)
    fully_shard(model, mesh=mesh, **settings)
    return model


def by_fsdp_and_tp() -> torch.nn.Module:
    """2 × 2, both along dimension 0 of some weights and along two dimensions of others."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = tiny_qwen()
    plan = {"mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel()}
    for layer in model.model.layers:  # type: ignore[union-attr]
        parallelize_module(layer, mesh["tp"], plan)
    return by_fsdp(model, mesh["dp"])


def walk_models(rank: int, folder: Path) -> list[str]:
    saved = load_file(folder / "qwen" / "model.safetensors")
    flat, square = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    model = by_fsdp(tiny_qwen(), flat, reshard_after_forward=False)
    walk = ShardedWalk(model, timeout_s=TIMEOUT_S)
    problems = check_walk(walk, saved, "fsdp")
    if walk.select().aliases != {"lm_head.weight": "model.embed_tokens.weight"}:
        problems.append(f"aliases {walk.select().aliases}")
    with torch.no_grad():
        model(IDS)  # leaves the weights whole, as in training between forward and backward
        problems += check_walk(walk, saved, "after a forward")
        for parameter in model.parameters():
            parameter.add_(1)
    problems += check_walk(walk, {name: whole + 1 for name, whole in saved.items()}, "a step later")
    problems += check_walk(ShardedWalk(by_fsdp(tiny_qwen(), square), timeout_s=TIMEOUT_S), saved, "hsdp")
    problems += check_walk(ShardedWalk(by_fsdp_and_tp(), timeout_s=TIMEOUT_S), saved, "fsdp and tp")
    experts = load_file(folder / "moe" / "model.safetensors")
    return problems + check_walk(ShardedWalk(by_fsdp(tiny_moe(), flat), unstack_experts=True, timeout_s=TIMEOUT_S), experts, "experts")


def test_models_come_as_hugging_face_saves_them_however_they_are_sharded(tmp_path: Path) -> None:
    tiny_qwen().save_pretrained(tmp_path / "qwen")  # type: ignore[operator]
    tiny_moe().save_pretrained(tmp_path / "moe")  # type: ignore[operator]
    assert "lm_head.weight" not in load_file(tmp_path / "qwen" / "model.safetensors")
    assert run_ranks(4, walk_models, tmp_path) == [[]] * 4


class Lora(torch.nn.Module):
    """A linear layer with an adapter, its parts named as PEFT names them."""

    def __init__(self, base: torch.nn.Linear, rank: int) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(base.in_features, rank, bias=False)})
        self.lora_B = torch.nn.ModuleDict({"default": torch.nn.Linear(rank, base.out_features, bias=False)})


def with_adapters(model: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(9)
    for layer in model.model.layers:  # type: ignore[union-attr]
        layer.self_attn.q_proj = Lora(layer.self_attn.q_proj, 3)
    return model


def walk_awry(rank: int) -> list[str]:
    """An adapter alone and its base; a root that stops; ranks that walk different things; weights that came untied. Each time they walk on."""
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    whole = with_adapters(tiny_qwen())
    prefix = "base_model.model."
    adapter = {prefix + key.replace(".default", ""): tensor for key, tensor in whole.state_dict().items() if ".lora_" in key}
    base = {key.replace(".base_layer", ""): t for key, t in whole.state_dict().items() if ".lora_" not in key and key != "lm_head.weight"}
    model = by_fsdp(with_adapters(tiny_qwen()), mesh)
    walk = ShardedWalk(model, timeout_s=TIMEOUT_S)
    problems = check_walk(ShardedWalk(model, naming=adapter_names(), timeout_s=TIMEOUT_S), adapter, "adapter")
    problems += check_walk(walk, base, "base")
    if walk.is_root:
        walking = walk.tensors()
        for _ in range(3):
            next(walking)
        walking.close()
    else:
        with pytest.raises(WalkAbandoned, match="rank 0 did not take the version"):
            taken(walk)
    problems += check_walk(walk, base, "after a walk that the root left")
    other = ShardedWalk(model, dtype=torch.bfloat16 if rank == 1 else None, timeout_s=TIMEOUT_S)
    with pytest.raises(WalkBroken, match=r"ranks \[1\] walk other tensors than rank 0"):
        taken(other)
    problems += check_walk(walk, base, "after ranks disagreed")
    untied = tiny_qwen()
    fully_shard(untied.lm_head, mesh=mesh)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"'lm_head.weight' is tied to 'model.embed_tokens.weight'"):
        ShardedWalk(by_fsdp(untied, mesh))
    return problems


def test_an_adapter_goes_alone_and_what_goes_wrong_is_told_on_every_rank_and_leaves_the_group_usable() -> None:
    assert run_ranks(2, walk_awry) == [[]] * 2


def live_bytes(run: Iterator[object]) -> int:
    """The most that tensors made while `run` is exhausted took at once, by torch's own account of its allocator."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        for _ in run:
            pass
    changes = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]  # type: ignore[union-attr]
    now = most = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        now += change.nbytes()
        most = max(most, now)
    return most


ROWS, WIDTH, TENSORS = 1001, 64, 12  # 256 KB each; uneven over 4


def walk_large(rank: int) -> dict[str, int]:
    mesh = init_device_mesh("cpu", (4,))
    state = {f"t{i}": sharded(torch.full((ROWS, WIDTH), float(i)), mesh, Shard(0)) for i in range(TENSORS)}
    columns = {f"t{i}": sharded(torch.full((WIDTH, ROWS), float(i)), mesh, Shard(1)) for i in range(TENSORS)}
    return {
        "prefetch 0": live_bytes(ShardedWalk(lambda: state, prefetch=0, timeout_s=TIMEOUT_S).tensors()),
        "prefetch 2": live_bytes(ShardedWalk(lambda: state, prefetch=2, timeout_s=TIMEOUT_S).tensors()),
        "cast": live_bytes(ShardedWalk(lambda: state, dtype=torch.bfloat16, timeout_s=TIMEOUT_S).tensors()),
        "columns": live_bytes(ShardedWalk(lambda: columns, timeout_s=TIMEOUT_S).tensors()),
        "full_tensor": live_bytes(tensor.full_tensor() for tensor in columns.values()),
    }


def test_a_walk_holds_the_largest_tensor_and_what_is_fetched_ahead_and_other_ranks_hold_nothing() -> None:
    largest, small = ROWS * WIDTH * 4, 20_000
    root, *others = run_ranks(4, walk_large)
    assert largest <= root["prefetch 0"] <= largest + small
    assert 2 * largest <= root["prefetch 2"] <= 3 * largest + small
    assert root["columns"] <= 2 * largest + largest // 4 + small
    assert root["cast"] <= 2 * (largest // 2) + small
    for found in others:
        assert max(found["prefetch 0"], found["prefetch 2"], found["columns"]) <= small
        assert found["cast"] <= 2 * (largest // 8) + small
    assert root["full_tensor"] > largest, "the account sees what torch's own gather takes"

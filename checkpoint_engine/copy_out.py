"""Copying a trainer's tensors into an arena: the only moment at which a version and the live parameters touch."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from checkpoint_engine.arena import Arena
from checkpoint_engine.manifest import Manifest, TensorMeta, align_up, dtype_name, view_tensor
from checkpoint_engine.weights_id import WeightsId


def copy_out(arena: Arena, weights: WeightsId, tensors: Iterable[tuple[str, torch.Tensor]]) -> Manifest:
    """Walk `tensors` once and copy each into the arena, which grows as needed; one copy a tensor, from any device, of any strides.

    Returns the manifest with empty digests. The layout is found while walking: nothing has to be gathered beforehand.
    """
    metas: list[TensorMeta] = []
    names: set[str] = set()
    end = 0
    for name, tensor in tensors:
        if name in names:
            raise ValueError(f"tensor {name!r} was yielded twice: nothing is published; publish a tied weight once")
        names.add(name)
        meta = TensorMeta(name, dtype_name(tensor.dtype), tuple(tensor.shape), align_up(end), tensor.numel() * tensor.element_size())
        end = meta.offset + meta.nbytes
        if end > arena.nbytes:
            arena.grow(max(end, arena.nbytes * 3 // 2))
        if meta.nbytes:
            view_tensor(arena.tensor(), meta).copy_(tensor.detach())
        metas.append(meta)
    return Manifest(weights, tuple(metas), end)

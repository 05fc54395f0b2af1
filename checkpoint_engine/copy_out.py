"""Copying a trainer's tensors into an arena: the only moment at which a version and the live parameters touch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from checkpoint_engine.manifest import Manifest, TensorMeta, align_up, check_dtype, dtype_name, view_array, view_tensor
from checkpoint_engine.weights_id import WeightsId
from shared_arena import Arena

if TYPE_CHECKING:
    import torch


def copy_out(arena: Arena, weights: WeightsId, tensors: Iterable[tuple[str, torch.Tensor | np.ndarray]]) -> Manifest:
    """Walk `tensors` once and copy each into the arena, which grows as needed; one copy a tensor, from any device, of any strides.
    An ndarray is taken too, without torch. Raises ManifestError for one of a dtype that no receiver could read.

    Returns the manifest with empty digests. The layout is found while walking: nothing has to be gathered beforehand.
    """
    metas: list[TensorMeta] = []
    names: set[str] = set()
    end = 0
    for name, tensor in tensors:
        if name in names:
            raise ValueError(f"tensor {name!r} was yielded twice: nothing is published; publish a tied weight once")
        names.add(name)
        if isinstance(tensor, np.ndarray):
            check_dtype(name, tensor.dtype)
        meta = TensorMeta(name, dtype_name(tensor.dtype), tuple(tensor.shape), align_up(end), tensor.nbytes)
        end = meta.offset + meta.nbytes
        if end > arena.nbytes:
            arena.grow(max(end, arena.nbytes * 3 // 2))
        if isinstance(tensor, np.ndarray):
            view_array(arena.array, meta)[...] = tensor
        elif _is_plain(tensor):
            np.copyto(arena.array[meta.offset : end], _bytes_of(tensor))
        elif meta.nbytes:
            view_tensor(arena.tensor(), meta).copy_(tensor.detach())
        metas.append(meta)
    return Manifest(weights, tuple(metas), end)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Its bytes lie in this process's memory as they are published: they go by memcpy. torch's own copy reads the target's lines before it writes
    them, and takes up to twice as long for a large tensor (measured)."""
    import torch

    at_hand = tensor.device.type == "cpu" and tensor.layout == torch.strided and type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return at_hand and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)


def _bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """uint8 [nbytes], the same memory."""
    import torch

    return tensor.detach().reshape(-1).view(torch.uint8).numpy()

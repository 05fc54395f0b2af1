"""What a walk publishes: the tensors of a module or state dict under their published names, tied ones once, each with the dtype it leaves in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import msgspec
import torch
import xxhash
from torch.distributed.tensor import DTensor

from checkpoint_engine.sharded.names import Naming

_CAST = (torch.float64, torch.float32, torch.float16, torch.bfloat16)  # fp8 has scales beside it, integers are no weights: they stay what they are


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a version. `tensor`: DTensor, or a plain one that every rank has whole."""

    name: str
    tensor: torch.Tensor
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Of the whole tensor, as it is published."""
        return self.tensor.numel() * self.dtype.itemsize

    @property
    def local(self) -> torch.Tensor:
        """This rank's part, the live memory."""
        tensor = self.tensor.detach()
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@dataclass(frozen=True, slots=True)
class Selection:
    """`aliases`: name of a tied weight that is not published → the one that is."""

    entries: tuple[Entry, ...]
    aliases: dict[str, str]

    @property
    def largest_bytes(self) -> int:
        return max((entry.nbytes for entry in self.entries), default=0)

    def fingerprint(self) -> int:
        """The same on ranks that walk the same tensors, laid out alike: what the ranks compare before they walk. 64 bits, signed."""
        rows = [(entry.name, str(entry.dtype), tuple(entry.tensor.shape), _layout(entry.tensor)) for entry in self.entries]
        return int.from_bytes(xxhash.xxh3_64_digest(msgspec.msgpack.encode(rows)), "big", signed=True)


def select(
    source: torch.nn.Module | Mapping[str, Any], naming: Naming, dtype: torch.dtype | None = None, keep_dtype: Sequence[str] = ()
) -> Selection:
    """`source`: a module (its parameters and persistent buffers), or a state dict; in one, only entries that are the same object count as tied, so
    take it with `keep_vars=True`. `dtype`: what floating-point tensors leave in, except names that match a pattern of `keep_dtype`.

    Raises ValueError where names or ties contradict one another, TypeError for what is no tensor.
    """
    named = source.state_dict(keep_vars=True) if isinstance(source, torch.nn.Module) else source  # FSDP2 reshards in a hook of state_dict
    declared = getattr(source, "_tied_weights_keys", None) or ()
    owners: dict[int, list[str]] = {}
    tensors: dict[str, torch.Tensor] = {}
    for key, tensor in named.items():
        name = None if key.endswith("_extra_state") else naming(key)
        if name is None:
            continue
        _check(key, name, tensor, tensors)
        tensors[name] = tensor
        owners.setdefault(id(tensor), []).append(name)
    aliases: dict[str, str] = {}
    for names in owners.values():
        kept = next((name for name in names if not any(re.search(pattern, name) for pattern in declared)), names[0])
        aliases |= {name: kept for name in names if name != kept}
    _check_ties(source, declared, tensors, aliases)
    return Selection(tuple(_entry(name, tensor, dtype, keep_dtype) for name, tensor in tensors.items() if name not in aliases), aliases)


def _entry(name: str, tensor: torch.Tensor, dtype: torch.dtype | None, keep_dtype: Sequence[str]) -> Entry:
    casts = dtype is not None and tensor.dtype in _CAST and not any(fnmatchcase(name, pattern) for pattern in keep_dtype)
    return Entry(name, tensor, dtype if casts and dtype is not None else tensor.dtype)


def _check(key: str, name: str, tensor: object, tensors: Mapping[str, torch.Tensor]) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{key!r} is a {type(tensor).__name__}, not a tensor: nothing is published; leave it out of the state dict")
    if tensor.is_meta:
        raise ValueError(f"{key!r} is on the meta device: it has no values, nothing is published; materialise the model first")
    if isinstance(tensor, DTensor) and any(placement.is_partial() for placement in tensor.placements):
        raise ValueError(f"{key!r} is a partial sum ({tensor.placements}): it has no values yet, nothing is published; redistribute it first")
    if name in tensors:
        raise ValueError(f"{key!r} and another key both become {name!r}: nothing is published, one would hide the other; give `naming` of your own")


def _check_ties(source: object, declared: object, tensors: Mapping[str, torch.Tensor], aliases: Mapping[str, str]) -> None:
    """Whoever loads these names with the model's config ties them, and would silently lose one of two that have drifted apart in training."""
    if not isinstance(declared, Mapping) or not getattr(getattr(source, "config", None), "tie_word_embeddings", False):
        return
    for alias, kept in declared.items():
        if alias in tensors and kept in tensors and tensors[alias] is not tensors[kept]:
            raise ValueError(
                f"{alias!r} is tied to {kept!r} by the model's config, and they are two tensors here: nothing is published, for engines load one of "
                f"them; let one call of fully_shard wrap both"
            )


def _layout(tensor: torch.Tensor) -> list[object]:
    """Not which ranks: replicas of a tensor may lie on meshes of their own."""
    if not isinstance(tensor, DTensor):
        return []
    return [[str(placement) for placement in tensor.placements], list(tensor.device_mesh.shape)]

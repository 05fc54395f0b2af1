"""Weights in shared memory, where vLLM's worker processes read them: each loads its own part of every tensor, so nothing is sent to anybody.

Two arenas take turns: what serves now stays where it is until its successor is loaded, for an engine that has to be started anew starts with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from asyncflow.contracts.weights import WeightsId
from checkpoint_engine.copy_out import copy_out
from checkpoint_engine.manifest import Manifest, TensorMeta, view_tensor
from shared_arena import Arena, Descriptor, Mappings

if TYPE_CHECKING:
    import torch


class Address(msgspec.Struct, frozen=True):
    """How another process of this host finds a staged version; travels to vLLM as plain values."""

    arena: Descriptor
    manifest: Manifest

    def plain(self) -> dict[str, Any]:
        return {"staged": msgspec.json.encode(self).decode()}


def read_staged(address: Address, mappings: Mappings) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, view) of every tensor, in another process. Views are valid until the next version is staged in the same arena: copy before."""
    buffer = mappings.attach(address.arena).tensor()
    for meta in address.manifest.tensors:
        yield meta.name, view_tensor(buffer, meta)


class Staged:
    """One version in an arena."""

    def __init__(self, arena: Arena, manifest: Manifest) -> None:
        self._arena, self.manifest = arena, manifest

    @property
    def weights(self) -> WeightsId:
        return self.manifest.weights

    @property
    def arena(self) -> Arena:
        return self._arena

    @property
    def address(self) -> Address:
        return Address(self._arena.descriptor(), self.manifest)

    def tensors(self) -> Iterator[tuple[TensorMeta, torch.Tensor]]:
        buffer = self._arena.tensor()
        for meta in self.manifest.tensors:
            yield meta, view_tensor(buffer, meta)


class Staging:
    """The version that serves, and room for the next."""

    def __init__(self) -> None:
        self._arenas = [Arena(user="vllm"), Arena(user="vllm")]
        self.serving: Staged | None = None

    def write(self, weights: WeightsId, tensors: Iterable[tuple[str, torch.Tensor]]) -> Staged:
        """Copy a version beside the one that serves; each tensor is copied when it is yielded."""
        free = next(arena for arena in self._arenas if self.serving is None or arena is not self.serving.arena)
        return Staged(free, copy_out(free, weights, tensors))

    def close(self) -> None:
        self.serving = None
        for arena in self._arenas:
            arena.close()

"""Weights in shared memory, where vLLM's worker processes read them: each loads its own part of every tensor, so nothing is sent to anybody.

What comes out of a host cache lies in shared memory already, and is held there; anything else is copied into an arena of our own. What serves now
stays where it is until its successor is loaded, for an engine that has to be started anew starts with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from asyncflow.contracts.weights import WeightsId
from checkpoint_engine.copy_out import copy_out
from checkpoint_engine.manifest import Manifest, TensorMeta, view_tensor
from checkpoint_engine.slot import Lease
from shared_arena import Arena, Descriptor, claimed

if TYPE_CHECKING:
    import torch


class Address(msgspec.Struct, frozen=True):
    """How another process of this host finds a staged version; travels to vLLM as plain values."""

    arena: Descriptor
    manifest: Manifest

    def plain(self) -> dict[str, Any]:
        return {"staged": msgspec.json.encode(self).decode()}


def read_staged(manifest: Manifest, source: Arena) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, view) of every tensor, in another process, where `source` is the version's memory, mapped privately. Copy what is to stay: later
    versions come into the same memory."""
    buffer = source.tensor()
    for meta in manifest.tensors:
        yield meta.name, view_tensor(buffer, meta)


def overlapping(model: torch.nn.Module, source: Arena) -> list[str]:
    """Parameters and buffers that lie in `source`, so would change with what comes there."""
    begin = source.array.ctypes.data
    named = itertools.chain(model.named_parameters(), model.named_buffers())
    return [name for name, tensor in named if tensor.device.type == "cpu" and begin <= tensor.data_ptr() < begin + source.nbytes]


class Staged:
    """One version in shared memory. `held`: the host cache's lease on it, where it lies there."""

    def __init__(self, arena: Arena, manifest: Manifest, held: Lease | None = None) -> None:
        self._arena, self.manifest, self._held = arena, manifest, held

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
        """Only to be read."""
        import torch

        buffer = torch.from_numpy(claimed(self._arena.array))
        for meta in self.manifest.tensors:
            yield meta, view_tensor(buffer, meta)

    def let_go(self) -> None:
        if self._held is not None:
            self._held.release()


class Staging:
    """The version that serves, and room for the next."""

    def __init__(self) -> None:
        self._arenas = [Arena(user="vllm"), Arena(user="vllm")]  # empty as long as all versions come out of a host cache
        self._serving: Staged | None = None

    @property
    def serving(self) -> Staged | None:
        return self._serving

    def serve(self, staged: Staged) -> None:
        """It is loaded: the one before is needed no more."""
        before, self._serving = self._serving, staged
        if before is not None and before is not staged:
            before.let_go()

    def stage(self, weights: WeightsId, tensors: Iterable[tuple[str, torch.Tensor]]) -> Staged:
        """A version beside the one that serves: held where it lies, or copied, each tensor when it is yielded."""
        held = tensors.keep() if isinstance(tensors, Lease) and tensors.weights == weights else None
        if held is not None:
            return Staged(held.arena, held.manifest, held)
        free = next(arena for arena in self._arenas if self._serving is None or arena is not self._serving.arena)
        return Staged(free, copy_out(free, weights, tensors))

    def close(self) -> None:
        if self._serving is not None:
            self._serving.let_go()
        self._serving = None
        for arena in self._arenas:
            arena.close()

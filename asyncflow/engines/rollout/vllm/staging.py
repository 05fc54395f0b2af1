"""Weights in shared memory, where vLLM's worker processes read them: each loads its own part of every tensor, so nothing is sent to anybody.

What comes out of a host cache lies in shared memory already, and is read there; anything else is copied into an arena of our own. An engine that has
to be started anew starts with what serves now, which therefore stays where it is until its successor is loaded. Where the host cache has a single
slot, that is where the successor comes: there a new engine starts with the cache's newest version, and waits for it while it is on its way.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from asyncflow.contracts.weights import WeightsId
from checkpoint_engine.cache import HostCache
from checkpoint_engine.copy_out import copy_out
from checkpoint_engine.manifest import Manifest, TensorMeta, view_tensor
from checkpoint_engine.slot import Lease
from shared_arena import Arena, Descriptor, claimed

if TYPE_CHECKING:
    import torch


LEASE_S = 30.0  # for a load; a version that takes longer stays whole as well, and its slot takes other memory


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
    """One version in shared memory. `source`: the host cache's lease on it, where it lies there; `kept`: it is held beyond that lease."""

    def __init__(self, arena: Arena, manifest: Manifest, source: Lease | None = None, kept: Lease | None = None) -> None:
        self._arena, self.manifest, self.source, self._kept = arena, manifest, source, kept

    @property
    def weights(self) -> WeightsId:
        return self.manifest.weights

    @property
    def arena(self) -> Arena:
        return self._arena

    @property
    def stays(self) -> bool:
        """Whether it can be loaded again as long as it serves; else its memory is soon another version's."""
        return self.source is None or self._kept is not None

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
        if self._kept is not None:
            self._kept.release()


class Staging:
    """The version that serves, or where to have it again, and room for the next."""

    def __init__(self) -> None:
        self._arenas = [Arena(user="vllm"), Arena(user="vllm")]  # empty as long as all versions come out of a host cache
        self.loaded: WeightsId | None = None
        self._serving: Staged | None = None  # None as well where it does not stay
        self._cache: HostCache | None = None  # it came from there, and does not stay

    def serves(self, staged: Staged) -> bool:
        return self._serving is staged

    def serve(self, staged: Staged) -> None:
        """It is loaded: the one before is needed no more."""
        before, self.loaded = self._serving, staged.weights
        self._serving, self._cache = (staged, None) if staged.stays or staged.source is None else (None, staged.source.cache)
        if before is not None and before is not staged:
            before.let_go()

    def stage(self, weights: WeightsId, tensors: Iterable[tuple[str, torch.Tensor]]) -> Staged:
        """A version beside the one that serves: read where it lies, as long as the caller holds it or longer, or copied, each tensor when it is
        yielded."""
        if isinstance(tensors, Lease) and tensors.weights == weights:
            if tensors.cache.spare == 0:
                return Staged(tensors.arena, tensors.manifest, source=tensors)
            if (kept := tensors.keep()) is not None:
                return Staged(kept.arena, kept.manifest, source=tensors, kept=kept)
        free = next(arena for arena in self._arenas if self._serving is None or arena is not self._serving.arena)
        return Staged(free, copy_out(free, weights, tensors))

    @contextlib.contextmanager
    def again(self, wait_s: float) -> Iterator[Staged | None]:
        """What a new engine starts with: the version that serves, or a newer one. None: nothing was loaded yet. Raises TimeoutError when nothing as
        new came within `wait_s` seconds."""
        if self._cache is None or self.loaded is None:
            yield self._serving
            return
        lease = self._cache.await_lease("vllm", LEASE_S, self.loaded, wait_s)
        if lease is None:
            raise TimeoutError(f"no weights as new as {self.loaded} came within {wait_s:g} s, and those that served are no longer in memory")
        try:
            yield Staged(lease.arena, lease.manifest, source=lease)
        finally:
            lease.release()

    def close(self) -> None:
        if self._serving is not None:
            self._serving.let_go()
        self.loaded = self._serving = self._cache = None
        for arena in self._arenas:
            arena.close()

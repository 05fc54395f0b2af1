"""What a slot of the host cache is, and the holds on it: of one writer, or of readers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from checkpoint_engine.loan import Loan
from checkpoint_engine.manifest import Manifest, view_tensor
from checkpoint_engine.weights_id import WeightsId
from shared_arena import Arena, claimed

if TYPE_CHECKING:
    import torch

    from checkpoint_engine.cache import HostCache


def new_arena() -> Arena:
    return Arena(user="weights")


@dataclass
class Slot:
    index: int
    arena: Arena = field(default_factory=new_arena)
    manifest: Manifest | None = None  # set: complete and verified
    writer: Reservation | None = None
    loan: Loan | None = None  # set: the memory is another cache's
    was_read: bool = False  # somebody held a lease on this version
    tainted: bool = False  # somebody may still touch the memory: other one is taken before the slot is used again
    leases: set[Lease] = field(default_factory=set)


@dataclass(eq=False)
class Lease:
    """A reader's hold on one complete version until `deadline` (the cache's clock, seconds)."""

    slot: Slot
    manifest: Manifest
    arena: Arena
    holder: str
    deadline: float
    cache: HostCache
    kept: bool = False  # nobody reads, somebody may want to read again: past its deadline it gives way only to who needs the slot

    def keep(self) -> Lease | None:
        """Hold the version longer than this lease: until `release`. Its slot is held as long as nothing newer is there and for the seconds that the
        cache gives then; its memory stays in any case. None: the cache does not have it any more."""
        return self.cache.keep(self)

    def release(self) -> None:
        self.cache.release(self)

    @property
    def weights(self) -> WeightsId:
        """What was leased: the label to load it under."""
        return self.manifest.weights

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self.tensors())

    def tensors(self) -> Iterable[tuple[str, torch.Tensor]]:
        """(name, view into the cache) in published order. A view is valid until the lease is released, and is everybody's weights: an operation in
        place on one ends the process with SIGSEGV where the slot is another process's, mapped here."""
        import torch

        buffer = torch.from_numpy(claimed(self.arena.array))
        for meta in self.manifest.tensors:
            yield meta.name, view_tensor(buffer, meta)


@dataclass(eq=False)
class Reservation:
    """A writer's hold on one slot, ended by `HostCache.complete` or `HostCache.abandon`."""

    slot: Slot
    arena: Arena
    weights: WeightsId

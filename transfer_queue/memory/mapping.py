"""A shard's arena as this process sees it: read-only for whoever reads, and a second time for whoever writes.

Mapped whole and once, so that pages that were touched stay warm. The memory outlives the shard and this connection for as long as an array looks at
it. Read-only means the hardware's: a write through a read-only array is an error, through a torch tensor over it a SIGSEGV.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref

import numpy as np

from shared_arena import Arena, ArenaUnreachable, Descriptor

CHUNK = 1 << 20  # bytes; of so many together it is known whether they were mapped for writing


class Mapping:
    """Bytes are counted from behind the arena's header page."""

    def __init__(self, descriptor: Descriptor) -> None:
        self._descriptor = descriptor
        arena = _attach(descriptor, writable=False)
        self.readable: np.ndarray = arena.array
        self.words: np.ndarray = arena.array.view(np.uint32)
        self.bytes = arena.array.data  # the same as `readable`, for whoever looks at a few numbers: an array costs more than they do
        self.note: np.ndarray = arena.note
        arena.close()

    def writable(self, offset: int, nbytes: int) -> np.ndarray:
        """Writable uint8 [nbytes] from `offset` on; what is written there faults in page by page."""
        return self._writable[0].array[offset : offset + nbytes]

    def room(self, offset: int, nbytes: int) -> np.ndarray:
        """Writable uint8 [nbytes] from `offset` on, its pages mapped: a shard hands out ranges that other writers warmed, and to fault them in here
        one by one takes twice as long as the copy."""
        arena, mapped = self._writable
        whole = mapped[-(-offset // CHUNK) : (offset + nbytes) // CHUNK]
        if not len(whole) or not whole.all():
            arena.populate(offset, nbytes)
            whole[:] = True
        return arena.array[offset : offset + nbytes]

    @functools.cached_property
    def _writable(self) -> tuple[Arena, np.ndarray]:
        """A second mapping, and by chunk whether its pages were mapped."""
        arena = _attach(self._descriptor, writable=True)
        arena.close_descriptor()
        return arena, np.zeros(-(-arena.nbytes // CHUNK), dtype=np.bool_)


_MAPPED: weakref.WeakValueDictionary[bytes, Mapping] = weakref.WeakValueDictionary()  # by nonce
_LOCK = threading.Lock()


def mapping(descriptor: Descriptor) -> Mapping:
    """One a process, however many connections use it: each page is faulted in once.

    Raises ArenaUnreachable where the descriptor does not lead to the arena (another host), or the arena is larger than we may map.
    """
    with _LOCK:
        found = _MAPPED.get(descriptor.nonce)
        if found is None:
            found = _MAPPED[descriptor.nonce] = Mapping(descriptor)
        return found


def _attach(descriptor: Descriptor, writable: bool) -> Arena:
    try:
        return Arena.attach(descriptor, writable)
    except OSError as error:  # ArenaUnreachable is one; an address space too small (ulimit -v) another
        raise ArenaUnreachable(str(error)) from error


def process_number() -> int:
    """Our pid as the owner of an arena that we could map knows it: that of the /proc through which we found it."""
    return int(os.readlink("/proc/self"))

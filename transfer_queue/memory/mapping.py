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


class Mapping:
    """Bytes are counted from behind the arena's header page."""

    def __init__(self, descriptor: Descriptor) -> None:
        self._descriptor = descriptor
        self.readable: np.ndarray = _array(descriptor, writable=False)

    @functools.cached_property
    def writable(self) -> np.ndarray:
        return _array(self._descriptor, writable=True)


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


def _array(descriptor: Descriptor, writable: bool) -> np.ndarray:
    """uint8 over the whole arena; it keeps the mapping alive, and nothing else stays open."""
    try:
        arena = Arena.attach(descriptor, writable)
    except OSError as error:  # ArenaUnreachable is one; an address space too small (ulimit -v) another
        raise ArenaUnreachable(str(error)) from error
    array = arena.array
    arena.close()
    return array


def process_number() -> int:
    """Our pid as the owner of an arena that we could map knows it: that of the /proc through which we found it."""
    return int(os.readlink("/proc/self"))

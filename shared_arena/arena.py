"""Anonymous shared memory that grows, passed to other processes by descriptor.

A memfd has no name in any file system: two runs on a host cannot collide, kill -9 of everyone leaves nothing behind, and the size of /dev/shm does
not matter. What stands behind "memfd:" in /proc/PID/fd and /proc/PID/maps tells a person who uses it.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import weakref
from typing import TYPE_CHECKING, Self

import numpy as np

from shared_arena.descriptor import HEADER_BYTES, NOTE_AT, PREFIX, Descriptor, new_nonce, open_arena

if TYPE_CHECKING:
    import torch

MADV_POPULATE_READ = 22  # of Linux; Python's mmap has no name for it. Of shared memory, what is mapped for reading can be written, too


class Arena:
    """`nbytes` of shared memory behind a header. Views keep the mapping alive; the descriptor closes with `close` or with the object.

    `note`: int64 [1] in the header, 0 at first: a word of the owner's to whoever attaches.
    """

    _private = False

    def __init__(self, nbytes: int = 0, *, user: str = "memory") -> None:
        """`user`: a word for whoever looks at the processes of a host, e.g. "weights"."""
        self.nonce = new_nonce()
        self._own(os.memfd_create(f"{PREFIX}{user}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)  # a shorter file would be a SIGBUS in whoever maps it
        os.ftruncate(self._fd, HEADER_BYTES + nbytes)
        os.pwrite(self._fd, self.nonce, 0)
        self._map(writable=True)

    @classmethod
    def attach(cls, descriptor: Descriptor, writable: bool = False, private: bool = False) -> Self:
        """Map another process's arena. `private`: what is written here, only this process sees, and it takes memory of its own. Raises
        ArenaUnreachable where the descriptor does not lead to it."""
        fd = open_arena(descriptor, writable)
        arena = cls.__new__(cls)
        arena.nonce = descriptor.nonce
        arena._private = private
        arena._own(fd)
        arena._map(writable or private)
        return arena

    def _own(self, fd: int) -> None:
        self._fd = fd
        self._finalizer = weakref.finalize(self, _close_quietly, fd)

    def _map(self, writable: bool) -> None:
        size = os.fstat(self._fd).st_size
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        kind = mmap.MAP_PRIVATE if self._private else mmap.MAP_SHARED
        memory = mmap.mmap(self._fd, size, kind, access)  # first: where memory is short, what was mapped before stays as it is
        self.nbytes = size - HEADER_BYTES
        self._writable = writable
        self._memory: mmap.mmap | None = memory
        self.array = np.frombuffer(self._memory, dtype=np.uint8)[HEADER_BYTES:]
        self.note = np.frombuffer(self._memory, dtype=np.int64, count=1, offset=NOTE_AT)

    def grow(self, nbytes: int) -> None:
        """Make room for `nbytes`. Older views stay valid (the pages are the same); take new ones to see the added room."""
        if nbytes > self.nbytes:
            self.refresh()  # by another process it may be larger already, and it cannot be made smaller
        if nbytes > self.nbytes:
            os.ftruncate(self._fd, HEADER_BYTES + nbytes)
            self._map(writable=True)

    def refresh(self) -> None:
        """See what another process added by `grow`."""
        if os.fstat(self._fd).st_size - HEADER_BYTES != self.nbytes:
            self._map(self._writable)

    def tensor(self) -> torch.Tensor:
        """uint8 [nbytes] over the same memory; an arena attached read-only has none (torch cannot express it)."""
        if not self._writable:
            raise ValueError("a read-only arena has no torch view: an in-place operation on one would be a SIGSEGV; read `array` instead")
        import torch

        return torch.from_numpy(self.array)

    def descriptor(self) -> Descriptor:
        return Descriptor(os.getpid(), self._fd, self.nonce)

    def resident_bytes(self) -> int:
        """Memory that its pages take, swapped ones included, whoever touched them."""
        return os.fstat(self._fd).st_blocks * 512

    def populate(self, offset: int, nbytes: int) -> None:
        """Map the pages under [offset, offset + nbytes) here at once. Written to one by one they fault one by one, which takes twice as long as the
        copy; asked for together, they are mapped sixteen at a time. Pages that nobody wrote yet take memory from now on, as a write would make them.
        Best effort (Linux 5.14): without it they fault as they are touched."""
        begin = (HEADER_BYTES + offset) // mmap.PAGESIZE * mmap.PAGESIZE
        if nbytes and self._memory is not None:
            with contextlib.suppress(OSError):
                self._memory.madvise(MADV_POPULATE_READ, begin, HEADER_BYTES + offset + nbytes - begin)

    def close_descriptor(self) -> None:
        """The mapping stays; `descriptor`, `grow` and `refresh` are no more."""
        self._finalizer()

    def close(self) -> None:
        """Close the descriptor and forget the mapping; pages go when the last view of any process does."""
        self._finalizer()
        self.array = np.zeros(0, dtype=np.uint8)
        self.note = np.zeros(1, dtype=np.int64)
        self._memory = None
        self.nbytes = 0


def _close_quietly(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)

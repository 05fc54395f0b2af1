"""Anonymous shared memory for one version of weights, passed to other processes by descriptor.

A memfd has no name: two runs on a host cannot collide, kill -9 of everyone leaves nothing behind, and the size of /dev/shm does not matter.
A process opens another's arena through /proc/PID/fd; it is believed only when the page-sized header carries the nonce that came with the offer
(in another PID namespace the same number is another process).
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import weakref
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    import torch

HEADER_BYTES = 4096
NAME = "asyncflow-weights"
_NONCE_BYTES = 16


class Descriptor(msgspec.Struct, frozen=True, array_like=True):
    """How another process of this host finds an arena."""

    pid: int
    fd: int
    nonce: bytes


class ArenaUnreachable(OSError):
    """The descriptor names nothing, or something else, from here: use the bytes path."""


class Arena:
    """`nbytes` of shared memory behind a header. Views keep the mapping alive; the descriptor closes with `close` or with the object."""

    def __init__(self, nbytes: int = 0) -> None:
        self.nonce = secrets.token_bytes(_NONCE_BYTES)
        self._own(os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)  # a shorter file would be a SIGBUS in whoever maps it
        os.ftruncate(self._fd, HEADER_BYTES)
        os.pwrite(self._fd, self.nonce, 0)
        self._map(writable=True)
        self.grow(nbytes)

    @classmethod
    def attach(cls, descriptor: Descriptor, writable: bool = False) -> Arena:
        """Map another process's arena. Raises ArenaUnreachable where the descriptor does not lead to it."""
        path = f"/proc/{descriptor.pid}/fd/{descriptor.fd}"
        try:
            if not os.readlink(path).startswith(f"/memfd:{NAME}"):  # never open what is not a memfd: a fifo would block
                raise ArenaUnreachable(f"{path} is not an arena")
            fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        except OSError as error:
            raise ArenaUnreachable(f"{path}: {error}") from error
        if os.pread(fd, _NONCE_BYTES, 0) != descriptor.nonce:
            os.close(fd)
            raise ArenaUnreachable(f"{path} is another arena: its nonce differs")
        arena = cls.__new__(cls)
        arena.nonce = descriptor.nonce
        arena._own(fd)
        arena._map(writable)
        return arena

    def _own(self, fd: int) -> None:
        self._fd = fd
        self._finalizer = weakref.finalize(self, _close_quietly, fd)

    def _map(self, writable: bool) -> None:
        size = os.fstat(self._fd).st_size
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self.nbytes = size - HEADER_BYTES
        self._writable = writable
        self.array = np.frombuffer(mmap.mmap(self._fd, size, mmap.MAP_SHARED, access), dtype=np.uint8)[HEADER_BYTES:]

    def grow(self, nbytes: int) -> None:
        """Make room for `nbytes`. Older views stay valid (the pages are the same); take new ones to see the added room."""
        if nbytes <= self.nbytes:
            return
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

    def close(self) -> None:
        """Close the descriptor and forget the mapping; pages go when the last view of any process does."""
        self._finalizer()
        self.array = np.zeros(0, dtype=np.uint8)
        self.nbytes = 0


class Mappings:
    """Arenas of another process that stay mapped between uses, the most recent `most`: mapping and faulting pages in costs more than the copy."""

    def __init__(self, most: int = 4) -> None:
        self._most = most
        self._by_nonce: dict[bytes, Arena] = {}

    def attach(self, descriptor: Descriptor) -> Arena:
        """The writable arena of `descriptor`. Raises ArenaUnreachable."""
        arena = self._by_nonce.pop(descriptor.nonce, None) or Arena.attach(descriptor, writable=True)
        arena.refresh()
        self._by_nonce[descriptor.nonce] = arena
        while len(self._by_nonce) > self._most:
            self._by_nonce.pop(next(iter(self._by_nonce))).close()
        return arena

    def close(self) -> None:
        while self._by_nonce:
            self._by_nonce.popitem()[1].close()


def _close_quietly(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)

"""An arena of a fixed, large size of which only the pages in use take memory: its owner hands out ranges of it and gives pages back."""

from __future__ import annotations

import fcntl
import mmap
import os

import numpy as np

from shared_arena.arena import Arena
from shared_arena.descriptor import HEADER_BYTES

PAGE = mmap.PAGESIZE
_SIZE_IS_FINAL = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0) | getattr(fcntl, "F_SEAL_SEAL", 0)


class SparseArena(Arena):
    """Shared memory; others `Arena.attach` it. Sealed: nobody can make it shorter (a SIGBUS in whoever maps it) or longer."""

    def __init__(self, nbytes: int, *, user: str) -> None:
        super().__init__(whole_pages(nbytes), user=user)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SIZE_IS_FINAL)

    def punch(self, offset: int, nbytes: int) -> None:
        """Give the whole pages [offset, offset + nbytes) back to the system, for everybody who maps them: they read as zeros until written again."""
        _check_pages(offset, nbytes, self.nbytes)
        if nbytes and self._memory is not None:
            self._memory.madvise(mmap.MADV_REMOVE, HEADER_BYTES + offset, nbytes)


class PrivateArena:
    """The same for this process alone, where the system has no memfd: nobody can attach it, so it has no descriptor."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = whole_pages(nbytes)
        self._memory = mmap.mmap(-1, self.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0))
        self.array = np.frombuffer(self._memory, dtype=np.uint8)
        self.note = np.zeros(1, dtype=np.int64)

    def punch(self, offset: int, nbytes: int) -> None:
        """Give the whole pages [offset, offset + nbytes) back to the system; what they held is gone."""
        _check_pages(offset, nbytes, self.nbytes)
        if nbytes:
            self._memory.madvise(mmap.MADV_DONTNEED, offset, nbytes)

    def descriptor(self) -> None:
        return None

    def resident_bytes(self) -> None:
        """Not told by every system."""
        return

    def close(self) -> None:
        """Forget the mapping; pages go with the last view."""
        self.array = np.zeros(0, dtype=np.uint8)
        self.nbytes = 0


def sparse(nbytes: int, *, user: str) -> SparseArena | PrivateArena:
    """Shared where the system has memfds (Linux), else private."""
    return SparseArena(nbytes, user=user) if hasattr(os, "memfd_create") else PrivateArena(nbytes)


def whole_pages(nbytes: int) -> int:
    """Rounded up, one page at least: an empty mapping is none."""
    return max(-(-nbytes // PAGE), 1) * PAGE


def _check_pages(offset: int, nbytes: int, most: int) -> None:
    if offset % PAGE or nbytes % PAGE or not 0 <= offset <= offset + nbytes <= most:
        raise ValueError(f"[{offset}, {offset} + {nbytes}) are no whole pages of {PAGE} bytes inside {most}: other bytes would go, too")

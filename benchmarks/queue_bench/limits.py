"""What the machine can do at best, without any queue: copies into warm shared memory, reads of mapped memory, one gather.

Every destination is warm: its pages were written before and stay mapped.
"""

from __future__ import annotations

import mmap
import os

import numpy as np

from benchmarks.queue_bench.payload import read_every_byte

ALIGN = 64


class WarmMemory:
    """A memfd with room for one array a size, mapped here; `fd` lets another process map it, too."""

    def __init__(self, sizes: list[int]) -> None:
        begins = np.concatenate([[0], np.cumsum([(size + ALIGN - 1) // ALIGN * ALIGN for size in sizes])]).tolist()
        self.nbytes = max(begins[-1], ALIGN)
        self.fd = os.memfd_create("queue-benchmark")
        os.ftruncate(self.fd, self.nbytes)
        self._map = mmap.mmap(self.fd, self.nbytes)
        everything = np.frombuffer(self._map, dtype=np.uint8)
        everything[:] = 1
        self.arrays = [everything[begin : begin + size] for begin, size in zip(begins, sizes, strict=False)]

    def copy_in(self, sources: list[np.ndarray]) -> None:
        """One memcpy an array."""
        for place, source in zip(self.arrays, sources, strict=True):
            np.copyto(place, source.reshape(-1).view(np.uint8))

    def read(self) -> int:
        return read_every_byte(self.arrays)

    def close(self) -> None:
        os.close(self.fd)


class Gather:
    """Columns whose rows lie in `pieces` places each, and a warm destination for them side by side."""

    def __init__(self, columns: list[np.ndarray], pieces: int) -> None:
        flat = [column.reshape(-1).view(np.uint8) for column in columns]
        self.source = WarmMemory([len(part) for column in flat for part in np.array_split(column, pieces)])
        self.source.copy_in([part for column in flat for part in np.array_split(column, pieces)])
        self.destination = [np.ones(len(column), dtype=np.uint8) for column in flat]
        self._pieces = pieces

    def run(self) -> None:
        """One memcpy a piece."""
        places = iter(self.source.arrays)
        for destination in self.destination:
            begin = 0
            for _ in range(self._pieces):
                piece = next(places)
                np.copyto(destination[begin : begin + len(piece)], piece)
                begin += len(piece)

    def close(self) -> None:
        self.source.close()

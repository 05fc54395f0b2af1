"""What the machine can do at best, without any engine: memcpy into warm shared memory, and memcpy into fresh pages with a digest."""

from __future__ import annotations

import mmap

import numpy as np
import xxhash

from benchmarks.queue_bench.limits import WarmMemory


class Copies:
    """Of `parts`, one memcpy a tensor."""

    def __init__(self, parts: list[np.ndarray]) -> None:
        self._parts = parts
        self._warm: WarmMemory | None = None

    def into_warm_shared_memory(self) -> None:
        """Warm from the second call on."""
        self._warm = self._warm or WarmMemory([part.nbytes for part in self._parts])
        self._warm.copy_in(self._parts)

    def into_fresh_pages_with_digest(self) -> None:
        """Hashed tensor by tensor, where the copy has just put it."""
        total = sum(part.nbytes for part in self._parts)
        fresh, end = np.frombuffer(mmap.mmap(-1, total), dtype=np.uint8), 0
        for part in self._parts:
            place = fresh[end : end + part.nbytes]
            np.copyto(place, part)
            xxhash.xxh3_128_digest(place.data)
            end += part.nbytes

"""An endless, seeded order of a finite number of rows: every epoch holds each row once, in an order of its own."""

from __future__ import annotations

import functools

import numpy as np
import xxhash


class EndlessOrder:
    """A pure function of (seed, position), on every machine and with every version of numpy: whoever is restarted, or asks for an earlier
    position, gets the same rows."""

    def __init__(self, count: int, seed: int) -> None:
        self._count, self._seed = count, seed
        self._epoch = functools.lru_cache(maxsize=2)(self._draw)  # a source goes on from one epoch into the next, and back for a lost prompt

    def __call__(self, position: int) -> int:
        """Row (0-based) at a position of the order."""
        epoch, place = divmod(position, self._count)
        return int(self._epoch(epoch)[place])

    def first(self, count: int) -> list[int]:
        """The rows at the first positions."""
        return [self(position) for position in range(count)]

    def _draw(self, epoch: int) -> np.ndarray:
        """[count] int64: rows by the hash of (seed, epoch, row)."""
        keys = [xxhash.xxh3_64_intdigest(f"{self._seed}/{epoch}/{row}".encode()) for row in range(self._count)]
        return np.argsort(np.array(keys, dtype=np.uint64), kind="stable")

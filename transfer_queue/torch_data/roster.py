"""What a loader and its worker processes know of one another at any moment: which incarnation each worker is, and whether it is still wanted.

Shared memory, written by one side each. A worker joins, writes its incarnation, then looks whether it is wanted; the loader says that it is not, then
reads the incarnations: so none is overlooked that joins while the loader ends.
"""

from __future__ import annotations

import torch

_BEGUN, _OVER, _FIRST = 0, 1, 2  # places: turns that were begun, turns that are over, the incarnation of worker 0


class Roster:
    def __init__(self, workers: int) -> None:
        self._slots = torch.zeros(_FIRST + workers, dtype=torch.int64).share_memory_()
        self._slots[_FIRST:] = -1

    # ------------------------------------------------------------ the loader's side

    def begin(self) -> None:
        """Another turn: one iteration over the loader."""
        self._slots[_FIRST:] = -1
        self._slots[_BEGUN] += 1

    def end(self) -> None:
        self._slots[_OVER] = self._slots[_BEGUN]

    def incarnations(self) -> dict[int, int]:
        """By worker, of those that joined in this turn."""
        return {worker: found for worker, found in enumerate(self._slots[_FIRST:].tolist()) if found >= 0}

    # ------------------------------------------------------------ a worker's side

    @property
    def turn(self) -> int:
        return int(self._slots[_BEGUN])

    def is_over(self, turn: int) -> bool:
        return int(self._slots[_OVER]) >= turn

    def joined(self, worker: int, incarnation: int) -> None:
        self._slots[_FIRST + worker] = incarnation

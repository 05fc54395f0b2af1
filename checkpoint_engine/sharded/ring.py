"""Memory for tensors that are gathered ahead: one buffer, taken and given back in order, so that the bound on it is its size."""

from __future__ import annotations

from collections import deque

import torch

ALIGN = 64
"""Every piece starts at a multiple of this many bytes: any dtype can be viewed in place."""


class Ring:
    """`nbytes` on `device`; pieces are given back in the order in which they were taken."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self._buffer = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self._taken: deque[tuple[int, int]] = deque()  # start, stop; never empty ones, so that a full ring is told from an empty one

    @property
    def nbytes(self) -> int:
        return self._buffer.nbytes

    def take(self, nbytes: int) -> torch.Tensor | None:
        """uint8 [nbytes], or None while there is no such room in one piece. An empty ring has room for all of it."""
        start = self._room(max(-(-nbytes // ALIGN), 1) * ALIGN)
        if start is None:
            return None
        return self._buffer[start : start + nbytes]

    def give(self) -> None:
        """The piece that was taken first is free."""
        self._taken.popleft()

    def _room(self, nbytes: int) -> int | None:
        first, last = (self._taken[0][0], self._taken[-1]) if self._taken else (0, (0, 0))
        wrapped = bool(self._taken) and last[0] < first
        candidates = [(last[1], first)] if wrapped else [(last[1], self.nbytes), (0, first)]
        for start, stop in candidates:
            if start + nbytes <= stop:
                self._taken.append((start, start + nbytes))
                return start
        return None


def ring_bytes(largest_bytes: int, pieces: int) -> int:
    """What a ring needs for `pieces` of the largest kind."""
    return pieces * max(-(-largest_bytes // ALIGN), 1) * ALIGN

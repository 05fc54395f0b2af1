"""Slots in ascending order of their keys: what is put and taken costs what it is and at most a chunk, whatever else lies here.

Put at the end and taken from the front, as a stream does, it is slices and joins of a few arrays.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

CHUNK = 1024  # most keys in one array

Chunk = tuple[np.ndarray, np.ndarray]  # keys ascending, their slots; never empty, never written to


class Shelf:
    """Keys are int64 and unlike one another."""

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []  # ascending
        self._firsts: list[int] = []  # first key of each
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def head(self) -> tuple[int, int]:
        """Smallest key, and its slot. IndexError without any."""
        keys, slots = self._chunks[0]
        return int(keys[0]), int(slots[0])

    def add(self, keys: np.ndarray, slots: np.ndarray) -> None:
        """`keys` ascend and are not here yet."""
        self._count += len(keys)
        if not self._chunks or keys[0] > self._chunks[-1][0][-1]:
            self._append(keys, slots)
            return
        for at, part, end in reversed(self._parts(keys)):  # from the end, so that the places of earlier chunks stay
            mine, theirs = self._chunks[at]
            joined = np.concatenate([mine, keys[part:end]])
            order = np.argsort(joined, kind="stable")
            self._replace(at, joined[order], np.concatenate([theirs, slots[part:end]])[order])

    def remove(self, keys: np.ndarray) -> None:
        """`keys` ascend and are here."""
        self._count -= len(keys)
        for at, part, end in reversed(self._parts(keys)):
            mine, theirs = self._chunks[at]
            gone = np.searchsorted(mine, keys[part:end])
            assert (mine[gone] == keys[part:end]).all(), "only what is here can be removed"
            if gone[-1] - gone[0] + 1 == len(gone):  # side by side
                left, right = slice(gone[0]), slice(gone[-1] + 1, None)
                self._replace(at, np.concatenate([mine[left], mine[right]]), np.concatenate([theirs[left], theirs[right]]))
                continue
            self._replace(at, np.delete(mine, gone), np.delete(theirs, gone))

    def peek(self, limit: int) -> Chunk:
        """The first `limit`, or all; they stay."""
        parts: list[Chunk] = []
        left = min(limit, self._count)
        for keys, slots in self._chunks:
            if left <= 0:
                break
            parts.append((keys[:left], slots[:left]))
            left -= len(keys)
        if len(parts) == 1:
            return parts[0]
        empty = np.zeros(0, dtype=np.int64)
        return np.concatenate([empty, *(keys for keys, _ in parts)]), np.concatenate([empty, *(slots for _, slots in parts)])

    def skip(self, count: int) -> None:
        """Take the first `count` away."""
        self._count -= count
        whole = 0
        while count and len(self._chunks[whole][0]) <= count:
            count -= len(self._chunks[whole][0])
            whole += 1
        del self._chunks[:whole], self._firsts[:whole]
        if count:
            keys, slots = self._chunks[0]
            self._chunks[0], self._firsts[0] = (keys[count:], slots[count:]), int(keys[count])

    def _append(self, keys: np.ndarray, slots: np.ndarray) -> None:
        if self._chunks and len(self._chunks[-1][0]) + len(keys) <= CHUNK:
            mine, theirs = self._chunks[-1]
            self._chunks[-1] = np.concatenate([mine, keys]), np.concatenate([theirs, slots])
            return
        for at in range(0, len(keys), CHUNK):
            self._chunks.append((keys[at : at + CHUNK], slots[at : at + CHUNK]))
            self._firsts.append(int(keys[at]))

    def _parts(self, keys: np.ndarray) -> list[tuple[int, int, int]]:
        """(chunk, begin, end): which of the keys belong to which chunk, later chunks last."""
        parts = []
        begin = 0
        while begin < len(keys):
            at = max(0, bisect_right(self._firsts, keys[begin]) - 1)
            end = len(keys) if at + 1 == len(self._chunks) else begin + int(np.searchsorted(keys[begin:], self._firsts[at + 1]))
            parts.append((at, begin, end))
            begin = end
        return parts

    def _replace(self, at: int, keys: np.ndarray, slots: np.ndarray) -> None:
        """Another content for one chunk, cut where it is too long."""
        if 0 < len(keys) <= CHUNK:
            self._chunks[at], self._firsts[at] = (keys, slots), int(keys[0])
            return
        pieces = [(keys[cut : cut + CHUNK // 2], slots[cut : cut + CHUNK // 2]) for cut in range(0, len(keys), CHUNK // 2)]
        self._chunks[at : at + 1] = pieces
        self._firsts[at : at + 1] = [int(piece[0][0]) for piece in pieces]

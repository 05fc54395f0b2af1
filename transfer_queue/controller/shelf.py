"""Slots in ascending order of their keys: what is put and taken costs what it is and at most a chunk, whatever else lies here.

Put at the end and taken from the front, as a stream does, it is written into room that is there, and counted away.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

CHUNK = 1024  # most keys in one chunk
ROOM = 64  # least keys that one has room for once it has grown

Items = tuple[np.ndarray, np.ndarray]  # keys ascending, their slots


class Chunk:
    """Items [begin, end) of its arrays; never none. Who peeked has views of them, so nothing before `end` is ever written to: what comes goes behind
    it, what goes leaves at the front, and anything else makes other arrays."""

    __slots__ = ("begin", "end", "keys", "slots")

    def __init__(self, keys: np.ndarray, slots: np.ndarray) -> None:
        self.keys, self.slots, self.begin, self.end = keys, slots, 0, len(keys)

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def first(self) -> int:
        found: int = self.keys.item(self.begin)
        return found

    @property
    def last(self) -> int:
        found: int = self.keys.item(self.end - 1)
        return found

    def items(self, limit: int = CHUNK) -> Items:
        """The first `limit`, or all."""
        end = min(self.end, self.begin + limit)
        return self.keys[self.begin : end], self.slots[self.begin : end]

    def grow(self, more: int) -> None:
        """Room for so many more behind the last."""
        if self.end + more <= len(self.keys):
            return
        count, (keys, slots) = len(self), self.items()
        room = max(ROOM, min(CHUNK, 2 * (count + more)))
        self.keys, self.slots = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
        self.keys[:count], self.slots[:count] = keys, slots
        self.begin, self.end = 0, count


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
        chunk = self._chunks[0]
        return chunk.first, int(chunk.slots[chunk.begin])

    def add(self, keys: np.ndarray, slots: np.ndarray) -> None:
        """`keys` ascend and are not here yet."""
        self._count += len(keys)
        if not self._chunks or keys[0] > self._chunks[-1].last:
            self._append(keys, slots)
            return
        for at, part, end in reversed(self._parts(keys)):  # from the end, so that the places of earlier chunks stay
            mine, theirs = self._chunks[at].items()
            joined = np.concatenate([mine, keys[part:end]])
            order = np.argsort(joined, kind="stable")
            self._replace(at, joined[order], np.concatenate([theirs, slots[part:end]])[order])

    def add_one(self, key: int, slot: int) -> None:
        """The same of one."""
        tail = self._chunks[-1] if self._chunks else None
        if tail is None or len(tail) >= CHUNK or key < tail.last:
            self.add(np.array([key]), np.array([slot]))
            return
        tail.grow(1)
        tail.keys[tail.end], tail.slots[tail.end] = key, slot
        tail.end += 1
        self._count += 1

    def remove(self, keys: np.ndarray) -> None:
        """`keys` ascend and are here."""
        if not len(keys):
            return
        head = self._chunks[0]
        if len(keys) <= len(head) and keys[0] == head.first and keys[-1] == head.keys[head.begin + len(keys) - 1]:
            self.skip(len(keys))  # for they are the first ones
            return
        self._count -= len(keys)
        for at, part, end in reversed(self._parts(keys)):
            mine, theirs = self._chunks[at].items()
            gone = np.searchsorted(mine, keys[part:end])
            assert (mine[gone] == keys[part:end]).all(), "only what is here can be removed"
            if gone[-1] - gone[0] + 1 == len(gone):  # side by side
                left, right = slice(gone[0]), slice(gone[-1] + 1, None)
                self._replace(at, np.concatenate([mine[left], mine[right]]), np.concatenate([theirs[left], theirs[right]]))
                continue
            self._replace(at, np.delete(mine, gone), np.delete(theirs, gone))

    def peek(self, limit: int) -> Items:
        """The first `limit`, or all; they stay."""
        parts: list[Items] = []
        left = min(limit, self._count)
        for chunk in self._chunks:
            if left <= 0:
                break
            parts.append(chunk.items(left))
            left -= len(chunk)
        if len(parts) == 1:
            return parts[0]
        empty = np.zeros(0, dtype=np.int64)
        return np.concatenate([empty, *(keys for keys, _ in parts)]), np.concatenate([empty, *(slots for _, slots in parts)])

    def skip(self, count: int) -> None:
        """Take the first `count` away."""
        self._count -= count
        whole = 0
        while count and len(self._chunks[whole]) <= count:
            count -= len(self._chunks[whole])
            whole += 1
        if whole:
            del self._chunks[:whole], self._firsts[:whole]
        if count:
            self._chunks[0].begin += count
            self._firsts[0] = self._chunks[0].first

    def _append(self, keys: np.ndarray, slots: np.ndarray) -> None:
        if self._chunks and len(self._chunks[-1]) + len(keys) <= CHUNK:
            tail = self._chunks[-1]
            tail.grow(len(keys))
            end = tail.end + len(keys)
            tail.keys[tail.end : end], tail.slots[tail.end : end] = keys, slots
            tail.end = end
            return
        for at in range(0, len(keys), CHUNK):
            self._chunks.append(Chunk(keys[at : at + CHUNK], slots[at : at + CHUNK]))
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
            self._chunks[at], self._firsts[at] = Chunk(keys, slots), int(keys[0])
            return
        pieces = [(keys[cut : cut + CHUNK // 2], slots[cut : cut + CHUNK // 2]) for cut in range(0, len(keys), CHUNK // 2)]
        self._chunks[at : at + 1] = [Chunk(*piece) for piece in pieces]
        self._firsts[at : at + 1] = [int(piece[0][0]) for piece in pieces]

"""The bytes that one write got: who wrote them, what is whose block's, and which memory comes free when only some of the blocks go.

Memory goes when its group goes (FAULTS 12), a page at a time, for pages are what memory is given back in: a page that blocks share goes with the last
of them, and the rests of pages that other extents share go with the extent.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from typing import Protocol

import numpy as np

PAGE = mmap.PAGESIZE


class Writer(Protocol):
    """A process that writes to the arena by itself."""

    ended: bool
    had: deque[int]  # where ranges began that it got, the last one last: it has them mapped


class Extent:
    """G blocks, numbered from `first`; block g has the bytes [marks[c, g], marks[c, g + 1]) of every column c, counted from the extent's begin."""

    __slots__ = ("_shared", "asked_bytes", "first", "groups", "head", "left", "marks", "nbytes", "offset", "owner", "source", "through", "writer")

    def __init__(self, first: int, owner: str, offset: int, marks: np.ndarray, source: bytes, writer: Writer | None, head: int = 0) -> None:
        """`marks`: int64 [C, G + 1]. `source`: the connection that asked for it. `writer`: who may write behind our back; None where nobody maps.
        `head`: bytes before it that go with it."""
        self.first, self.owner, self.offset, self.marks = first, owner, offset, marks
        self.nbytes = int(marks[-1, -1])
        self.asked_bytes = int((marks[:, -1] - marks[:, 0]).sum())  # padding not counted
        self.groups = self.left = marks.shape[1] - 1  # blocks of it, and those whose memory has not come back
        self.source, self.writer, self.head = source, writer, head
        self.through = False  # nobody writes to it any more: it came whole, or somebody reads it, so it was published
        self._shared: list[int] | None = None  # blocks' pieces that lie in each whole page, as long as it has not come back

    @property
    def blocks(self) -> range:
        return range(self.first, self.first + self.groups)

    def used_bytes(self, blocks: list[int]) -> int:
        """What these blocks were asked for, padding not counted."""
        if len(blocks) == self.groups:
            return self.asked_bytes
        groups = np.asarray(blocks) - self.first
        return int((self.marks[:, groups + 1] - self.marks[:, groups]).sum())

    def owns(self, block: int, start: int, stop: int) -> bool:
        """Whether [start, stop) lies inside the block's pieces, of which some may begin where the one before ends."""
        group = block - self.first
        if not 0 <= start <= stop <= self.nbytes:
            return False
        begins = self.marks[:, group].tolist()
        column = bisect_right(begins, start) - 1
        if start == stop or column < 0:
            return start == stop
        end = int(self.marks[column, group + 1])
        while end < stop and column + 1 < len(begins) and begins[column + 1] == end:
            column += 1
            end = int(self.marks[column, group + 1])
        return stop <= end

    def release(self, blocks: list[int]) -> list[tuple[int, int]]:
        """Ranges (begin in the arena, bytes) that come free with these blocks; each block is released once."""
        whole = self.left == self.groups == len(blocks)
        self.left -= len(blocks)
        if whole:
            return [(self.offset - self.head, self.head + self.nbytes)]
        first, last = -(-self.offset // PAGE), (self.offset + self.nbytes) // PAGE  # the whole pages inside
        ranges = list(self._pages(blocks, first, last)) if first < last else []
        if self.left == 0:
            ranges += self._rests(first, last)
        return ranges

    def _pages(self, blocks: list[int], first: int, last: int) -> Iterator[tuple[int, int]]:
        """Only the first and the last page of a piece can have others in them: only these are counted."""
        if self._shared is None:
            self._shared = self._count(first, last)
        groups = np.asarray(blocks) - self.first
        begins, ends = self.marks[:, groups].ravel() + self.offset, self.marks[:, groups + 1].ravel() + self.offset
        filled = begins < ends
        lows = np.maximum(begins[filled] // PAGE - first, 0).tolist()
        highs = np.minimum((ends[filled] - 1) // PAGE - first, last - first - 1).tolist()
        for low, high in zip(lows, highs, strict=True):
            if low > high:  # in a page that other extents share
                continue
            for page in {low, high}:
                self._shared[page] -= 1
            low, high = low + (self._shared[low] > 0), high - (self._shared[high] > 0)
            if low <= high:
                yield (first + low) * PAGE, (high - low + 1) * PAGE

    def _count(self, first: int, last: int) -> list[int]:
        begins, ends = self.marks[:, :-1].ravel() + self.offset, self.marks[:, 1:].ravel() + self.offset
        filled = begins < ends
        pages = last - first
        come = np.bincount(np.clip(begins[filled] // PAGE - first, 0, pages), minlength=pages + 1)
        gone = np.bincount(np.clip((ends[filled] - 1) // PAGE - first + 1, 0, pages), minlength=pages + 1)
        counts: list[int] = np.cumsum(come - gone)[:pages].tolist()
        return counts

    def _rests(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        begin, end = self.offset - self.head, self.offset + self.nbytes
        if first >= last:
            yield begin, end - begin
            return
        yield begin, first * PAGE - begin
        yield last * PAGE, end - last * PAGE

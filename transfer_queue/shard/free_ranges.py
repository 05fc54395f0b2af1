"""Free bytes of an arena as maximal ranges, found by place, by size, or by the whole pages in them: every operation is O(log ranges)."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict, SortedList


class FreeRanges:
    """Ranges [begin, end) that neither overlap nor touch: neighbours are one range."""

    def __init__(self, page: int) -> None:
        self._page = page
        self._ends: dict[int, int] = {}  # begin → end
        self._begins: dict[int, int] = {}  # end → begin
        self._sizes: SortedList[tuple[int, int]] = SortedList()  # (size, begin)
        self._paged: SortedDict[int, int] = SortedDict()  # begin of a range with whole pages → bytes of them
        self.nbytes = 0
        self.paged_bytes = 0  # in whole pages

    def add(self, begin: int, end: int) -> None:
        """[begin, end) becomes free; it must not be."""
        if begin >= end:
            return
        if end in self._ends:
            end = self.remove(end)
        if (before := self._begins.get(begin)) is not None:
            self.remove(before)
            begin = before
        self._ends[begin], self._begins[end] = end, begin
        self._sizes.add((end - begin, begin))
        self.nbytes += end - begin
        first, last = self._pages(begin, end)
        if first < last:
            self._paged[begin] = last - first
            self.paged_bytes += last - first

    def remove(self, begin: int) -> int:
        """Take the range that begins at `begin` out; returns its end."""
        end = self._ends.pop(begin)
        del self._begins[end]
        self._sizes.remove((end - begin, begin))
        self.nbytes -= end - begin
        self.paged_bytes -= self._paged.pop(begin, 0)
        return end

    def best_fit(self, nbytes: int) -> int | None:
        """Begin of the smallest range with room for `nbytes`, the lowest of several; None where none has."""
        turn = self._sizes.bisect_left((nbytes, -1))
        return self._sizes[turn][1] if turn < len(self._sizes) else None

    def has(self, begin: int, end: int) -> bool:
        """Whether [begin, end) lies in one range that has whole pages."""
        turn = self._paged.bisect_right(begin) - 1
        return turn >= 0 and end <= self._ends[self._paged.keys()[turn]]

    def take_out(self, begin: int, end: int) -> None:
        """[begin, end), which `has` found."""
        first = self._paged.keys()[self._paged.bisect_right(begin) - 1]
        last = self.remove(first)
        self.add(first, begin)
        self.add(end, last)

    def ending_at(self, end: int) -> int | None:
        """Begin of the range that ends at `end`."""
        return self._begins.get(end)

    def take_pages(self, most: int) -> tuple[int, int]:
        """Take at most `most` bytes of whole pages out, from the end of the highest range that has any. `most` ≥ a page."""
        begin = self._paged.keys()[-1]
        end = self.remove(begin)
        first, last = self._pages(begin, end)
        first = max(first, last - most // self._page * self._page)
        self.add(begin, first)
        self.add(last, end)
        return first, last

    def _pages(self, begin: int, end: int) -> tuple[int, int]:
        """The whole pages inside; first ≥ last where there are none."""
        return -(-begin // self._page) * self._page, end // self._page * self._page

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(begin, end) in order."""
        yield from sorted(self._ends.items())

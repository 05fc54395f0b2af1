"""Which bytes of the arena are free, and which of those are warm: a copy into pages that are there is ten times one into pages that are not.

Warm ranges were written to and freed; cold ones have no pages. So cold ranges are whole pages always, and what is left of a page is warm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from transfer_queue.shard.extents import aligned
from transfer_queue.shard.free_ranges import FreeRanges


class Space:
    """Ranges of an arena of `nbytes`, a multiple of `page`. Everything begins and ends at multiples of ALIGN."""

    def __init__(self, nbytes: int, page: int) -> None:
        self._page = page
        self.warm, self.cold = FreeRanges(page), FreeRanges(page)
        self.cold.add(0, nbytes)

    def take(self, nbytes: int, rather: Iterable[int] = ()) -> int | None:
        """Begin of a range for `nbytes` > 0, warm where one fits, else as warm as it comes; None where the arena has none so long. `rather`: where it
        should begin, the first of them that has warm room."""
        nbytes = aligned(nbytes)
        for begin in rather:
            if self.warm.has(begin, begin + nbytes):
                self.warm.take_out(begin, begin + nbytes)
                return begin
        fitting = self.warm.best_fit(nbytes)
        if fitting is not None:
            self.warm.add(fitting + nbytes, self.warm.remove(fitting))
            return fitting
        fresh = self.cold.best_fit(nbytes)
        return None if fresh is None else self._thaw(fresh, nbytes)

    def _thaw(self, fresh: int, nbytes: int) -> int:
        """From the cold range at `fresh`, after the warm bytes just before it, whose last page it may share."""
        warm = self.warm.ending_at(fresh)
        begin = fresh if warm is None else warm
        if warm is not None:
            self.warm.remove(warm)
        end = -(-(begin + nbytes) // self._page) * self._page
        self.cold.add(end, self.cold.remove(fresh))
        self.warm.add(begin + nbytes, end)
        return begin

    def give(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Ranges (begin, bytes), or parts of such, are free again, and warm. What was written together mostly lies and goes together, so neighbours
        are joined before anything is looked up."""
        begin = end = -1
        for start, nbytes in sorted(ranges):
            if start == end:
                end += aligned(nbytes)
                continue
            self.warm.add(begin, end)
            begin, end = start, start + aligned(nbytes)
        self.warm.add(begin, end)

    def cool(self, keep_bytes: int, most: int) -> Iterator[tuple[int, int]]:
        """Ranges (begin, bytes) of whole warm pages above `keep_bytes`, about `most` bytes in all: they count as cold, and the caller punches them.

        The highest go first, so that what is in use gathers at the low end and grows into longer ranges.
        """
        while most > 0 and (surplus := self.warm.paged_bytes - keep_bytes) > 0:
            begin, end = self.warm.take_pages(-(-min(surplus, most) // self._page) * self._page)
            self.cold.add(begin, end)
            most -= end - begin
            yield begin, end - begin

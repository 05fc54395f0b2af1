"""A map from whole numbers to whole numbers without an object an entry: dense pages, made where something is and dropped where nothing is left."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

BITS = 8  # of a key inside its page: neighbours share one, and a key gone wild costs 2 KiB
MASK = (1 << BITS) - 1
FEW = 8  # keys that are looked up one by one: array operations cost more than so many of these


class Paged:
    """Keys and values are int64; a key that is not there has the value `empty`."""

    def __init__(self, empty: int) -> None:
        self._empty = empty
        self._pages: dict[int, np.ndarray] = {}  # key >> BITS → [1 << BITS]
        self._used: dict[int, int] = {}  # entries of the page that are not empty

    def __bool__(self) -> bool:
        """Whether anything is there."""
        return bool(self._pages)

    def find(self, key: int) -> int:
        page = self._pages.get(key >> BITS)
        return self._empty if page is None else page.item(key & MASK)

    def get(self, keys: np.ndarray) -> np.ndarray:
        """[n] → [n]."""
        if len(keys) <= FEW:
            return np.array([self.find(key) for key in keys.tolist()], dtype=np.int64)
        values = np.full(len(keys), self._empty, dtype=np.int64)
        for number, where in _parts(keys):
            page = self._pages.get(number)
            if page is not None:
                values[where] = page[keys[where] & MASK]
        return values

    def add_all(self, keys: np.ndarray, more: np.ndarray | int) -> np.ndarray:
        """Add to each of the values; keys are unlike one another. Returns what they are then."""
        if len(keys) > FEW and (runs := _runs(keys)) is not None:
            left = np.empty(len(keys), dtype=np.int64)
            for number, at, where in runs:
                values = self._page(number)[at] + (more if isinstance(more, int) else more[where])
                left[where] = values
                self._write(number, at, values)
            return left
        left = self.get(keys) + more
        self.set(keys, left)
        return left

    def put(self, key: int, value: int) -> None:
        """`set` of one."""
        self._write_one(key >> BITS, key & MASK, value)

    def add(self, key: int, more: int) -> int:
        """`add_all` of one."""
        number, at = key >> BITS, key & MASK
        page = self._page(number)
        before: int = page.item(at)
        page[at] = left = before + more
        self._count(number, (before == self._empty) - (left == self._empty))
        return left

    def set(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Keys are unlike one another."""
        if len(keys) <= FEW:
            for key, value in zip(keys.tolist(), values.tolist(), strict=True):
                self.put(key, value)
            return
        if (runs := _runs(keys)) is not None:
            for number, at, run in runs:
                self._write(number, at, values[run])
            return
        for number, where in _parts(keys):
            self._write(number, keys[where] & MASK, values[where])

    def _write(self, number: int, at: np.ndarray | slice, values: np.ndarray) -> None:
        page = self._page(number)
        before = np.count_nonzero(page[at] != self._empty)
        page[at] = values
        self._count(number, int(np.count_nonzero(values != self._empty) - before))

    def _write_one(self, number: int, at: int, value: int) -> None:
        page = self._page(number)
        before: int = page.item(at)
        page[at] = value
        self._count(number, (before == self._empty) - (value == self._empty))

    def _page(self, number: int) -> np.ndarray:
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = np.full(1 << BITS, self._empty, dtype=np.int64)
            self._used[number] = 0
        return page

    def _count(self, number: int, more: int) -> None:
        self._used[number] += more
        if not self._used[number]:
            del self._pages[number], self._used[number]

    def keys(self) -> list[int]:
        """Those that are there, ascending. It looks at everything."""
        found: list[int] = self.all().tolist()
        return found

    def all(self) -> np.ndarray:
        """The same as an array."""
        parts = [(number << BITS) + np.flatnonzero(self._pages[number] != self._empty) for number in sorted(self._pages)]
        return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def _runs(keys: np.ndarray) -> list[tuple[int, slice, slice]] | None:
    """(page, where in it, where in `keys`) of keys that follow one another, as those of a stream do; None where they do not."""
    first, count = keys.item(0), len(keys)
    if keys.item(count - 1) - first + 1 != count or not (keys[1:] > keys[:-1]).all():
        return None
    runs = []
    begin = 0
    while begin < count:
        at = first + begin & MASK
        end = min(count, begin + MASK + 1 - at)
        runs.append((first + begin >> BITS, slice(at, at + end - begin), slice(begin, end)))
        begin = end
    return runs


def _parts(keys: np.ndarray) -> Iterator[tuple[int, np.ndarray | slice]]:
    """(page, places of its keys in `keys`)."""
    if not len(keys):
        return
    pages = keys >> BITS
    first = int(pages[0])
    if (pages == first).all():
        yield first, slice(None)
        return
    order = np.argsort(pages, kind="stable")
    ordered = pages[order]
    cuts = np.flatnonzero(np.diff(ordered)) + 1
    for where in np.split(order, cuts):
        yield int(pages[where[0]]), where

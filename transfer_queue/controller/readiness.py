"""What one consumer can have now, kept incrementally: an item enters when its last input column is committed and leaves when it is handed out.

The cost of every operation depends on the items it touches. Items of consumers that need weights are kept by the version of their newest token, so
that those which the taker's weights cannot serve are never walked over.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from transfer_queue.controller.group import Group, Row

Item = tuple[Group, Row | None]  # a row, or a whole group (None)
Order = tuple[int, int, int]
ItemKey = tuple[int, int]  # (gid, row), row -1 for the whole group


@dataclass(slots=True)
class Entry:
    order: Order
    gate: int
    group: Group
    row: Row | None


class ReadySet:
    """`by_version`: oldest group version first, then gid and row; else gid and row. `gated`: only items whose newest token <= the taker's weights."""

    def __init__(self, *, by_version: bool, gated: bool) -> None:
        self._by_version = by_version
        self._gated = gated
        self._entries: dict[ItemKey, Entry] = {}
        self._heaps: dict[int, list[tuple[Order, ItemKey]]] = {}  # gate -> heap; entries that left or moved go lazily
        self._counts: dict[int, int] = {}  # gate -> items
        self.rows = 0  # in all items

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, group: Group, row: Row | None) -> None:
        key = (group.gid, -1 if row is None else row.index)
        gate = 0 if not self._gated else row.newest if row is not None else group.newest()
        self._entries[key] = Entry(self._order(group, key), gate, group, row)
        self._counts[gate] = self._counts.get(gate, 0) + 1
        self.rows += len(group.rows) if row is None else 1
        self._push(key)

    def discard(self, gid: int, row: int) -> None:
        entry = self._entries.pop((gid, row), None)
        if entry is not None:
            self._left(entry)

    def reorder(self, group: Group) -> None:
        """The group's version changed."""
        if not self._by_version:
            return
        for row in (-1, *group.rows):
            entry = self._entries.get((group.gid, row))
            if entry is not None:
                entry.order = self._order(group, (group.gid, row))
                self._push((group.gid, row))

    def count(self, loaded: int | None) -> int:
        """Items that a taker with these weights could have now (`loaded` counts only where the set is gated)."""
        return sum(self._counts[gate] for gate in self._gates(loaded))

    def head(self, loaded: int | None) -> Item | None:
        """The next item in order; it stays."""
        best = self._best(loaded)
        return None if best is None else (self._entries[best].group, self._entries[best].row)

    def pop(self, limit: int, loaded: int | None) -> list[Item]:
        """Take up to `limit` items out, in order."""
        items: list[Item] = []
        while len(items) < limit and (key := self._best(loaded)) is not None:
            entry = self._entries.pop(key)
            self._left(entry)
            items.append((entry.group, entry.row))
        return items

    def _order(self, group: Group, key: ItemKey) -> Order:
        return (group.version if self._by_version else 0, key[0], key[1])

    def _push(self, key: ItemKey) -> None:
        entry = self._entries[key]
        heap = self._heaps.setdefault(entry.gate, [])
        heapq.heappush(heap, (entry.order, key))
        if len(heap) > 2 * self._counts[entry.gate] + 64:
            heap[:] = [(item.order, name) for name, item in self._entries.items() if item.gate == entry.gate]
            heapq.heapify(heap)

    def _left(self, entry: Entry) -> None:
        self.rows -= len(entry.group.rows) if entry.row is None else 1
        self._counts[entry.gate] -= 1
        if not self._counts[entry.gate]:
            del self._counts[entry.gate], self._heaps[entry.gate]

    def _gates(self, loaded: int | None) -> list[int]:
        if not self._gated:
            return list(self._counts)
        return [gate for gate in self._counts if loaded is not None and gate <= loaded]

    def _best(self, loaded: int | None) -> ItemKey | None:
        heads = [head for gate in self._gates(loaded) if (head := self._head(gate)) is not None]
        return min(heads)[1] if heads else None

    def _head(self, gate: int) -> tuple[Order, ItemKey] | None:
        heap = self._heaps[gate]
        while heap:
            order, key = heap[0]
            entry = self._entries.get(key)
            if entry is not None and entry.order == order and entry.gate == gate:
                return heap[0]
            heapq.heappop(heap)
        return None

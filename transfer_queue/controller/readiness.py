"""What one consumer can have now, kept incrementally: an item enters when its last input column is committed and leaves when it is handed out.

Items are slots, of rows or of groups, under the key (gid, row). They lie in shelves, one for each version of a group and of a newest token,
so that those which the taker's weights cannot serve are never walked over. A batch that comes or goes costs a few operations on arrays.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from transfer_queue.controller.shelf import Shelf


class Lane:
    """Items of one gate, by group version."""

    def __init__(self) -> None:
        self.count = 0
        self._shelves: dict[int, Shelf] = {}
        self._versions: list[int] = []  # heap of those that have a shelf, and of some that no longer have

    def version(self) -> int | None:
        """Of the oldest item."""
        while self._versions and self._versions[0] not in self._shelves:
            heapq.heappop(self._versions)
        return self._versions[0] if self._versions else None

    def counts(self) -> dict[int, int]:
        """Items by version."""
        return {version: len(shelf) for version, shelf in self._shelves.items()}

    def add(self, version: int, keys: np.ndarray, slots: np.ndarray) -> None:
        shelf = self._shelves.get(version)
        if shelf is None:
            shelf = self._shelves[version] = Shelf()
            heapq.heappush(self._versions, version)
            if len(self._versions) > 2 * len(self._shelves) + 64:
                self._versions = sorted(self._shelves)
        shelf.add(keys, slots)
        self.count += len(keys)

    def add_one(self, version: int, key: int, slot: int) -> None:
        """The same of one."""
        shelf = self._shelves.get(version)
        if shelf is None:
            self.add(version, np.array([key]), np.array([slot]))
            return
        shelf.add_one(key, slot)
        self.count += 1

    def remove(self, version: int, keys: np.ndarray) -> None:
        self._shelves[version].remove(keys)
        self._left(version, len(keys))

    def peek(self, version: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
        return self._shelves[version].peek(limit) if version in self._shelves else (np.zeros(0, np.int64), np.zeros(0, np.int64))

    def skip(self, version: int, count: int) -> None:
        if count:
            self._shelves[version].skip(count)
            self._left(version, count)

    def _left(self, version: int, count: int) -> None:
        self.count -= count
        if not len(self._shelves[version]):
            del self._shelves[version]


class ReadySet:
    """`by_version`: oldest group version first (`newest_first`: newest), then gid and row; else gid and row. `gated`: only items whose newest token
    <= the taker's weights."""

    def __init__(self, *, by_version: bool, gated: bool, newest_first: bool = False) -> None:
        self.by_version = by_version
        self._gated = gated
        self._sign = -1 if newest_first else 1  # of the versions that shelves stand under: the smallest is the next
        self._lanes: dict[int, Lane] = {}  # by gate
        self._count = 0

    def __len__(self) -> int:
        """Items."""
        return self._count

    def add(self, keys: np.ndarray, slots: np.ndarray, versions: np.ndarray, newest: np.ndarray) -> None:
        """[n] each: items that are not here yet, their groups' versions and the versions of their newest tokens."""
        self._count += len(keys)
        for (gate, version), where in self._sorted(keys, versions, newest):
            self._lane(gate).add(version, keys[where], slots[where])

    def add_alike(self, keys: np.ndarray, slots: np.ndarray, version: int, newest: int) -> None:
        """The same of items, at least one, that have these in common; `keys` ascend."""
        self._count += len(keys)
        self._lane(newest if self._gated else 0).add(self._sign * version if self.by_version else 0, keys, slots)

    def add_one(self, key: int, slot: int, version: int, newest: int) -> None:
        """The same of one."""
        self._count += 1
        self._lane(newest if self._gated else 0).add_one(self._sign * version if self.by_version else 0, key, slot)

    def _lane(self, gate: int) -> Lane:
        lane = self._lanes.get(gate)
        if lane is None:
            lane = self._lanes[gate] = Lane()
        return lane

    def remove(self, keys: np.ndarray, versions: np.ndarray, newest: np.ndarray) -> None:
        """Items that are here, named as they were when they came."""
        self._count -= len(keys)
        for (gate, version), where in self._sorted(keys, versions, newest):
            self._lanes[gate].remove(version, keys[where])
            if not self._lanes[gate].count:
                del self._lanes[gate]

    def count(self, loaded: int | None) -> int:
        """Items that a taker with these weights could have now (`loaded` counts only where the set is gated)."""
        return sum(lane.count for lane in self._able(loaded).values()) if self._gated else self._count

    def version(self, loaded: int | None) -> int | None:
        """Of the next item in order, where that goes by version; else 0 for any."""
        found = min((version for lane in self._able(loaded).values() if (version := lane.version()) is not None), default=None)
        return None if found is None else self._sign * found

    def counts(self, loaded: int | None) -> dict[int, int]:
        """Items by version, in order, where that goes by version; else all under 0. It costs as much as there are versions."""
        found: dict[int, int] = {}
        for lane in self._able(loaded).values():
            for version, count in lane.counts().items():
                found[version] = found.get(version, 0) + count
        return {self._sign * version: found[version] for version in sorted(found)}

    def peek(self, limit: int, loaded: int | None, only: int | None = None) -> np.ndarray:
        """Slots of the first `limit` items in order, which stay; `only`: of this version."""
        parts, lanes = [np.zeros(0, dtype=np.int64)], self._able(loaded)
        for version in self.counts(loaded) if only is None else [only]:
            if limit <= 0:
                break
            parts.append(_first(lanes, self._sign * version, limit)[0])
            limit -= len(parts[-1])
        return np.concatenate(parts)

    def pop(self, limit: int, loaded: int | None) -> np.ndarray:
        """Take up to `limit` items out; their slots, in order."""
        parts = []
        while limit > 0 and (version := self.version(loaded)) is not None:
            parts.append(self.pop_version(version, limit, loaded))
            limit -= len(parts[-1])
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype=np.int64), *parts])

    def pop_version(self, version: int, limit: int, loaded: int | None) -> np.ndarray:
        """The same, of one version only."""
        lanes, version = self._able(loaded), self._sign * version
        slots, counts = _first(lanes, version, limit)
        self._count -= len(slots)
        for (gate, lane), count in zip(list(lanes.items()), counts, strict=True):
            lane.skip(version, count)
            if not lane.count:
                del self._lanes[gate]
        return slots

    def _able(self, loaded: int | None) -> dict[int, Lane]:
        if not self._gated:
            return self._lanes
        return {gate: lane for gate, lane in self._lanes.items() if loaded is not None and gate <= loaded}

    def _sorted(self, keys: np.ndarray, versions: np.ndarray, newest: np.ndarray) -> Iterator[tuple[tuple[int, int], np.ndarray | slice]]:
        """((gate, version), which of the items, in order)."""
        if not len(keys):
            return
        versions = self._sign * versions
        gate, version = int(newest[0]) if self._gated else 0, int(versions[0]) if self.by_version else 0
        if len(keys) == 1 or ((not self._gated or (newest == gate).all()) and (not self.by_version or (versions == version).all())):
            yield (gate, version), slice(None) if (keys[1:] > keys[:-1]).all() else np.argsort(keys)
            return
        gates, versions = newest if self._gated else np.zeros_like(keys), versions if self.by_version else np.zeros_like(keys)
        order = np.lexsort((keys, versions, gates))
        cuts = np.flatnonzero((np.diff(gates[order]) != 0) | (np.diff(versions[order]) != 0)) + 1
        for where in np.split(order, cuts):
            yield (int(gates[where[0]]), int(versions[where[0]])), where


def _first(lanes: dict[int, Lane], version: int, limit: int) -> tuple[np.ndarray, list[int]]:
    """(slots of the first items under this version, how many of them are in each of the lanes; at least one lane)."""
    firsts = [lane.peek(version, limit) for lane in lanes.values()]
    counts = [len(keys) for keys, _ in firsts]
    if len(firsts) == 1:
        return firsts[0][1], counts
    order = np.argsort(np.concatenate([keys for keys, _ in firsts]))[:limit]
    slots = np.concatenate([slots for _, slots in firsts])[order]
    return slots, np.bincount(np.repeat(np.arange(len(firsts)), counts)[order], minlength=len(firsts)).tolist()

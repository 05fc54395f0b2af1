"""A multiset of versions that knows its smallest: what `wait` asks before a newer group may be taken."""

from __future__ import annotations

import heapq

import numpy as np


class VersionCount:
    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._heap: list[int] = []  # every version counted, and some that no longer are

    def add_all(self, versions: np.ndarray) -> None:
        for version, times in _counted(versions):
            self.add(version, times)

    def add(self, version: int, times: int = 1) -> None:
        if version not in self._counts:
            heapq.heappush(self._heap, version)
            if len(self._heap) > 2 * len(self._counts) + 64:
                self._heap = [*self._counts, version]
                heapq.heapify(self._heap)
        self._counts[version] = self._counts.get(version, 0) + times

    def remove_all(self, versions: np.ndarray) -> None:
        for version, times in _counted(versions):
            left = self._counts[version] - times
            if left:
                self._counts[version] = left
            else:
                del self._counts[version]

    def min(self) -> int | None:
        while self._heap and self._heap[0] not in self._counts:
            heapq.heappop(self._heap)
        # a version that went and came back is in the heap twice: equal entries do no harm, `add` bounds them
        return self._heap[0] if self._heap else None

    def __len__(self) -> int:
        return sum(self._counts.values())


def _counted(versions: np.ndarray) -> list[tuple[int, int]]:
    """(version, how often)."""
    if not len(versions):
        return []
    if len(versions) == 1 or (versions == versions[0]).all():
        return [(int(versions[0]), len(versions))]
    found, times = np.unique(versions, return_counts=True)
    return list(zip(found.tolist(), times.tolist(), strict=True))

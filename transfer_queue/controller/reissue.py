"""Groups that lost their producer and wait for another one: oldest version first, before any new prompt."""

from __future__ import annotations

import heapq

from transfer_queue.controller.group import Group
from transfer_queue.controller.store import Store


class ReissueQueue:
    """A group's version cannot change while it waits here: it has no attempt, and its rows are fixed, unless a shard is lost (`remove`)."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Group]] = []  # (version, gid, life)

    def push(self, group: Group) -> None:
        heapq.heappush(self._heap, (group.version, group.gid, group.life, group))

    def head(self) -> Group | None:
        while self._heap and not self._heap[0][3].open:
            heapq.heappop(self._heap)
        return self._heap[0][3] if self._heap else None

    def pop(self) -> Group:
        return heapq.heappop(self._heap)[3]

    def remove(self, gids: set[int]) -> None:
        """Their versions are about to change; they may come again."""
        self._heap = [entry for entry in self._heap if entry[3].open and entry[1] not in gids]
        heapq.heapify(self._heap)

    def freeze(self) -> list[tuple[int, int, int]]:
        """(version, gid, life) of those that wait, in order."""
        return sorted(entry[:3] for entry in self._heap if entry[3].open)

    def thaw(self, frozen: list[tuple[int, int, int]], store: Store) -> None:
        self._heap = [(version, gid, life, store[gid]) for version, gid, life in frozen]

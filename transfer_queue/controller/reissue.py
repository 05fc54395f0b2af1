"""Groups that lost their producer and wait for another one: oldest version first, before any new prompt."""

from __future__ import annotations

import heapq

from transfer_queue.controller.group import Group


class ReissueQueue:
    """A group's version cannot change while it waits here: it has no attempt, and its rows are fixed."""

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

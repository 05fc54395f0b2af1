"""The trainer: fills its batch as the queue's terminal consumer does, trains it mini-batch by mini-batch as they fill, and commits."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable

from asyncflow.sizing.costs import CostTable
from asyncflow.sizing.model.clock import SimClock
from asyncflow.sizing.model.group import SimGroup


class SimTrainer:
    """`ordered` (policy wait): a group is taken only while no open group of an older version remains outside the batch."""

    def __init__(
        self, costs: CostTable, devices: int, ordered: bool, whole: bool, clock: SimClock, on_batch: Callable[[list[SimGroup]], None]
    ) -> None:
        """`whole`: the batch is taken in one piece, as at staleness 0."""
        self.busy_s = 0.0
        self.outside: Counter[int] = Counter()  # version → open groups that are not in the batch
        self._costs, self._rate = costs, costs.train.tokens_per_s * devices
        self._ordered, self._piece = ordered, costs.batch_groups if whole else costs.train.minibatch_groups
        self._clock, self._on_batch = clock, on_batch
        self._ready: list[tuple[int, int, SimGroup]] = []
        self._batch: list[SimGroup] = []
        self._busy = False

    def put(self, group: SimGroup) -> None:
        heapq.heappush(self._ready, (group.version, group.gid, group))
        self.start()

    def pause(self, seconds: float) -> None:
        """After a commit, before the next batch."""
        if seconds:
            self._work(seconds, self.start)

    def start(self) -> None:
        """Train the next piece of the batch if it can be taken now."""
        if self._busy or len(self._ready) < self._needed():
            return
        piece = self._take(self._needed())
        if piece:
            self._batch += piece
            tokens = sum(self._costs.row_tokens(length) for group in piece for length in group.lengths)
            minibatches = -(-len(piece) // self._costs.train.minibatch_groups)
            self._work(tokens / self._rate + minibatches * self._costs.train.minibatch_s, self._trained)

    def _needed(self) -> int:
        return min(self._piece, self._costs.batch_groups - len(self._batch))

    def _take(self, count: int) -> list[SimGroup]:
        """All or nothing, oldest version first."""
        taken: list[SimGroup] = []
        while self._ready and len(taken) < count:
            version, _, group = self._ready[0]
            if not group.open:
                heapq.heappop(self._ready)
            elif self._ordered and version > min(self.outside):
                break
            else:
                heapq.heappop(self._ready)
                self.leave(version)
                taken.append(group)
        if len(taken) < count:
            for group in taken:
                heapq.heappush(self._ready, (group.version, group.gid, group))
                self.outside[group.version] += 1
            return []
        for group in taken:
            group.leased = True
        return taken

    def leave(self, version: int) -> None:
        """A group of this version is outside the batch no more."""
        self.outside[version] -= 1
        if not self.outside[version]:
            del self.outside[version]

    def _work(self, seconds: float, then: Callable[[], None]) -> None:
        def done() -> None:
            self._busy = False
            self.busy_s += seconds
            then()

        self._busy = True
        self._clock.at(self._clock.now + seconds, done)

    def _trained(self) -> None:
        if len(self._batch) == self._costs.batch_groups:
            batch, self._batch = self._batch, []
            self._on_batch(batch)
        self.start()

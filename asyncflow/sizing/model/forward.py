"""A forward stage: workers of one device each, that take finished rows, oldest version first, a few at a time."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from asyncflow.sizing.costs import CostTable, Work
from asyncflow.sizing.model.clock import SimClock
from asyncflow.sizing.model.group import SimGroup

Row = tuple[int, int, int, SimGroup]  # (group version, gid, sample, group)


class ForwardStage:
    """A free worker has the newest weights, so no row waits for any: what a replica has sampled from was published before."""

    def __init__(self, costs: CostTable, work: Work, workers: int, pause_s: float, clock: SimClock, on_done: Callable[[SimGroup], None]) -> None:
        """`pause_s`: what loading a version takes; 0 also for a stage whose weights are frozen."""
        self.busy_s = 0.0
        self._costs, self._work, self._pause_s = costs, work, pause_s
        self._clock, self._on_done = clock, on_done
        self._idle = [0] * workers  # the version that each free worker has loaded
        self._ready: list[Row] = []
        self._version = 0

    def put(self, group: SimGroup, sample: int) -> None:
        heapq.heappush(self._ready, (group.version, group.gid, sample, group))
        self._serve()

    def publish(self, version: int) -> None:
        """New weights: every worker loads them when it is free."""
        self._version = version
        idle, self._idle = self._idle, []
        for loaded in idle:
            self._free(loaded)

    def _free(self, loaded: int) -> None:
        """A worker loads what is new before it takes rows."""
        if loaded < self._version and self._pause_s:
            version = self._version
            self._clock.at(self._clock.now + self._pause_s, lambda: self._free(version))
        else:
            self._idle.append(self._version)
            self._serve()

    def _serve(self) -> None:
        while self._idle and self._ready and (rows := self._take()):
            self._idle.pop()
            tokens = sum(self._costs.row_tokens(group.lengths[sample]) for _, _, sample, group in rows)
            self._call(rows, self._work.call_s + tokens / self._work.tokens_per_s)

    def _take(self) -> list[Row]:
        """The next rows whose groups were not dropped meanwhile."""
        rows: list[Row] = []
        while self._ready and len(rows) < self._costs.forward_rows:
            row = heapq.heappop(self._ready)
            if row[3].open:
                rows.append(row)
        return rows

    def _call(self, rows: list[Row], seconds: float) -> None:
        version = self._version
        self._clock.at(self._clock.now + seconds, lambda: self._done(version, rows, seconds))

    def _done(self, loaded: int, rows: list[Row], seconds: float) -> None:
        self.busy_s += seconds
        self._free(loaded)
        for _, _, _, group in rows:
            if group.open:  # else it was dropped meanwhile, and the write-back is refused
                self._on_done(group)

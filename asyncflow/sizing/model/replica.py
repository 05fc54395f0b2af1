"""One rollout replica: continuous batching, advanced from finish to finish instead of step by step.

Every running row gets one token a step, so all share one decode clock (steps done); a row that starts at clock c with length l ends at c + l. Steps
take `step_s + per_running_s · running`, and `running` changes only at an admission or a finish: in between the clock runs linearly.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from asyncflow.sizing.costs import CostTable
from asyncflow.sizing.model.clock import SimClock
from asyncflow.sizing.model.group import SimGroup

SLACK = 1e-6  # steps: rounding of the clock
Finished = Callable[["Replica", list[tuple[SimGroup, int]]], None]


class Replica:
    def __init__(self, index: int, costs: CostTable, clock: SimClock, on_finished: Finished, on_loaded: Callable[[Replica], None]) -> None:
        self.index, self.loaded, self.parked = index, 0, False
        self._busy_s = 0.0  # up to `_at`
        self._decode, self._prefill_s, self._clock = costs.decode, costs.prefill_s, clock
        self._pause_s = costs.pause.seconds if "rollout" in costs.pause.who else 0.0
        self._on_finished, self._on_loaded = on_finished, on_loaded
        self._rows: list[tuple[float, int, int, SimGroup]] = []  # (end on the decode clock, gid, sample, group), a heap
        self._steps = 0.0  # the decode clock at time `_at`
        self._at = 0.0  # in the future while prefill or a pause blocks decode
        self._stamp = 0  # of the newest scheduled finish: older ones are void
        self._wanted = 0
        self._loading = False

    @property
    def busy_s(self) -> float:
        """Seconds up to now in which it prefilled, decoded or loaded."""
        self._advance()
        return self._busy_s - (self._at - self._clock.now)

    @property
    def next_version(self) -> int:
        """Which weights the next token is made with: nothing decodes between the start of a load and its end."""
        return self._wanted if self._loading else self.loaded

    @property
    def free(self) -> int:
        return self._decode.max_running - len(self._rows)

    def admit(self, group: SimGroup) -> None:
        """Prefill its prompt for every row, then decode them with the others."""
        self._advance()
        self._stall(self._prefill_s * len(group.lengths))
        for sample, length in enumerate(group.lengths):
            heapq.heappush(self._rows, (self._steps + length, group.gid, sample, group))
        self._schedule()

    def cancel(self, group: SimGroup) -> None:
        self._advance()
        self._rows = [row for row in self._rows if row[3] is not group]
        heapq.heapify(self._rows)
        self._schedule()

    def load(self, version: int) -> None:
        """Take in new weights after what blocks now; a version that comes during a load is taken after it, and only the newest."""
        self._wanted = version
        if self._loading:
            return
        self._loading = True
        self._advance()
        self._stall(self._pause_s)
        self._schedule()
        self._clock.at(self._at, lambda: self._loaded(version))

    def _loaded(self, version: int) -> None:
        self.loaded, self._loading = version, False
        if self._wanted > version:
            self.load(self._wanted)
        self._on_loaded(self)

    def _advance(self) -> None:
        elapsed = self._clock.now - self._at
        if elapsed > 0:
            if self._rows:
                self._steps += elapsed / self._step_s()
                self._busy_s += elapsed
            self._at = self._clock.now

    def _stall(self, seconds: float) -> None:
        self._at += seconds
        self._busy_s += seconds

    def _step_s(self) -> float:
        return self._decode.step_s + self._decode.per_running_s * len(self._rows)

    def _schedule(self) -> None:
        self._stamp += 1
        if self._rows:
            stamp, left = self._stamp, max(0.0, self._rows[0][0] - self._steps)
            self._clock.at(self._at + left * self._step_s(), lambda: self._finish(stamp))

    def _finish(self, stamp: int) -> None:
        if stamp != self._stamp:
            return
        self._advance()
        finished = []
        while self._rows and self._rows[0][0] <= self._steps + SLACK:
            _, _, sample, group = heapq.heappop(self._rows)
            finished.append((group, sample))
        self._schedule()
        self._on_finished(self, finished)

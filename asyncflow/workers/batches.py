"""How the trainer gets its global batch: streamed as groups become ready, or whole and in canonical order.

What a lost shard took with it goes back to the queue, which has it made again or drops it, and the batch is filled up: nothing is computed from a
lease before all of it was read.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import numpy as np

from asyncflow.contracts.batch import StageBatch
from asyncflow.contracts.stage import Stage
from asyncflow.workers.context import REPLY_S, WorkerContext
from asyncflow.workers.stage import IDLE_S, stage_batch
from transfer_queue.errors import Gone
from transfer_queue.messages import OkTaken, Rows, unpacked


class BatchStream:
    """Micro-batches of whole groups of one step. After the iteration `leases` holds what `commit` must name.

    canonical: wait for the whole batch and go by gid, so that the order of arrival leaves no trace (staleness 0, bit for bit).
    """

    def __init__(self, context: WorkerContext, stage: Stage, micro_groups: int, canonical: bool, on_wait: Callable[[], bool]) -> None:
        """`on_wait` is called before every wait for data. False: it has waited itself and did not get done, so it is called again at once."""
        self._context, self._stage, self._micro_groups, self._canonical, self._on_wait = context, stage, micro_groups, canonical, on_wait
        self.leases: list[int] = []
        self._groups: list[int] = []  # of each lease
        self.complete = False  # the whole batch of the step was handed out
        self.done = False  # the run needs no further batch

    @property
    def groups(self) -> int:
        return sum(self._groups)

    def micro_batches(self, step: int) -> Iterator[StageBatch]:
        self.leases, self._groups, self.complete = [], [], False
        if self._canonical:
            yield from self._whole(step)
            return
        while (taken := self._take(step, self._micro_groups)) is not None:
            try:
                batch = self._read(taken.rows)
            except Gone:
                self._give_back()
                continue
            yield batch
            if self.complete:
                return

    def _whole(self, step: int) -> Iterator[StageBatch]:
        """Read as a whole before the first is computed with: arrays of what was read stay, whatever becomes of the shards."""
        while (rows := self._take_all(step)) is not None:
            canonical = rows.picked(np.lexsort((unpacked(rows.rows), unpacked(rows.gids))))
            try:
                batches = [self._read(chunk) for chunk in by_groups(canonical, self._micro_groups)]
            except Gone:
                self._give_back()
                continue
            yield from batches
            return

    def _take_all(self, step: int) -> Rows | None:
        """The step's whole batch; None when the run is over or stops."""
        rows: list[Rows] = []
        while not self.complete:
            taken = self._take(step, limit=self._context.config.batch_size)
            if taken is None:
                return None
            rows.append(taken.rows)
        return Rows().joined(rows)

    def _take(self, step: int, limit: int) -> OkTaken | None:
        """The next groups of this step's batch; None when the run is over or stops. Every wait inside ends with an event or a deadline."""
        context = self._context
        while not context.control.stopping:
            pending = context.client.take(context.topic.name, self._stage.name, limit=limit, at_least=limit, step=step, wait_s=IDLE_S)
            while not (pending.done() or context.control.stopping):
                context.wait(IDLE_S if self._on_wait() else 0.0)
            pending.cancel()
            taken = pending.result(REPLY_S)
            if taken.lease >= 0:
                self.leases.append(taken.lease)
                self._groups.append(taken.rows.groups())
                self.complete = self.groups == taken.batch
                return taken
            if taken.done:
                self.done = True
                return None
        return None

    def _give_back(self) -> None:
        """What was taken and is not read: when the batch goes by the canon all of it, else the last lease."""
        count = len(self.leases) if self._canonical else 1
        for _ in range(count):
            lease = self.leases.pop()
            self._groups.pop()
            self._context.client.release(self._context.topic.name, self._stage.name, lease).result(REPLY_S)
        self.complete = False

    def _read(self, rows: Rows) -> StageBatch:
        start_s = time.perf_counter()
        with self._context.clock.during("busy", "read"):
            batch = stage_batch(rows, self._context.client.read(rows, self._stage.inputs, self._context.topic))
        self._context.costs.add(f"{self._stage.name}.io", batch.tokens, time.perf_counter() - start_s)
        return batch


def by_groups(rows: Rows, groups: int) -> Iterator[Rows]:
    """Cut rows (those of a group adjacent) into chunks of `groups` whole groups; the last may hold fewer."""
    gids = unpacked(rows.gids)
    begins = np.flatnonzero(np.diff(gids, prepend=gids[:1] - 1))  # of each group; empty for no rows
    cuts = [*begins[::groups].tolist(), len(gids)]
    for start, stop in itertools.pairwise(cuts):
        yield rows[start:stop]

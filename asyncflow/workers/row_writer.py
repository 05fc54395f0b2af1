"""Finished rows on their way into the queue, in a thread of their own: decoding never waits for a socket, and what piles up while a put is under way
travels together in the next one."""

from __future__ import annotations

import sys

import msgspec
import numpy as np

from asyncflow.data.finish import FINISH_CODES
from asyncflow.workers.context import WorkerContext
from asyncflow.workers.groups import Trajectory
from asyncflow.workers.outbox import Outbox
from transfer_queue.columns import Jagged
from transfer_queue.messages import RowPut


class FinishedRow(msgspec.Struct):
    trajectory: Trajectory
    fence: int
    closes: int | None  # the group's row count, on its last row


class RowWriter(Outbox[FinishedRow]):
    """Bounded by the engine's slots; all rows that wait travel together."""

    def __init__(self, context: WorkerContext, bound: int) -> None:
        self._closed: list[tuple[int, int]] = []
        super().__init__(context, "row-writer", bound, together=sys.maxsize)

    def put(self, rows: list[FinishedRow]) -> None:
        self.add(rows)

    def take_closed(self) -> list[tuple[int, int]]:
        """Attempts (gid, fence) that the queue refused since the last call: dropped, or no longer ours."""
        with self._changed:
            self._raise()
            closed, self._closed = self._closed, []
        return closed

    def _send(self, things: list[FinishedRow]) -> None:
        closed = self._write(things)
        if closed:
            with self._changed:
                self._closed += closed
            self._wake.set()

    def _write(self, rows: list[FinishedRow]) -> list[tuple[int, int]]:
        """Put them; returns the attempts that were refused. Fences grow, and the queue takes a group's rows of one attempt or none: rows of one
        that a newer one here has replaced are left out, or they would take the newer ones with them."""
        newest = {row.trajectory.gid: row.fence for row in sorted(rows, key=lambda row: row.fence)}
        rows = [row for row in rows if row.fence == newest[row.trajectory.gid]]
        trajectories = [row.trajectory for row in rows]
        columns = {
            "response_ids": Jagged.of([trajectory.token_ids for trajectory in trajectories], "int32"),
            "rollout_logprobs": Jagged.of([trajectory.logprobs for trajectory in trajectories], "float32"),
            "token_versions": Jagged.of([trajectory.versions for trajectory in trajectories], "int32"),
            "finish": np.array([FINISH_CODES[trajectory.finish or "aborted"] for trajectory in trajectories], dtype="uint8"),
        }
        close = {row.trajectory.gid: row.closes for row in rows if row.closes is not None}
        refused = set(self._client.put_rows(self._topic, [row_put(row) for row in rows], close, columns).closed)
        self._clock.timeline.finished([len(row.trajectory.token_ids) for row in rows if row.trajectory.gid not in refused])
        return [(row.trajectory.gid, row.fence) for row in rows if row.trajectory.gid in refused]


def row_put(row: FinishedRow) -> RowPut:
    trajectory = row.trajectory
    return RowPut(
        gid=trajectory.gid,
        fence=row.fence,
        row=trajectory.row,
        columns={},
        tokens=len(trajectory.token_ids),
        oldest_version=min(trajectory.versions),
        newest_version=max(trajectory.versions),
    )

"""Finished rows on their way into the queue, in a thread of their own: decoding never waits for a socket, and what piles up while a put is under way
travels together in the next one."""

from __future__ import annotations

import threading
from collections import deque

import msgspec
import numpy as np

from asyncflow.data.finish import FINISH_CODES
from asyncflow.workers.context import WorkerContext
from asyncflow.workers.groups import Trajectory
from transfer_queue.columns import Jagged
from transfer_queue.messages import RowPut

PUT_S = 30.0  # deadline of one put


class FinishedRow(msgspec.Struct):
    trajectory: Trajectory
    fence: int
    closes: int | None  # the group's row count, on its last row


class RowWriter:
    """Bounded by the engine's slots: at most `bound` rows wait here, then `put` blocks (and the wait is the queue's, with its deadline)."""

    def __init__(self, context: WorkerContext, bound: int) -> None:
        self._client, self._topic, self._bound = context.client.attach(), context.topic.name, bound
        self._wake, self._clock = context.wake, context.clock
        self._rows: deque[FinishedRow] = deque()
        self._changed = threading.Condition()
        self._writing = False
        self._closing = False
        self._error: BaseException | None = None
        self._closed: list[tuple[int, int]] = []
        self._thread = threading.Thread(target=self._run, name="row-writer", daemon=True)
        self._thread.start()

    def put(self, rows: list[FinishedRow]) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._rows) < self._bound or self._error is not None, timeout=PUT_S):
                waiting = f"{len(self._rows)} finished rows could not be put within {PUT_S:g} s"
                raise TimeoutError(f"topic {self._topic!r}: {waiting}; is a shard or the controller stuck?")
            self._check()
            self._rows.extend(rows)
            self._changed.notify_all()

    def drain(self) -> None:
        """Return when every row given so far is in the queue."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._error is not None or not (self._rows or self._writing), timeout=PUT_S):
                raise TimeoutError(f"topic {self._topic!r}: rows still not put after {PUT_S:g} s; is a shard or the controller stuck?")
            self._check()

    def take_closed(self) -> list[tuple[int, int]]:
        """Attempts (gid, fence) that the queue refused since the last call: dropped, or no longer ours."""
        with self._changed:
            self._check()
            closed, self._closed = self._closed, []
        return closed

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout=PUT_S)
        self._client.close()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while (rows := self._next()) is not None:
                with self._clock.during("busy", "put", "writer"):
                    closed = self._write(rows)
                with self._changed:
                    self._closed += closed
                    self._writing = False
                    self._changed.notify_all()
                if closed:
                    self._wake.set()
        except Exception as error:  # carried to the worker's loop, which raises it under its own name
            with self._changed:
                self._error = error
                self._changed.notify_all()
            self._wake.set()

    def _next(self) -> list[FinishedRow] | None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._rows) or self._closing)  # ends with `close`, which every exit path calls
            if not self._rows:
                return None
            rows = list(self._rows)
            self._rows.clear()
            self._writing = True
            self._changed.notify_all()
        return rows

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

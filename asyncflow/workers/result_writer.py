"""Outputs of stages on their way into the queue, in a thread of their own: while they travel the stage reads and computes the next rows."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from asyncflow.workers.context import WorkerContext
from transfer_queue.messages import ModelVersion

BOUND = 2  # leases whose outputs wait here; then `put` blocks
PUT_S = 30.0  # deadline of one write-back


class Result(msgspec.Struct, frozen=True):
    """What one lease became."""

    stage: str
    lease: int
    keys: list[tuple[int, int]]  # (gid, row), aligned with the columns
    columns: Mapping[str, Any]
    weights: ModelVersion | None


class ResultWriter:
    """One a process, whatever stages it serves. What ends its thread is raised by the next call here, in the worker's loop."""

    def __init__(self, context: WorkerContext) -> None:
        self._context, self._client, self._topic = context, context.client.attach(), context.topic.name
        self._results: deque[Result] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="result-writer", daemon=True)
        self._thread.start()

    def put(self, result: Result) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._results) < BOUND or self._error is not None, timeout=PUT_S):
                late = f"outputs of {result.stage!r} could not be written within {PUT_S:g} s"
                raise TimeoutError(f"topic {self._topic!r}: {late}; is a shard or the controller stuck?")
            self._raise()
            self._results.append(result)
            self._changed.notify_all()

    def check(self) -> None:
        with self._changed:
            self._raise()

    def close(self) -> None:
        """Returns when everything is written, or cannot be."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout=PUT_S)
        self._client.close()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while (result := self._next()) is not None:
                with self._context.clock.during("busy", "put", "writer"):
                    self._client.write_back(self._topic, result.stage, result.lease, result.keys, result.columns, result.weights)
        except Exception as error:  # carried to the worker's loop, which raises it under its own name
            with self._changed:
                self._error = error
                self._changed.notify_all()
            self._context.wake.set()

    def _next(self) -> Result | None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._results) or self._closing)  # ends with `close`, which every exit path calls
            result = self._results.popleft() if self._results else None
            self._changed.notify_all()
        return result

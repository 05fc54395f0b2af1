"""Outputs of stages on their way into the queue, in a thread of their own: while they travel the stage reads and computes the next rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from asyncflow.workers.context import WorkerContext
from asyncflow.workers.outbox import Outbox
from transfer_queue.messages import ModelVersion

BOUND = 2  # leases whose outputs wait here; then `put` blocks


class Result(msgspec.Struct, frozen=True):
    """What one lease became."""

    stage: str
    lease: int
    keys: list[tuple[int, int]]  # (gid, row), aligned with the columns
    columns: Mapping[str, Any]
    weights: ModelVersion | None


class ResultWriter(Outbox[Result]):
    """One a process, whatever stages it serves."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context, "result-writer", BOUND, together=1)

    def put(self, result: Result) -> None:
        self.add([result])

    def _send(self, things: list[Result]) -> None:
        for result in things:
            self._client.write_back(self._topic, result.stage, result.lease, result.keys, result.columns, result.weights)

"""The next rows that a task has not had: `get_meta`. In the order in which they were made, each once a task; no lease, so a taker that dies takes
them with it (where that must not be, use a topic)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from transfer_queue import messages as m
from transfer_queue.compat.batch_meta import BatchMeta
from transfer_queue.compat.calls import Call
from transfer_queue.errors import QueueTimeout
from transfer_queue.keyed import Found, KeyedClient

TURN_S = 0.2  # in the controller at once: other calls of this process come in between
WAIT_S = 300.0  # of `get_meta`
Taken = tuple[m.OkKeyedTaken, Found]
UNKNOWN: dict[str, Any] = {"dtype": None, "shape": None, "is_nested": None, "is_non_tensor": None}


class Taking:
    """One `get_meta` on its way: turns of at most TURN_S, until there are rows or its time is over."""

    def __init__(self, data_fields: Sequence[str], batch_size: int, partition_id: str, mode: str, task_name: str | None, wait_s: float) -> None:
        """Raises ValueError or TypeError for what no task can be given."""
        if mode != "fetch":
            raise ValueError(f"mode={mode!r}: rows are taken by 'fetch'; they are made by put, and looked at by kv_retrieve_meta")
        if not isinstance(task_name, str):
            raise TypeError(f"task_name={task_name!r}: name the task that is to have each row once")
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: at least 1")
        self.names, self.rows, self.partition, self.task = list(data_fields), batch_size, partition_id, task_name
        self.deadline = time.monotonic() + wait_s

    def turn(self) -> Call[Taken | None, BatchMeta | None]:
        """None: there were too few rows. What comes when nobody waits any more is kept for the next one that asks for the same."""
        wait_s = max(0.0, min(TURN_S, self.deadline - time.monotonic()))
        return Call(lambda client: self._taken(client, wait_s), self._meta, self._keep)

    def over(self) -> bool:
        return time.monotonic() >= self.deadline

    def late(self) -> QueueTimeout:
        return QueueTimeout(
            f"task {self.task!r}: partition {self.partition!r} has no {self.rows} rows with columns {self.names} that it has not had: see who puts "
            "them, or take fewer at once"
        )

    def _taken(self, client: KeyedClient, wait_s: float) -> Taken | None:
        taken = client.take(self.partition, self.task, self.rows, self.names, at_least=self.rows, wait_s=wait_s)
        if not taken.keys:
            return None
        try:
            return taken, client.get(self.partition, numbers=m.unpacked(taken.numbers), names=(), tags=True)
        except BaseException:  # whatever it is: the rows count as had
            client.keep(taken, self.names)
            raise

    def _keep(self, client: KeyedClient, taken: Taken | None) -> None:
        if taken is not None:
            client.keep(taken[0], self.names)

    def _meta(self, taken: Taken | None) -> BatchMeta | None:
        if taken is None or not len(taken[1]):
            return None
        found = taken[1]
        schema, ready = dict.fromkeys(self.names, UNKNOWN), np.ones(len(found), dtype=np.int8)
        return BatchMeta(found.numbers.tolist(), [self.partition] * len(found), schema, ready, custom_meta=found.tags)

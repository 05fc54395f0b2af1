"""The source: puts prompts while the queue wants some. Its cursor lives in the controller, so a restarted source goes on where the last put ended."""

from __future__ import annotations

from typing import Protocol

from asyncflow.data.task import Counted
from asyncflow.workers.context import REPLY_S, WorkerContext
from transfer_queue.columns import Jagged
from transfer_queue.messages import OkDemand

IDLE_S = 30.0
CHUNK = 32  # most prompts a put


class PromptSource(Protocol):
    """Endless, and a pure function of the position: batches span epochs."""

    def prompt(self, gid: int) -> tuple[list[int], bytes]:
        """(prompt token ids, the item as the scorer needs it)."""
        ...


class SourceWorker:
    def __init__(self, context: WorkerContext, source: PromptSource, total_groups: int) -> None:
        self._context, self._source, self._total = context, source, total_groups
        self._topic = context.topic.name

    def run(self) -> None:
        if isinstance(self._source, Counted):  # what is never asked is part of the run's record
            self._context.client.report("data", {**self._source.counts}).result(REPLY_S)
        self._context.client.close_prompts(self._topic, self._total).result(REPLY_S)
        while not self._context.control.stopping:
            demand = self._await_demand()
            if demand.done:
                self._idle()
            elif demand.wanted > 0:
                with self._context.clock.during("busy", "put"):
                    self._put(demand.cursor, min(demand.wanted, CHUNK))

    def _await_demand(self) -> OkDemand:
        """Returns early, with nothing wanted, when the directive changed: the caller looks at it first."""
        pending = self._context.client.demand(self._topic, wait_s=IDLE_S)
        self._context.wait(IDLE_S)
        if not pending.done():
            pending.cancel()
        return pending.result(REPLY_S)

    def _idle(self) -> None:
        """Done: stay for the run's end, so that the roster is complete to the last step."""
        if not self._context.control.stopping:
            self._context.wait(IDLE_S)

    def _put(self, cursor: int, count: int) -> None:
        gids = list(range(cursor, cursor + count))
        prompts, items = zip(*(self._source.prompt(gid) for gid in gids), strict=True)
        columns = {"prompt_ids": Jagged.of(prompts, "int32"), "item": list(items)}
        self._context.client.put_prompts(self._topic, gids, columns, cursor=cursor + count, wait_s=IDLE_S)

"""One worker under test: a real queue in threads, the worker's real context, and the other members as plain clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from asyncflow.config import RunConfig
from asyncflow.contracts.worker import WorkerArgs
from asyncflow.flow.core import core_config
from asyncflow.observe.trace import Trace, decode_trace
from asyncflow.workers.context import WorkerContext
from tests.config.recipes import MINIMAL, load_text
from transfer_queue.client import QueueClient
from transfer_queue.columns import Jagged
from transfer_queue.controller.core import Core
from transfer_queue.local import LocalQueue
from transfer_queue.messages import Event, GroupLease, RowPut

TASK = "task.path='asyncflow.data.number_sorting:NumberSorting'"
NO_EVALUATION = "evaluation.every=null"
TRAIN_ONLY = (
    *(f"stages.{name}=null" for name in ("reward", "actor_forward", "ref_forward", "advantage")),
    *(f"resources.{name}=null" for name in ("scorer", "actor_forward", "ref_forward")),
    "stages.train.inputs=[prompt_ids,response_ids,token_versions,finish]",
    "algorithm.old_logprobs=recompute",
)


class Desk:
    def __init__(self, queue: LocalQueue, config: RunConfig, traces: list[tuple[str, Trace]], core: Core) -> None:
        """`core`: driven by the controller's thread; elsewhere only to be looked at."""
        self.queue, self.config, self.core = queue, config, core
        self._traces = traces
        self.clients: list[QueueClient] = []
        self.contexts: list[WorkerContext] = []
        self.topic = config_topic(queue)

    def client(self, name: str, role: str = "other") -> QueueClient:
        self.clients.append(self.queue.client(name, role))
        return self.clients[-1]

    def context(self, name: str) -> WorkerContext:
        args = WorkerArgs(role=name.rpartition("-")[0], name=name, controller=self.queue.url)
        self.contexts.append(WorkerContext.connect(args, None))
        return self.contexts[-1]

    def put_prompts(self, count: int, lengths: tuple[int, ...] = (4,)) -> None:
        """Prompts 0..count - 1, of `lengths` in turn."""
        prompts = [list(range(2, 2 + lengths[gid % len(lengths)])) for gid in range(count)]
        columns = {"prompt_ids": Jagged.of(prompts, "int32"), "item": [b"{}"] * count}
        self.client("source-0", "source").put_prompts(self.topic, list(range(count)), columns, cursor=count, wait_s=5.0)

    def put_group(self, client: QueueClient, lease: GroupLease, rows: int) -> None:
        """A whole group of one-token rows."""
        puts = [RowPut(lease.gid, lease.fence, row, {}, tokens=1, oldest_version=0, newest_version=0) for row in range(rows)]
        client.put_rows(self.topic, puts, {lease.gid: rows}, one_token_columns(rows))

    def events(self, kind: str) -> list[Event]:
        return [event for event in list(self.queue.events) if event.kind == kind]

    def traces(self, owner: str) -> list[Trace]:
        """What the controller was handed of this member, in order."""
        return [trace for sender, trace in list(self._traces) if sender == owner]

    def close(self) -> None:
        for context in self.contexts:
            context.leave()
        for client in self.clients:
            client.close()


def config_topic(queue: LocalQueue) -> str:
    return queue.config.topics[0].name


def one_token_columns(rows: int) -> dict[str, np.ndarray | Jagged]:
    one = [[3]] * rows
    return {
        "response_ids": Jagged.of(one, "int32"),
        "rollout_logprobs": Jagged.of([[-1.0]] * rows, "float32"),
        "token_versions": Jagged.of([[0]] * rows, "int32"),
        "finish": np.zeros(rows, dtype="uint8"),
    }


@contextmanager
def desk(folder: Path, *overrides: str) -> Iterator[Desk]:
    """A queue for the minimal recipe with `overrides`; everything is closed afterwards."""
    config = load_text(folder, MINIMAL, TASK, *overrides)
    config = msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, dir=str(folder)))
    core = core_config(config)
    traces: list[tuple[str, Trace]] = []
    cores: list[Core] = []

    def attach(state: Core) -> None:
        cores.append(state)
        state.send_traces_to(lambda owner, role, trace, t_s: traces.append((owner, decode_trace(trace))))

    limits = {"lease_s": core.lease_s, "heartbeat_s": core.heartbeat_s, "stall_s": core.stall_s}
    with LocalQueue(core.topics, config=core.config, duties=core.duties, **limits, attach=attach) as queue:
        found = Desk(queue, config, traces, cores[0])
        try:
            yield found
        finally:
            found.close()


def until(condition: Callable[[], bool], what: str, deadline_s: float = 10.0) -> None:
    """Look again and again from outside: the threads under test tell nobody else."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {deadline_s:g} s"
        time.sleep(0.002)

"""How the benchmark uses our queue, by its public API alone; whatever the API changes, it changes here and in `servers`.

What a tree may lack is looked for, so that the same files measure it before and after: `QueueClient.put`, which is one request (without it a put is
what it takes: prompts in, admission, rows); `map_memory` of `connect`; `keep_bytes` of a shard's `serve`; `Column.shape`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np

from benchmarks.queue_bench.asking import Asked
from benchmarks.queue_bench.payload import COLUMNS, Case
from transfer_queue import keys
from transfer_queue import messages as m
from transfer_queue.client import QueueClient
from transfer_queue.codec import to_torch
from transfer_queue.columns import Jagged
from transfer_queue.security import Security
from transfer_queue.shard.server import serve as serve_shard

TOPIC, READER = "bench", "reader"
LONG_S = 1e6  # no lease, heartbeat or stall of a benchmark ever runs out
WAIT_S = 60.0
KEPT = 1 << 33  # everything stays warm; only the row about memory that goes back says 0
GIDS = 1 << 40  # a member's share of group numbers, where the caller has to choose them
ONE_REQUEST = hasattr(QueueClient, "put")
JOINS = inspect.signature(QueueClient.connect).parameters
MAPS = "map_memory" in JOINS
KEEPS = "keep_bytes" in inspect.signature(serve_shard).parameters
SHAPES = "shape" in m.Column.__struct_fields__


def topic_of(case: Case, shared: bool = False) -> m.TopicSpec:
    """Token columns of `case`; `shared`: and a prompt a group. A reader of rows is measured; a trainer is there because a topic has one."""
    columns = [_column(name, dtype, case) for name, dtype in COLUMNS]
    if shared:
        columns.append(m.Column("prompt", "int64", "per_token", "source", shared=True))
    names = tuple(column.name for column in columns)
    return _topic(columns, names, case.group_rows)


def sample_topic() -> m.TopicSpec:
    """Rows of one column of 1 KB, each a group of its own."""
    return _topic([_column("ids", "int32", Case(rows=1, tokens=256))], ("ids",), 1)


def _column(name: str, dtype: str, case: Case) -> m.Column:
    if SHAPES and not case.jagged:
        shape: Any = {"shape": (case.tokens,)}
        return m.Column(name, dtype, "scalar", "rollout", **shape)
    return m.Column(name, dtype, "per_token", "rollout")


def _topic(columns: list[m.Column], names: tuple[str, ...], group_rows: int) -> m.TopicSpec:
    return m.TopicSpec(
        name=TOPIC,
        model="policy",
        columns=tuple(columns),
        consumers=(m.Consumer(READER, inputs=names), m.Consumer("trainer", inputs=names, unit="group", terminal=True)),
        window=m.Window(batch=1, staleness=None, budget_bytes=1 << 40, group_bytes=1),
        prompts_bound=1 << 30,
        rows_per_group=group_rows,
    )


def as_columns(case: Case, values: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """What `put` takes: arrays [rows, tokens], or Jagged."""
    if case.jagged:
        return {name: Jagged(column, case.offsets()) for name, column in values.items()}
    return {name: column.reshape(case.rows, case.tokens) for name, column in values.items()}


class Queue:
    """Controller and shards, each a process."""

    def __init__(
        self, spec: m.TopicSpec, shards: int = 2, secured: bool = False, capacity_bytes: int = 1 << 33, keep_bytes: int = KEPT
    ) -> None:
        self._spec, self._security = spec, keys.make() if secured else None
        self._shards = shards
        self._settings = {"capacity_bytes": capacity_bytes, **({"keep_bytes": keep_bytes} if KEEPS else {})}
        self._processes: list[Asked] = []
        self.url = ""

    def __enter__(self) -> Self:
        config = {"topics": [msgspec.to_builtins(self._spec)], "lease_s": LONG_S, "heartbeat_s": LONG_S, "stall_s": LONG_S}
        try:
            self.url = self._start().ask("controller", config=config, security=_wire(self._security))["endpoint"]
            for index in range(self._shards):
                self._start().ask("shard", name=f"shard-{index}", url=self.url, security=self.worker_keys, settings=self._settings)
        except BaseException:  # whatever ended the start, Ctrl-C included: no process of it stays
            self.close()
            raise
        return self

    def _start(self) -> Asked:
        self._processes.append(Asked("benchmarks.queue_bench.servers", env={"OMP_NUM_THREADS": "1"}))
        return self._processes[-1]

    @property
    def worker_keys(self) -> dict[str, Any] | None:
        return _wire(self._security.worker()) if self._security is not None else None

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def member(self, name: str, map_memory: bool = True) -> Member:
        return Member(self.url, name, self.worker_keys, map_memory)

    def close(self) -> None:
        for process in reversed(self._processes):
            process.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for words in filter(None, [process.last_words() for process in self._processes]):
            if error is not None:  # members only saw that it went
                error.add_note(f"a controller or shard ended:\n{words}")
        self.close()


def _wire(security: Security | None) -> dict[str, Any] | None:
    return None if security is None else msgspec.to_builtins(security)


class Member:
    """A producer and consumer in one. `put`, `take` and `read` are what is timed."""

    def __init__(self, url: str, name: str, security: dict[str, Any] | None, map_memory: bool = True, keep_bytes: int = KEPT) -> None:
        """`keep_bytes`: of a shard and of a member, memory that lies idle and warm."""
        found = None if security is None else msgspec.convert(security, Security)
        path: Any = {key: value for key, value in (("map_memory", map_memory), ("keep_bytes", keep_bytes)) if key in JOINS}
        self.client: Any = QueueClient.connect(url, name=name, role="bench", security=found, timeout_s=WAIT_S, **path)
        self.spec: m.TopicSpec = self.client.topic(TOPIC)
        self.inputs = list(self.spec.consumers[0].inputs)
        self._next_gid = int(name.rpartition("-")[2]) * GIDS

    @property
    def path(self) -> str:
        """How bytes travel: shared memory or sockets."""
        return "+".join(sorted(set(self.client.paths.values()))) if MAPS else "bytes"

    def put(self, columns: Mapping[str, Any], rows: int, shared: Mapping[str, Any] | None = None) -> None:
        """Whole groups, visible to readers when this returns. `shared`: one row a group."""
        if ONE_REQUEST and shared is None:
            self.client.put(TOPIC, columns, rows_per_group=self.spec.rows_per_group)
            return
        each = self.spec.rows_per_group
        gids = range(self._next_gid, self._next_gid + rows // each)
        self._next_gid = gids.stop
        self.client.put_prompts(TOPIC, gids, shared or {}, cursor=gids.stop)
        leases = self.client.pull(TOPIC, loaded=0, limit=len(gids), wait_s=WAIT_S).result(WAIT_S).groups
        puts = [m.RowPut(lease.gid, lease.fence, row, {}, 1, 0, 0) for lease in leases for row in range(each)]
        self.client.put_rows(TOPIC, puts, {lease.gid: each for lease in leases}, columns)

    def take(self, rows: int) -> m.OkTaken:
        """Exactly so many rows that this consumer has not had."""
        taken: m.OkTaken = self.client.take(TOPIC, READER, limit=rows, at_least=rows, wait_s=WAIT_S).result(WAIT_S)
        return taken

    def read(self, taken: m.OkTaken) -> dict[str, Any]:
        """Tensors of the rows' values, a flat one a column, ready for use."""
        got = self.client.read(taken.rows, self.inputs, self.spec)
        return {name: to_torch(values_of(column), self._dtype(name)) for name, column in got.items()}

    def drop(self, taken: m.OkTaken) -> None:
        """Its groups end, and their memory goes."""
        self.client.drop_groups(TOPIC, sorted({row.gid for row in taken.rows}), "benchmark").result(WAIT_S)

    def _dtype(self, name: str) -> str:
        return next(column.dtype for column in self.spec.columns if column.name == name)

    def close(self) -> None:
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def values_of(column: Any) -> np.ndarray:
    return column.values if isinstance(column, Jagged) else column

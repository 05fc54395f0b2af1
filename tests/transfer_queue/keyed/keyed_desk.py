"""The state machine with one-line requests of keyed partitions, as a member makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from controller_desk import Desk, Who, plain

from transfer_queue import messages as m
from transfer_queue.controller.core import CoreConfig

SCALAR, RUN, TEXT = m.CellType("scalar", "float32"), m.CellType("per_token", "int32", (2,)), m.CellType("text", "uint8")
BYTES = {SCALAR: 4, RUN: 16, TEXT: 3}  # of a cell in these tests


class KeyedDesk(Desk):
    def __init__(self, topics: Sequence[m.TopicSpec] = (plain(),), **config: Any) -> None:
        self.spec = plain()
        self.start(CoreConfig(topics=list(topics), **config))
        self.who: Who = self.join("writer", "writer")

    def cells(self, types: Sequence[m.CellType], blocks: Sequence[int], shard: int = 0) -> m.Cells:
        """One a row, each at the beginning of its block."""
        once = list(dict.fromkeys(types))
        which = b"" if len(once) == 1 else m.packed([once.index(kind) for kind in types])
        return m.Cells(tuple(once), m.packed([(shard, block, 0, BYTES[kind]) for block, kind in zip(blocks, types, strict=True)]), which)

    def put_request(self, partition: str, **fields: Any) -> m.KeyedPut:
        return m.KeyedPut(partition=partition, **self.who.fields, **fields)

    def put(
        self,
        partition: str,
        keys: Sequence[str],
        names: Mapping[str, m.CellType] | None = None,
        tags: Sequence[Mapping[str, Any]] = (),
        shard: int = 0,
    ) -> tuple[m.OkKeyed, list[int]]:
        """Cells of one type a column, each row in a block of its own; returns the reply and the blocks."""
        blocks = [self.block() for _ in keys]
        columns = {name: self.cells([kind] * len(keys), blocks, shard) for name, kind in (names or {}).items()}
        packed = [msgspec.msgpack.encode(tag) for tag in tags]
        return self.ask(self.who.connection, self.put_request(partition, keys=list(keys), columns=columns, tags=packed), m.OkKeyed), blocks

    def look(self, partition: str, keys: Sequence[str], **fields: Any) -> m.OkLooked:
        return self.ask(self.who.connection, m.KeyedLook(partition=partition, keys=list(keys), **self.who.fields, **fields), m.OkLooked)

    def listed(self, *partitions: str) -> dict[str, dict[str, Any]]:
        """Partition → key → tag, {} where there is none."""
        request = m.KeyedList(partitions=partitions or None, **self.who.fields)
        found = self.ask(self.who.connection, request, m.OkListed).partitions
        return {name: dict(zip(each.keys, map(tag_of, each.tags), strict=True)) for name, each in found.items()}

    def clear(self, partition: str, keys: Sequence[str]) -> int:
        return self.ask(self.who.connection, m.KeyedClear(partition=partition, keys=list(keys), **self.who.fields), m.OkCleared).cleared

    def take_request(self, task: str, limit: int, names: Sequence[str] = (), **fields: Any) -> m.KeyedTake:
        return m.KeyedTake(**({"partition": "train", "task": task, "limit": limit, "names": tuple(names), "wait_s": 0.0} | fields), **self.who.fields)

    def take(self, task: str, limit: int, names: Sequence[str] = (), **fields: Any) -> list[str]:
        return self.ask(self.who.connection, self.take_request(task, limit, names, **fields), m.OkKeyedTaken).keys

    def block(self) -> int:
        return self.slice().block

    def live(self, shard: int = 0) -> list[int]:
        return self.core.live_blocks(shard)


def tag_of(packed: bytes) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.msgpack.decode(packed) if packed else {}
    return found

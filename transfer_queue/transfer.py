"""Bytes to and from shards: one frame a column, never one a row; acknowledged before the controller hears of them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from transfer_queue import messages as m
from transfer_queue.codec import Column, Packed, pack
from transfer_queue.connection import Connection
from transfer_queue.errors import Gone, QueueError, QueueTimeout
from transfer_queue.gather import Gather
from transfer_queue.layout import Layout
from transfer_queue.link import Link
from transfer_queue.pending import Pending
from transfer_queue.schema import check_columns
from transfer_queue.security import Security
from transfer_queue.shard import messages as sm
from transfer_queue.wire import Frame, decode_shard_reply, id_of

Build = Callable[[list[dict[str, m.Slice]]], m.Request]  # slices by column name, one dict a row → the request that publishes them
Kept = Callable[[Any], bool]  # the reply → whether the controller looked at the slices at all


class Transfer(Connection):
    def __init__(self, url: str, security: Security | None, registration: m.OkRegistered, timeout_s: float) -> None:
        super().__init__(url, security, registration, timeout_s)
        self._shards: dict[int, Link] = {}
        self._turn = itertools.count(os.getpid())  # members start at different shards

    def write(self, gids: Sequence[int], columns: Mapping[str, Any], spec: m.TopicSpec | None = None) -> dict[str, list[m.Slice]]:
        """Store columns, rows aligned with `gids`, on one shard; returns each row's slice of each column, in the order of `gids`.

        A column is an ndarray or torch tensor [R] or [R, T], a Jagged, or a list of bytes; `spec` checks name, dtype and kind. Nobody sees anything
        before the slices are published; what is never published goes with this incarnation, or by `discard`.
        Raises ValueError or TypeError (columns), QueueError (capacity), QueueTimeout, QueueGone (shard).
        """
        packed = {name: pack(name, column) for name, column in columns.items()}
        check_columns(gids, packed, spec)
        if not packed or not len(gids):
            return {name: [] for name in packed}
        layout = Layout.of(gids)
        packed = {name: layout.sort(column) for name, column in packed.items()}
        index, first = self._store_where_room_is(list(packed.values()), layout.bounds)
        return {name: layout.slices(index, first + turn * layout.groups, column) for turn, (name, column) in enumerate(packed.items())}

    def publish(
        self, gids: Sequence[int], columns: Mapping[str, Any], spec: m.TopicSpec, build: Build, timeout_s: float, kept: Kept = lambda reply: True
    ) -> Any:
        """Write, then one control request with the slices. The controller frees what it refuses; what it did not look at is freed here."""
        slices = self.write(gids, columns, spec)
        reply = self.call(build([{name: found[row] for name, found in slices.items()} for row in range(len(gids))]), timeout_s)
        if not kept(reply):
            self.discard(itertools.chain.from_iterable(slices.values()))
        return reply

    def read(self, rows: Sequence[m.RowRef], names: Sequence[str], spec: m.TopicSpec) -> dict[str, Column]:
        """Columns `names` of `rows`, in their order; `RowRef.columns` follows `names`. scalar → ndarray [R], per_token → Jagged, blob → list[bytes].

        Arrays may be read-only. Where a row lacks an optional column: scalar → a masked array, per_token → an empty run, blob → b"".
        Raises Gone(gids) when bytes were freed meanwhile.
        """
        return self._read([row.gid for row in rows], {name: [row.columns[turn] for row in rows] for turn, name in enumerate(names)}, spec)

    def read_shared(self, leases: Sequence[m.GroupLease], names: Sequence[str], spec: m.TopicSpec) -> dict[str, Column]:
        """Shared columns of leased groups, one row a group."""
        return self._read([lease.gid for lease in leases], {name: [lease.columns.get(name) for lease in leases] for name in names}, spec)

    def discard(self, slices: Any) -> None:
        """Free blocks (an iterable of Slice) that were written and will not be published."""
        blocks: dict[int, set[int]] = {}
        for found in slices:
            blocks.setdefault(found.shard, set()).add(found.block)
        for index, numbers in blocks.items():
            self._shard(index).post(sm.Free(blocks=sorted(numbers)))

    def shard_status(self) -> dict[int, sm.ShardStatusReply]:
        """What each shard stores now."""
        waiting = {shard.index: self._ask(shard.index, sm.ShardStatus()) for shard in self.registration.shards}
        return {index: pending.result(self.timeout_s)[0] for index, pending in waiting.items()}

    # ------------------------------------------------------------ inside

    def _next_shard(self) -> int:
        shards = self.registration.shards
        if not shards:
            raise QueueError("no_shards", "no shard had joined when this member did: nobody can store its bytes; start the shards before the workers")
        return shards[next(self._turn) % len(shards)].index

    def _shard(self, index: int) -> Link:
        link = self._shards.get(index)
        if link is None:
            info = next((shard for shard in self.registration.shards if shard.index == index), None)
            if info is None:
                known = [shard.index for shard in self.registration.shards]
                raise QueueError("unknown_shard", f"shard={index} joined after this member did, which knows {known}; start shards before workers")
            link = self._shards[index] = Link(info.endpoint, info.server_key, self.security, _decode, f"shard {index}")
            self._links.append(link)
        return link

    def _ask(self, index: int, request: sm.ShardRequest, frames: Sequence[Any] = ()) -> Pending[Any]:
        pending = self._shard(index).send(self, request, frames)
        pending.silent = True  # awaited here, and nobody else's business
        return pending

    def _store_where_room_is(self, columns: list[Packed], bounds: np.ndarray) -> tuple[int, int]:
        """(shard, number of the first block). One shard may be full while others have room: what was admitted is refused only when all are full."""
        index = self._next_shard()
        for _ in self.registration.shards[1:]:
            try:
                return index, self._store(index, columns, bounds)
            except QueueError as error:
                if error.code != "capacity":
                    raise
            index = self._next_shard()
        return index, self._store(index, columns, bounds)

    def _store(self, index: int, columns: list[Packed], bounds: np.ndarray) -> int:
        cuts = [(column.offsets[bounds] * column.values.itemsize).tolist() for column in columns]
        request = sm.Write(owner=self.owner, cuts=cuts)
        pending = self._ask(index, request, [column.values.view(np.uint8) for column in columns])
        try:
            written, _ = pending.result(self.timeout_s)
        except QueueTimeout:  # nobody will name what is stored after all: it would stay until this incarnation ends
            count = sum(len(marks) - 1 for marks in cuts)
            pending.late = lambda reply: self._shard(index).post(sm.Free(blocks=list(range(reply[0].first, reply[0].first + count))))
            raise
        return int(written.first)

    def _read(self, gids: list[int], columns: dict[str, list[m.Slice | None]], spec: m.TopicSpec) -> dict[str, Column]:
        gathers = [Gather(name, gids, slices, spec) for name, slices in columns.items()]
        shards = set[int]().union(*(gather.shards() for gather in gathers))
        waiting = {shard: self._ask(shard, sm.Read(columns=[gather.ranges(shard) for gather in gathers])) for shard in sorted(shards)}
        gone: set[int] = set()
        for shard, pending in waiting.items():
            reply, frames = pending.result(self.timeout_s)
            if isinstance(reply, sm.NotFound):
                gone.update(*(gather.owners(shard, reply.gone) for gather in gathers))
                continue
            for gather, frame in zip(gathers, frames, strict=True):
                gather.add(shard, frame)
        if gone:
            raise Gone(gone)
        return {gather.name: gather.result() for gather in gathers}


def _decode(frames: list[Frame]) -> tuple[int, tuple[sm.ShardReply, list[Frame]] | None, Exception | None]:
    try:
        reply = decode_shard_reply(frames[0])
    except msgspec.DecodeError as error:
        return id_of(frames[0]), None, QueueError("malformed", f"a reply of a shard: {error}; do both sides run the same release?")
    if isinstance(reply, sm.ShardError):
        return reply.id, None, QueueError(reply.code, reply.message)
    return reply.id, (reply, frames[1:]), None

"""Bytes to and from shards, acknowledged before the controller hears of them; one copy on the way in, none or one on the way out."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from transfer_queue import messages as m
from transfer_queue.codec import Column, Packed
from transfer_queue.connection import Connection
from transfer_queue.errors import Gone, QueueError, QueueGone, QueueTimeout
from transfer_queue.fetching import fetch
from transfer_queue.few import read_few
from transfer_queue.gather import Gather
from transfer_queue.layout import Extent, Layout
from transfer_queue.memory.buffers import KEEP_BYTES, Buffers
from transfer_queue.peer import Path, Peer
from transfer_queue.pending import Pending
from transfer_queue.schema import pack_columns
from transfer_queue.security import Security
from transfer_queue.shard import messages as sm
from transfer_queue.shard.messages import LIFE_BITS
from transfer_queue.storing import store

Build = Callable[[dict[str, np.ndarray]], m.Request]  # places by column name → the request that publishes them
Kept = Callable[[Any], bool]  # the reply → whether the controller looked at the slices at all

VERDICT_S = 2.0  # for the controller to hear of a shard that does not answer; whoever restarts processes tells it at once
TRIES = 3  # of a write whose shard ends before the controller has heard of the bytes
ROOM_S, ROOM_LOOK_S = 1.0, 0.02  # a full shard may still have to hear of what the controller freed; asked again so often


class Transfer(Connection):
    def __init__(
        self,
        url: str,
        security: Security | None,
        registration: m.OkRegistered,
        timeout_s: float,
        map_memory: bool = True,
        keep_bytes: int = KEEP_BYTES,
    ) -> None:
        super().__init__(url, security, registration, timeout_s, map_memory, keep_bytes)
        self._peers: dict[int, Peer] = {}
        self._roster: m.OkRoster | None = None  # newer than the registration's
        self._buffers = Buffers(keep_bytes)
        self._turn = itertools.count(os.getpid())  # members start at different shards

    @property
    def paths(self) -> dict[int, Path]:
        """How bytes go, by shard that was used: "shared" (its memory is mapped here) or "bytes" (through the socket)."""
        return {index: peer.path for index, peer in self._peers.items() if peer.path is not None}

    def write(self, gids: Sequence[int], columns: Mapping[str, Any], spec: m.TopicSpec | None = None) -> dict[str, list[m.Slice]]:
        """Store columns, rows aligned with `gids`, on one shard; returns each row's slice of each column, in the order of `gids`.

        What a column may be is said at `transfer_queue.codec.pack`; `spec` checks name, dtype and kind. The bytes are the shard's on return: the
        caller may change his arrays. Nobody sees anything before the slices are published; what is never published goes with this incarnation, or
        by `discard`. Raises ValueError or TypeError (columns), QueueError (capacity), QueueTimeout, QueueGone (shard).
        """
        found = self.write_places(gids, columns, spec)
        return {name: [m.Slice(*place) for place in table.tolist()] for name, table in found.items()}

    def write_places(self, gids: Sequence[int] | np.ndarray, columns: Mapping[str, Any], spec: m.TopicSpec | None = None) -> dict[str, np.ndarray]:
        """`write`, whose slices come as places: [R, 4] int64 a column."""
        packed = pack_columns(len(gids), columns, spec)
        return self._write(Layout.of(gids), packed) if len(gids) else {name: np.zeros((0, 4), dtype=np.int64) for name in packed}

    def write_even(self, groups: int, rows: int, columns: Mapping[str, Any], spec: m.TopicSpec) -> dict[str, np.ndarray]:
        """`write_places` of groups of so many rows each, one after the other, that have no numbers yet. None of the counts is 0."""
        return self._write(Layout.even(groups, rows), pack_columns(groups * rows, columns, spec))

    def _write(self, layout: Layout, packed: dict[str, Packed]) -> dict[str, np.ndarray]:
        if not packed:
            return {}
        extent = Extent(layout, packed)
        index, first = self._store_where_room_is(extent)
        return extent.places(index, first)

    def publish(
        self, gids: Sequence[int], columns: Mapping[str, Any], spec: m.TopicSpec, build: Build, timeout_s: float, kept: Kept = lambda reply: True
    ) -> Any:
        """Write, then one control request with the places. The controller frees what it refuses; what it did not look at is freed here."""
        places, reply = self.told(lambda: self.write_places(gids, columns, spec), build, timeout_s)
        if not kept(reply):
            self.discard_places(places.values())
        return reply

    def told(self, write: Callable[[], dict[str, np.ndarray]], build: Build, timeout_s: float) -> tuple[dict[str, np.ndarray], Any]:
        """Write, then the request that names the places; again where a shard ended with them meanwhile. Returns the places and the reply."""
        for left in reversed(range(TRIES)):
            places = write()
            try:
                return places, self.call(build(places), timeout_s)
            except QueueError as error:
                if error.code != "shard_lost" or not left or not any(len(table) for table in places.values()):
                    raise
                self._renew(0.0)
        raise AssertionError("the last try returns or raises")

    def discard_places(self, tables: Iterable[np.ndarray]) -> None:
        """`discard` of what `write_places` returned."""
        self.discard(m.Slice(*place) for table in tables for place in table.tolist())

    def read(self, rows: m.Rows | Sequence[m.RowRef], names: Sequence[str], spec: m.TopicSpec, writable: bool = False) -> dict[str, Column]:
        """Columns `names` of `rows`, in their order: any of the consumer's inputs; of `RowRef`s, which have no names, all of them in their order.
        What a column comes back as: `transfer_queue.codec.unpack`.

        Arrays may be read-only views of the shard's own memory, which keeps the bytes for as long as an array or tensor over them lives, also when
        the rows end or this connection is closed. `writable` copies. In another process (after a fork) such arrays last as long as this one keeps
        its own. Where a row lacks an optional column: scalar → a masked array, per_token → an empty run, blob → b"".
        Raises Gone(gids) when bytes were freed meanwhile, ValueError (names), QueueTimeout, QueueGone (shard).
        """
        if not isinstance(rows, m.Rows):
            rows = m.Rows.of(rows)
        found = {name: m.places(buffer) for name, buffer in rows.places_of(names).items()}
        return self._read(m.unpacked(rows.gids), found, spec, writable)

    def read_shared(self, leases: Sequence[m.GroupLease], names: Sequence[str], spec: m.TopicSpec, writable: bool = False) -> dict[str, Column]:
        """Shared columns of leased groups, one row a group; else as `read`."""
        columns = {name: m.places(m.packed_places(lease.columns.get(name) for lease in leases)) for name in names}
        return self._read(np.array([lease.gid for lease in leases], dtype=np.int64), columns, spec, writable)

    def discard(self, slices: Iterable[m.Slice]) -> None:
        """Free blocks that were written and will not be published."""
        blocks: dict[int, set[int]] = {}
        for found in slices:
            blocks.setdefault(found.shard, set()).add(found.block)
        for index, numbers in blocks.items():
            if (peer := self._peer_if_there(index)) is not None:  # else they ended with it
                peer.free(sorted(numbers))

    def shard_status(self) -> dict[int, sm.ShardStatusReply]:
        """What each shard stores now, of those that are there now."""
        self._renew(0.0)
        peers = {shard.index: self._peer_if_there(shard.index) for shard in self.shards}
        waiting = {index: peer.ask(sm.ShardStatus()) for index, peer in peers.items() if peer is not None}
        return {index: pending.result(self.timeout_s)[0] for index, pending in waiting.items()}

    def ask_shard(self, index: int, request: sm.ShardRequest) -> Pending[Any]:
        """One request to a shard as it is, for who moves blocks and no columns. The reply is (record, frames)."""
        return self._peer(index).ask(request)

    def close(self) -> None:
        """Close the sockets; says nothing to the controller (`leave` does). Arrays that were read stay valid; the socket to their shard stays open
        until the last of them is collected, which then gives their bytes back."""
        for peer in self._peers.values():
            self.remove(peer.link)
            peer.close()
        self._peers.clear()
        super().close()

    # ------------------------------------------------------------ inside

    def settles(self, pending: Pending[Any], within_s: float) -> bool:
        """Who waits for a shard looks at the roster now and then: it hears so that the shard ended, which no connection tells that never was up, and
        is heard itself. Raises QueueGone where the controller holds the shard for ended."""
        deadline = time.monotonic() + within_s
        while pending.peer is not self.controller and (left := deadline - time.monotonic()) > VERDICT_S:
            if super().settles(pending, VERDICT_S):
                return True
            with contextlib.suppress(QueueTimeout):  # of a controller that may be on its way back, as the reply may be
                roster = self.call(m.Roster(member="", incarnation=0), left)
                if not pending.done() and not any(peer.link is pending.peer and peer.info in roster.shards for peer in self._peers.values()):
                    raise QueueGone(f"{pending.peer} is not in the run any more: the controller holds it for ended")
        return super().settles(pending, max(0.0, deadline - time.monotonic()))

    @property
    def shards(self) -> list[m.ShardInfo]:
        """Those that the controller last told of."""
        return (self.registration if self._roster is None else self._roster).shards

    def _renew(self, wait_s: float) -> bool:
        """Ask which shards there are, for at most `wait_s` until they are others; whether they are."""
        before = self._known
        self._roster = self.call(m.Roster(member="", incarnation=0, known=before, wait_s=wait_s), wait_s + self.timeout_s)
        assert self._roster is not None
        for index, peer in list(self._peers.items()):
            if peer.info not in self._roster.shards:
                self.remove(peer.link)
                self._peers.pop(index).close()
        return self._roster.number != before

    @property
    def _known(self) -> int:
        """Number of the roster that we have; 0: no shard ever was there."""
        return self.registration.roster if self._roster is None else self._roster.number

    def _next_shard(self) -> int:
        deadline = time.monotonic() + self.timeout_s
        while not self.shards and (left := deadline - time.monotonic()) > 0:  # the first may be about to come, or one to come back
            self._renew(min(VERDICT_S, left))  # each question is a sign of life
        if not self.shards:
            raise QueueError(
                "no_shards",
                f"no shard came within timeout_s={self.timeout_s:g}: nobody can store bytes, nothing was put; start shards, or see why they ended",
            )
        return self.shards[next(self._turn) % len(self.shards)].index

    def _peer(self, index: int) -> Peer:
        peer = self._peer_if_there(index)
        if peer is None:
            known = [shard.index for shard in self.shards]
            raise QueueError("unknown_shard", f"shard={index} is not one of {known}, which this run has; what lay there is gone with it")
        return peer

    def _peer_if_there(self, index: int) -> Peer | None:
        """None: it ended."""
        peer = self._peers.get(index)
        if peer is None:
            self._renew(0.0)  # it may have come, or ended, since we joined
            info = self._info(index)
            if info is None:
                return None
            peer = self._peers[index] = Peer(info, self, self.security, self.owner, self.map_memory)
            self.add(peer.link, peer.holds.drain)
        return peer

    def _info(self, index: int) -> m.ShardInfo | None:
        return next((shard for shard in self.shards if shard.index == index), None)

    def _store_where_room_is(self, extent: Extent) -> tuple[int, int]:
        """(shard, number of the first block). One shard may be full, or gone, or not up, while others have room: what was admitted is refused when
        all are."""
        gone: QueueGone | None = None
        full: QueueError | None = None
        patient = len(self.shards) < 2  # also with who was never reached
        free_by = time.monotonic() + ROOM_S
        try:
            while True:
                gone, full = None, None
                others = late = False  # there are other shards than when we began; some were not waited for
                for _ in range(max(1, len(self.shards))):
                    index = self._next_shard()
                    try:
                        peer = self._peer(index)
                        if patient or self.reaches(peer.link, peer.since + VERDICT_S):
                            return index, store(peer, extent, self.timeout_s)
                        late = True
                        others |= self._renew(0.0)  # its successor is to be found as soon as there is one
                    except QueueError as error:
                        if error.code == "unknown_shard":
                            others = True  # it ended between our choice and the first word to it
                        elif error.code in ("capacity", "draining"):
                            full = error
                        else:
                            raise
                    except QueueGone as error:
                        gone = error
                        others |= self._renew(0.0)  # also where another takes it: else the successor of the dead one gets nothing
                patient |= late
                if gone is None and full is not None and not late and not others:
                    if full.code != "capacity" or time.monotonic() >= free_by:
                        raise full
                    self._step(ROOM_LOOK_S, ())
                    continue
                if not late and not others and not self._renew(VERDICT_S):
                    assert gone is not None, "every shard was full, or gone"
                    raise gone
        finally:
            gone = full = None  # each keeps this frame, which would keep it: peers and arrays stayed until a full garbage collection

    def _read(
        self, gids: np.ndarray | Mapping[str, np.ndarray], columns: dict[str, np.ndarray], spec: m.TopicSpec, writable: bool
    ) -> dict[str, Column]:
        """`gids`: of the rows of each column, where they are not the same."""
        owners = gids if isinstance(gids, Mapping) else dict.fromkeys(columns, gids)
        if (few := read_few(columns, spec, self._peers)) is not None:
            return few
        while True:
            gathers = [Gather(name, owners[name], table, spec) for name, table in columns.items()]
            try:
                for index in set[int]().union(*(gather.shards() for gather in gathers)):
                    self._peer(index)  # before the first is asked: the roster may turn out to be another
                fetch(gathers, self._peer, self._buffers, self.timeout_s)
                return {gather.name: gather.result(self._buffers, writable) for gather in gathers}
            except (QueueGone, QueueTimeout, QueueError) as error:
                if not self._is_other(error):
                    raise
            if gone := self._gone(owners, columns):
                raise Gone(gone)

    def _is_other(self, error: Exception) -> bool:
        """Whether `error` is a shard's that ended, and the controller tells so."""
        if isinstance(error, QueueError):
            return error.code == "unknown_shard"
        return self._renew(VERDICT_S if isinstance(error, QueueGone) else 0.0)

    def _gone(self, owners: Mapping[str, np.ndarray], columns: Mapping[str, np.ndarray]) -> set[int]:
        """Those of the groups that lie in a shard, or in a life of one, that ended."""
        lives = {shard.index: shard.life for shard in self.shards}
        gone: set[int] = set()
        for name, table in columns.items():
            gids = owners[name]
            for index in np.unique(table[:, 0][table[:, 0] >= 0]).tolist():
                gone.update(gids[(table[:, 0] == index) & (table[:, 1] >> LIFE_BITS != lives.get(index, -1))].tolist())
        return gone

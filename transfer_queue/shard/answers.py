"""What a shard does with a request, and what it says: one reply, or none where the sender goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from transfer_queue.shard import messages as m
from transfer_queue.shard.loans import Loans
from transfer_queue.shard.messages import FREED, SWEPT
from transfer_queue.shard.readers import Readers
from transfer_queue.shard.refused import Refused
from transfer_queue.shard.store import Store
from transfer_queue.wire import Frame

Reply = tuple[m.ShardReply, Sequence[Any]]  # the header, and a buffer for each frame


class Answers:
    def __init__(self, store: Store) -> None:
        self.store, self.readers, self.loans = store, Readers(store), Loans(store)
        self.draining = False  # nothing new is taken in
        self.told = {FREED: 0.0, SWEPT: 0.0}  # how far the controller's messages have come, as our heartbeat says

    def answer(self, sender: bytes, request: m.ShardRequest, frames: list[Frame]) -> Reply | None:
        """Carry `request` of the connection `sender` out. Raises Refused, and nothing has changed then."""
        if frames and not isinstance(request, m.Write | m.Fill):
            raise Refused("malformed", f"{type(request).__name__} has no frames, {len(frames)} came")
        match request:
            case m.Write() | m.Fill() | m.Reserve() | m.ReserveAhead():
                reply: m.ShardReply = self._take_in(sender, request, frames)
            case m.Read() | m.Hold():
                return self._look(sender, request)
            case m.Describe():
                store = self.store
                reply = m.Described(descriptor=store.arena.descriptor(), arena_bytes=store.arena.nbytes, capacity_bytes=store.capacity_bytes)
            case m.Join():
                self.readers.join(sender, request.owner, request.pid if request.pid_namespace_ok else None)
                reply = m.Joined()
            case m.ShardStatus():
                reply = self._status()
            case _:
                self._end(sender, request)
                return None
        return _to(request, reply), ()

    def collect(self, most_bytes: int) -> int:
        """Between bursts: what came free elsewhere, and idle memory to the system, about `most_bytes` at a time. Returns how much is left to give."""
        self.loans.collect()
        self.readers.reap()
        self.store.reap()
        return self.store.cool(most_bytes)

    def is_drained(self) -> bool:
        """Nothing is left, and nothing can come: once this says so, a writer that reserved ahead finds that its room was taken back."""
        self.store.regions.revoke()
        self.store.look()
        return not self.store.blocks

    def close(self) -> None:
        self.readers.close()
        self.store.close()

    def _take_in(self, sender: bytes, request: m.Write | m.Fill | m.Reserve | m.ReserveAhead, frames: list[Frame]) -> m.ShardReply:
        if self.draining and not isinstance(request, m.Fill):
            raise Refused("draining", "this shard takes nothing new in: it ends when what it has is freed; write to another one")
        match request:
            case m.Write():
                return m.Written(first=self.store.write(request.owner, frames, request.cuts).first)
            case m.Reserve():
                extent = self.store.reserve(request.owner, request.cuts, sender, self.readers.writer(sender))
                return m.Reserved(first=extent.first, offset=extent.offset)
            case m.ReserveAhead():
                region = self.store.reserve_ahead(request.owner, sender, self.readers.writer(sender))
                return m.ReservedAhead(region=region.number, begin=region.begin)
            case m.Fill():
                if len(frames) != 1 or len(frames[0]) > m.FILL_BYTES:
                    raise Refused("malformed", f"Fill takes one frame of at most {m.FILL_BYTES} bytes, {[len(frame) for frame in frames[:8]]} came")
                self.store.fill(request.owner, request.block, request.start, frames[0], sender)
        return m.Filled()

    def _look(self, sender: bytes, request: m.Read | m.Hold) -> Reply:
        if isinstance(request, m.Read):
            self.store.check_read(request.columns)
            gone = self.store.missing(block for ranges in request.columns for block in ranges.blocks)
            if not gone:
                runs = [self.store.runs(ranges) for ranges in request.columns]  # all are checked before the first is lent
                frames = [self.loans.frame(found, ranges.blocks) for found, ranges in zip(runs, request.columns, strict=True)]
                return m.Found(id=request.id), frames
        else:
            gone = self.store.missing(request.blocks)
            if not gone:
                hold, offsets = self.readers.hold(sender, request.blocks)
                return m.Held(id=request.id, hold=hold, offsets=offsets), ()
        return m.NotFound(id=request.id, gone=gone), ()

    def _end(self, sender: bytes, request: m.ShardRequest) -> None:
        match request:
            case m.Free():
                self.store.free(request.blocks)
                self._heard(FREED, request.upto)
            case m.Sweep():
                self.store.sweep(request.owner, request.keep, self.readers.quarantine)
                self.readers.swept(request.owner)
                self._heard(SWEPT, request.upto)
            case m.Release():
                self.readers.release(sender, request.holds)
            case m.Seal():
                self.store.seal(request.region, sender, self.readers.writer(sender))
            case _:
                raise Refused("malformed", f"{type(request).__name__} is no request of a shard")

    def _heard(self, what: str, upto: int) -> None:
        self.told[what] = max(self.told[what], float(upto))

    def _status(self) -> m.ShardStatusReply:
        store = self.store
        store.look()
        return m.ShardStatusReply(
            blocks=len(store.blocks),
            used_bytes=store.used_bytes,
            capacity_bytes=store.capacity_bytes,
            owners=dict(store.owned_bytes),
            held_bytes=store.held_bytes,
            idle_bytes=store.space.warm.nbytes,
            extents=store.extents,
            ahead_bytes=store.regions.ahead_bytes,
            resident_bytes=store.arena.resident_bytes(),
        )


def _to(request: m.ShardRequest, reply: m.ShardReply) -> m.ShardReply:
    return msgspec.structs.replace(reply, id=request.id)

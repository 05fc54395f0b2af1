"""Room on one shard that a writer reserved ahead: small puts go there by a copy, and the shard is told nothing. See `transfer_queue.shard.region`.

The next region is asked for before the one in use is full, and nobody waits for it: where there is none, a put goes the ordinary way.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from shared_arena import ArenaUnreachable
from transfer_queue.errors import QueueError, QueueGone
from transfer_queue.layout import Extent
from transfer_queue.memory.mapping import Mapping
from transfer_queue.pending import Pending
from transfer_queue.shard import messages as sm
from transfer_queue.shard.extents import aligned
from transfer_queue.shard.region import (
    BLOCKS,
    INDEX_BITS,
    PUTS_AT,
    REGION_BYTES,
    REVOKED_AT,
    begins_of,
    fence,
    head_bytes,
    write_head,
)

if TYPE_CHECKING:
    from transfer_queue.peer import Peer

LOW = 4  # the next region is asked for when so small a part of this one is left
PATIENCE = 256  # small puts between two questions, where the shard said no
WARM_BYTES = 16 << 10  # of the region, mapped together ahead of the puts: a call of the system for each put would cost as much as its copy


class Room:
    """One region, and how much of it is used."""

    def __init__(self, memory: Mapping, granted: sm.ReservedAhead) -> None:
        self.region = granted.region
        self._mapping, self._begin = memory, granted.begin
        self._memory = memory.writable(granted.begin, REGION_BYTES)
        self._begins = begins_of(self._memory)
        self._end, self.used = PUTS_AT, 0  # bytes and blocks
        self._warm = 0  # up to where pages are mapped

    @property
    def low(self) -> bool:
        return REGION_BYTES - self._end < REGION_BYTES // LOW or BLOCKS - self.used < BLOCKS // LOW

    @property
    def revoked(self) -> bool:
        return bool(self._memory[REVOKED_AT])

    def put(self, extent: Extent) -> range | None:
        """The blocks; None where it does not fit. Nobody sees a thing before the last line but two."""
        groups = extent.layout.groups
        begin = self._end + head_bytes(len(extent.cuts), groups)
        end, first = begin + extent.nbytes, self.used
        if end > REGION_BYTES or first + groups > BLOCKS:
            return None
        if end > self._warm:
            self._warm = min(max(end, self._warm + WARM_BYTES), REGION_BYTES)
            self._mapping.room(self._begin + self._end, self._warm - self._end)
        extent.fill(self._memory[begin:end])
        write_head(self._memory, begin, first, np.array(extent.cuts, dtype=np.uint32))
        self._end, self.used = aligned(end), first + groups  # first: where an interrupt (Ctrl-C) falls in here, the next put overwrites nothing
        self._begins[first : first + groups] = begin
        fence()
        return self.blocks(first)

    def blocks(self, first: int) -> range:
        """From the `first` here to the last one that was put."""
        base = self.region << INDEX_BITS
        return range(base + first, base + self.used)


class Ahead:
    """Invariant: at most two regions, the one in use and the one that was asked for."""

    def __init__(self, peer: Peer, memory: Mapping) -> None:
        self._peer: Peer = weakref.proxy(peer)  # whose part this is: with each other they would stay until a full garbage collection
        self._memory = memory
        self._room: Room | None = None
        self._asked: Pending[Any] | None = None
        self._patience = 0  # small puts that still go the ordinary way without a question

    def put(self, extent: Extent) -> int | None:
        """The number of the first block; None where it goes the ordinary way."""
        if not self._peer.link.up:
            return None  # whether the shard still lives, the ordinary way finds out
        first = self._put(extent)
        if first is None and self._next():
            first = self._put(extent)
        if self._peer.memory is not None and (self._room is None or self._room.low):
            self._ask()
        return first

    def _put(self, extent: Extent) -> int | None:
        room = self._room
        if room is None:
            return None
        before = room.used
        try:
            blocks = room.put(extent)
        except BaseException:  # whatever it is, Ctrl-C included: nobody will name what is there
            self._peer.free(list(room.blocks(before)))
            raise
        if blocks is None:
            return None
        if room.revoked:  # the shard may not have seen this one
            self._peer.free(list(blocks))
            self._leave()
            self._patience = PATIENCE
            return None
        return blocks[0]

    def _next(self) -> bool:
        """Whether the region that was asked for is in use now."""
        if self._asked is None:
            return False
        self._peer.link.look()  # who only writes looks at no replies
        if not self._asked.done():
            return False
        asked, self._asked = self._asked, None
        try:
            granted, _ = asked.result(0.0)
        except (QueueError, QueueGone):  # it has no room to reserve, or takes nothing in
            self._patience = PATIENCE
            return False
        self._leave()
        try:
            self._room = Room(self._memory, granted)
        except ArenaUnreachable:
            self._peer.link.post(sm.Seal(region=granted.region))
            self._peer.by_bytes()
            return False
        return True

    def _ask(self) -> None:
        if self._patience:
            self._patience -= 1
        elif self._asked is None:
            self._asked = self._peer.ask(sm.ReserveAhead(owner=self._peer.owner))

    def _leave(self) -> None:
        if self._room is not None:
            self._peer.link.post(sm.Seal(region=self._room.region))
        self._room = None

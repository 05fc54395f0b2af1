"""The regions of a shard: who has which, which puts in them are known, and when their memory is used again. See `region` for what lies in one.

A shard hears of a put in a region when somebody names one of its blocks (a free, a read, a hold, a sweep) or when it looks, and takes it over then:
from there on it is an extent like any other. What a writer's process wrote there by mistake or by malice is no put, and hurts its own rows only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np
from sortedcontainers import SortedDict

from shared_arena.sparse import PrivateArena, SparseArena
from transfer_queue.shard.extent import Extent, Writer
from transfer_queue.shard.extents import aligned
from transfer_queue.shard.messages import LIFE_BITS
from transfer_queue.shard.refused import Refused
from transfer_queue.shard.region import (
    IN_REGION,
    INDEX_BITS,
    PUTS_AT,
    REGION_BYTES,
    REVOKED_AT,
    SLOT_BITS,
    SLOTS,
    TABLE,
    TABLE_BYTES,
    USES,
    begins_of,
    fence,
    head_bytes,
    read_head,
    region_of,
)
from transfer_queue.shard.space import Space

MOST_OPEN = 2  # regions of one connection: the one it fills, and the next
SHARE = 8  # this part of the capacity, at most, is room that is reserved ahead


class Region:
    """`puts`: those that are known, begin → end. Both, like all that a writer says, are counted from the region's begin."""

    __slots__ = ("ahead", "begin", "known", "left", "memory", "number", "owner", "puts", "seen", "shut", "source", "writer")

    def __init__(self, number: int, begin: int, memory: np.ndarray, owner: str, source: bytes, writer: Writer) -> None:
        self.number, self.begin, self.memory = number, begin, memory
        self.owner, self.source, self.writer = owner, source, writer
        self.puts: SortedDict[int, int] = SortedDict()
        self.seen: set[int] = set()  # where columns begin, of puts and of what turned out to be none
        self.known: set[int] = set()  # blocks of puts, by place in the region
        self.left = 0  # of these, blocks that were not freed
        self.ahead = REGION_BYTES  # of it, what counts as reserved and not used
        self.shut = False  # what is written there from now on is no put

    @property
    def first(self) -> int:
        return self.number << INDEX_BITS

    def rests(self) -> Iterator[tuple[int, int]]:
        """(begin in the arena, bytes) of what is neither a directory's nor a put's."""
        end = PUTS_AT
        for begin, stop in self.puts.items():
            yield self.begin + end, begin - end
            end = stop
        yield self.begin + end, REGION_BYTES - end


class Regions:
    """Invariant: a region is in `_all` until its writer is through, or gone, and its last block was freed; in `_open` until the first of the two."""

    def __init__(self, arena: SparseArena | PrivateArena, space: Space, capacity_bytes: int) -> None:
        self._arena, self._space, self._most_bytes = arena, space, capacity_bytes // SHARE
        self._all: dict[int, Region] = {}  # by number
        self._open: dict[int, Region] = {}
        self._uses = list[int]()  # by slot, how often it was used
        self._vacant = deque[int]()  # slots
        self._table: np.ndarray | None = None
        self._life = 0
        self.ahead_bytes = 0  # of all regions

    def begin(self, life: int) -> None:
        self._life = life

    # ------------------------------------------------------------ to writers

    def grant(self, owner: str, source: bytes, writer: Writer | None, room: int) -> Region:
        """`room`: bytes that the shard may still take in. Raises Refused."""
        if writer is None or writer.ended:
            raise Refused("bad_request", "only a process that joined, and whose end this shard sees, reserves ahead; send Join, or Write")
        if sum(region.source == source for region in self._open.values()) >= MOST_OPEN:
            raise Refused("too_many", f"this connection has {MOST_OPEN} regions: fill and seal one of them, or Write")
        taken = len(self._open) * REGION_BYTES
        if min(room, self._most_bytes - taken) < REGION_BYTES:
            raise Refused("capacity", f"{taken} bytes are reserved ahead, {self._most_bytes} may be, {room} are free: Write instead")
        begin = self._space.take(REGION_BYTES) if self._has_slot() else None
        if begin is None:
            raise Refused("capacity", f"{len(self._all)} regions have blocks in them, and there is no place for one more: Write instead")
        return self._open_region(begin, owner, source, writer)

    def _has_slot(self) -> bool:
        """Whether one is vacant, and there is a table for it."""
        if self._table is None and (begin := self._space.take(TABLE_BYTES)) is not None:
            self._table = self._arena.array[begin : begin + TABLE_BYTES].view(TABLE)
            self._arena.note[0] = begin
        return self._table is not None and (bool(self._vacant) or len(self._uses) < SLOTS)

    def _open_region(self, begin: int, owner: str, source: bytes, writer: Writer) -> Region:
        assert self._table is not None
        if not self._vacant:
            self._vacant.append(len(self._uses))
            self._uses.append(0)
        slot = self._vacant.popleft()
        number = (self._life << LIFE_BITS | IN_REGION) >> INDEX_BITS | self._uses[slot] << SLOT_BITS | slot
        self._uses[slot] += 1
        memory = self._arena.array[begin : begin + REGION_BYTES]
        memory[:PUTS_AT] = 0
        self._table[slot] = number, begin
        region = self._all[number] = self._open[number] = Region(number, begin, memory, owner, source, writer)
        self.ahead_bytes += REGION_BYTES
        return region

    def revoke(self) -> None:
        """Room ahead is taken back: a put that is not there by now will not be. Its writer looks for this after it wrote, so one of us sees the
        other. The memory stays its writer's until it is through."""
        for region in self._open.values():
            region.memory[REVOKED_AT] = 1
            self._lower(region, region.ahead)
        fence()

    def _lower(self, region: Region, nbytes: int) -> None:
        """So much less is reserved ahead; nothing is where that was taken back."""
        less = min(nbytes, region.ahead)
        region.ahead -= less
        self.ahead_bytes -= less

    # ------------------------------------------------------------ puts

    def found(self, block: int) -> Extent | None:
        """The extent of the put that `block`, which the store does not know, is a block of; None where it was known before, or there is none."""
        region = self._all.get(region_of(block))
        if region is None or region.shut or block - region.first in region.known:
            return None
        return self._take_over(region, int(begins_of(region.memory)[block - region.first]))

    def look(self, owner: str | None = None) -> Iterator[Extent]:
        """Puts into open regions, of `owner` or of everybody, that were not known."""
        for region in list(self._open.values()):
            if owner in (None, region.owner):
                yield from self._look(region)

    def _look(self, region: Region) -> Iterator[Extent]:
        if region.shut:
            return
        for begin in np.unique(begins_of(region.memory)).tolist():
            extent = self._take_over(region, begin)
            if extent is not None:
                yield extent

    def _take_over(self, region: Region, begin: int) -> Extent | None:
        """Checked against all that is known: whatever a writer says, no byte and no block is in two extents."""
        if not begin or begin in region.seen:
            return None
        region.seen.add(begin)
        found = read_head(region.memory, begin)
        if found is None:
            return None
        first, marks = found
        columns, groups = marks.shape[0], marks.shape[1] - 1
        head = head_bytes(columns, groups)
        end = aligned(begin + int(marks[-1, -1]))
        at = region.puts.bisect_left(end) - 1  # the last that begins before our end
        if begin - head < PUTS_AT or end > REGION_BYTES or (at >= 0 and region.puts.peekitem(at)[1] > begin - head):
            return None
        blocks = range(first, first + groups)
        if not region.known.isdisjoint(blocks):
            return None
        region.known.update(blocks)
        region.left += groups
        region.puts[begin - head] = end
        self._lower(region, end - begin + head)
        extent = Extent(region.first + first, region.owner, region.begin + begin, marks, b"", None, head)
        extent.through = True
        return extent

    def gone(self, blocks: Iterable[int]) -> None:
        """These blocks of one extent were freed: readers are told before their memory is used again."""
        numbers = list(blocks)
        region = self._all[region_of(numbers[0])]
        region.memory[np.array(numbers) - region.first] = 1
        region.left -= len(numbers)
        self._forget(region)

    # ------------------------------------------------------------ ends

    def seal(self, number: int | None, source: bytes, writer: Writer | None) -> Iterator[Extent]:
        """`writer` is through with its region `number`, or with all that connection `source` has. Yields what it had put there."""
        for region in list(self._open.values()):
            if writer is not None and region.writer is writer and (region.number == number if number is not None else region.source == source):
                yield from self._close(region)

    def reap(self) -> Iterator[Extent]:
        """Of writers that ended."""
        for region in list(self._open.values()):
            if region.writer.ended:
                yield from self._close(region)

    def shut(self, owner: str) -> None:
        """`owner` ended. Its process may still write there for a while, until it looks: then it is told that it ended."""
        for region in self._open.values():
            if region.owner == owner:
                region.shut = True
                region.memory[REVOKED_AT] = 1
                self._lower(region, region.ahead)

    def _close(self, region: Region) -> Iterator[Extent]:
        """Nobody writes there any more: what is no put's is free."""
        yield from self._look(region)
        region.shut = True
        del self._open[region.number]
        self._lower(region, region.ahead)
        self._space.give(list(region.rests()))
        self._forget(region)

    def _forget(self, region: Region) -> None:
        """When nothing is left of it. The table goes first: a reader looks at it last."""
        if region.left or region.number in self._open:
            return
        assert self._table is not None
        slot = region.number & SLOTS - 1
        self._table[slot] = 0, 0
        if self._uses[slot] < USES:
            self._vacant.append(slot)
        del self._all[region.number]
        self._space.give([(region.begin, PUTS_AT)])

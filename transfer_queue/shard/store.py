"""What a shard holds: extents of its arena, the blocks in them, who owns them, and who keeps them from being reused. No sockets here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from shared_arena import sparse
from transfer_queue.shard.checks import check_cuts, check_frames, check_ranges, marks_of, split_owner
from transfer_queue.shard.extent import PAGE, Extent, Writer
from transfer_queue.shard.messages import LIFE_BITS, Ranges
from transfer_queue.shard.refused import Refused
from transfer_queue.shard.region import IN_REGION
from transfer_queue.shard.regions import Region, Regions
from transfer_queue.shard.space import Space
from transfer_queue.wire import Frame

ROOM = 8  # times the capacity is what the arena could hold, so that holes between what is held never refuse a write: only pages in use are memory
KEEP_BYTES = 256 << 20

Keep = Callable[[Writer, list[int]], None]


class Store:
    """Invariants: `used_bytes` = what the blocks in `blocks` were asked for; `by_owner` partitions their numbers; live extents do not overlap.

    A block that was freed while it is held is in `lingering` until the last hold ends: it can be read no more, and its bytes stay as they are.
    What writers put into regions is in `blocks` once it was named, or `look` was called.
    """

    def __init__(self, capacity_bytes: int, keep_bytes: int = KEEP_BYTES) -> None:
        self.capacity_bytes, self.keep_bytes = capacity_bytes, keep_bytes
        self.arena = sparse(ROOM * capacity_bytes, user="samples")
        self.space = Space(self.arena.nbytes, PAGE)
        self.regions = Regions(self.arena, self.space, capacity_bytes)
        self.used_bytes = 0
        self.held_bytes = 0  # of what lingers
        self.extents = 0
        self.blocks: dict[int, Extent] = {}
        self.lingering: dict[int, Extent] = {}
        self.by_owner: dict[str, set[int]] = {}
        self.owned_bytes: Counter[str] = Counter()
        self._holds: dict[int, int] = {}  # block → holds on it
        self._ended: dict[str, int] = {}  # name → newest incarnation that was swept
        self._next = 0  # numbers are never used twice: a stale slice must not find somebody else's bytes

    def begin(self, life: int) -> None:
        """Before the first write: the shard is in its `life`-th life, and no block of another one has a number of this one."""
        self._next = life << LIFE_BITS
        self.regions.begin(life)

    # ------------------------------------------------------------ in

    def reserve(self, owner: str, cuts: Sequence[Sequence[int]], source: bytes = b"", writer: Writer | None = None) -> Extent:
        """Room for the columns, for the connection `source`; `writer` may copy them there by itself. Raises Refused."""
        self._check_owner(owner)
        needed = check_cuts(cuts)
        if needed > self._room() and self.regions.ahead_bytes:  # who needs room now is before who may need it
            self.regions.revoke()
            self.look()
        if needed > self._room():
            raise Refused("capacity", self._full(needed))
        marks = marks_of(cuts)
        offset = self._take(int(marks[-1, -1]), writer) if needed else 0
        if offset is None:
            raise Refused("capacity", f"{self._full(needed)}. Readers hold {self.held_bytes} bytes that were freed: let go of what was read")
        extent = Extent(self._next, owner, offset, marks, source, writer)
        self._next += len(extent.blocks)
        self._add(extent)
        return extent

    def _take(self, nbytes: int, writer: Writer | None) -> int | None:
        """Where `writer` had its bytes before, if it can be: a copy into memory that is not mapped there yet takes twice as long."""
        if writer is None:
            return self.space.take(nbytes)
        begin = self.space.take(nbytes, writer.had)
        if begin is not None:
            if begin in writer.had:
                writer.had.remove(begin)
            writer.had.append(begin)
        return begin

    def _room(self) -> int:
        """Bytes that may still be stored: what is reserved ahead is as good as stored."""
        return self.capacity_bytes - self.used_bytes - self.regions.ahead_bytes

    def _add(self, extent: Extent) -> None:
        self.blocks.update(dict.fromkeys(extent.blocks, extent))
        self.by_owner.setdefault(extent.owner, set()).update(extent.blocks)
        self.owned_bytes[extent.owner] += extent.asked_bytes
        self.used_bytes += extent.asked_bytes
        self.extents += 1

    def reserve_ahead(self, owner: str, source: bytes, writer: Writer | None) -> Region:
        """A region for `writer`, behind connection `source`. Raises Refused."""
        self._check_owner(owner)
        return self.regions.grant(owner, source, writer, self._room())

    def seal(self, region: int | None, source: bytes, writer: Writer | None) -> None:
        """See Regions.seal."""
        self._take_over(self.regions.seal(region, source, writer))

    def look(self) -> None:
        """Take over what was put into regions meanwhile."""
        self._take_over(self.regions.look())

    def reap(self) -> None:
        """Writers that ended write no more."""
        self._take_over(self.regions.reap())

    def _take_over(self, extents: Iterable[Extent]) -> None:
        for extent in extents:
            self._add(extent)

    def _know(self, blocks: Iterable[int]) -> None:
        """Take over the puts that these blocks are of."""
        for block in blocks:
            if block & IN_REGION and block not in self.blocks and (extent := self.regions.found(block)) is not None:
                self._add(extent)

    def write(self, owner: str, frames: Sequence[Frame], cuts: Sequence[Sequence[int]]) -> Extent:
        """Reserve and fill: frame c is column c. All or nothing."""
        check_frames(frames, cuts)
        extent = self.reserve(owner, cuts)
        for begin, frame in zip(extent.marks[:, 0].tolist(), frames, strict=True):
            self._copy(extent.offset + begin, frame)
        extent.through = True
        return extent

    def fill(self, owner: str, block: int, start: int, frame: Frame, source: bytes = b"") -> None:
        """`frame` becomes bytes [start, …) of the extent whose first block is `block`."""
        self._check_owner(owner)
        extent = self.blocks.get(block)
        if extent is None or extent.first != block or (extent.owner, extent.source) != (owner, source):
            raise Refused("bad_request", f"block={block} is not the first that {owner!r} reserved on this connection, or it was freed; write again")
        if extent.through:
            raise Refused("bad_request", f"block={block} was written whole, or read: what was read never changes; reserve another")
        if not 0 <= start <= start + len(frame) <= extent.nbytes:
            raise Refused("malformed", f"bytes [{start}, {start} + {len(frame)}) of an extent of {extent.nbytes}: none were copied")
        self._copy(extent.offset + start, frame)

    def _copy(self, begin: int, frame: Frame) -> None:
        self.arena.array[begin : begin + len(frame)] = np.frombuffer(frame, dtype=np.uint8)

    def _check_owner(self, owner: str) -> None:
        name, incarnation = split_owner(owner)
        if incarnation <= self._ended.get(name, -1):
            raise Refused("stale_owner", f"owner={owner!r} was declared dead: what it writes would never be freed; register again")

    def _full(self, needed: int) -> str:
        return (
            f"{needed} bytes do not fit: {self.used_bytes} of capacity_bytes={self.capacity_bytes} are used; nothing was stored. "
            "The topics' budget_bytes admit more than the shards hold: lower them, or add shards or capacity"
        )

    # ------------------------------------------------------------ out

    def missing(self, blocks: Iterable[int]) -> list[int]:
        """Blocks named that are not here, each once."""
        named = set(blocks)
        self._know(named)
        return sorted(block for block in named if block not in self.blocks)  # a set less `keys()` walks all keys

    def check_read(self, columns: Sequence[Ranges]) -> None:
        check_ranges(columns, self.capacity_bytes)

    def runs(self, ranges: Ranges) -> list[tuple[int, int]]:
        """The bytes of one column of a read, all blocks being here, as [begin, end) of the arena; ranges that touch are one run."""
        runs: list[tuple[int, int]] = []
        for block, start, stop in zip(ranges.blocks, ranges.starts, ranges.stops, strict=True):
            extent = self.blocks[block]
            if not extent.owns(block, start, stop):
                raise Refused("malformed", f"bytes [{start}, {stop}) are not block {block}'s: slice and dtype do not fit together")
            extent.through = True
            begin, end = extent.offset + start, extent.offset + stop
            if runs and runs[-1][1] == begin:
                runs[-1] = runs[-1][0], end
            elif begin < end:
                runs.append((begin, end))
        return runs

    def hold(self, blocks: Iterable[int]) -> None:
        """Bytes of these blocks, each of them here or held already, stay as they are until `release`."""
        for block in blocks:
            self._holds[block] = self._holds.get(block, 0) + 1

    def offsets(self, blocks: Iterable[int]) -> list[int]:
        """Where the extents of these blocks begin. They were published, then: nobody writes to them any more."""
        found = [self.blocks[block] for block in blocks]
        for extent in found:
            extent.through = True
        return [extent.offset for extent in found]

    def release(self, blocks: Iterable[int]) -> None:
        """One hold less on each; blocks that were freed meanwhile give their memory back."""
        over = []
        for block in blocks:
            self._holds[block] -= 1
            if self._holds[block] == 0:
                del self._holds[block]
                if block in self.lingering:
                    over.append(block)
        found = _taken_out(over, self.lingering)
        self.held_bytes -= sum(extent.used_bytes(numbers) for extent, numbers in found.items())
        self._give_back(found)

    # ------------------------------------------------------------ end

    def free(self, blocks: Iterable[int]) -> int:
        """Returns the bytes freed. Unknown numbers are ignored: freeing is idempotent."""
        numbered = list(blocks)
        self._know(numbered)
        before = self.used_bytes
        found = _taken_out(numbered, self.blocks)
        for extent, numbers in found.items():
            if extent.first & IN_REGION:
                self.regions.gone(numbers)
            nbytes = extent.used_bytes(numbers)
            self.used_bytes -= nbytes
            self._disown(extent.owner, numbers, nbytes)
            if not self._holds.keys().isdisjoint(numbers):
                held = [block for block in numbers if block in self._holds]
                self.held_bytes += extent.used_bytes(held)
                self.lingering.update(dict.fromkeys(held, extent))
                found[extent] = [block for block in numbers if block not in self._holds]
        self._give_back(found)
        return before - self.used_bytes

    def sweep(self, owner: str, keep: Collection[int], quarantine: Keep | None = None) -> int:
        """`owner` has ended: free what it never published; `quarantine` holds what its process may still write to. Returns the bytes freed."""
        name, incarnation = split_owner(owner)
        self._ended[name] = max(incarnation, self._ended.get(name, -1))
        self._take_over(self.regions.look(owner))
        self.regions.shut(owner)
        swept = self.by_owner.get(owner, set()) - set(keep)
        if quarantine is not None:
            for block in swept:
                extent = self.blocks[block]
                if extent.writer is not None and not extent.writer.ended and not extent.through:
                    quarantine(extent.writer, [block])
        return self.free(swept)

    def cool(self, most: int) -> int:
        """Give at most about `most` idle bytes above `keep_bytes` back to the system; returns how many are left to give."""
        for begin, nbytes in self.space.cool(self.keep_bytes, most):
            self.arena.punch(begin, nbytes)
        return max(self.space.warm.paged_bytes - self.keep_bytes, 0)

    def close(self) -> None:
        self.arena.close()

    def _give_back(self, found: dict[Extent, list[int]]) -> None:
        ranges: list[tuple[int, int]] = []
        for extent, numbers in found.items():
            if numbers:
                ranges += extent.release(numbers)
                self.extents -= extent.left == 0
        self.space.give(ranges)

    def _disown(self, owner: str, blocks: list[int], nbytes: int) -> None:
        owned = self.by_owner[owner]
        owned.difference_update(blocks)
        self.owned_bytes[owner] -= nbytes
        if not owned:
            del self.by_owner[owner], self.owned_bytes[owner]


def _taken_out(blocks: Iterable[int], table: dict[int, Extent]) -> dict[Extent, list[int]]:
    """Those of the blocks that were in `table`, by extent; they are in it no more."""
    found: dict[Extent, list[int]] = {}
    for block in blocks:
        extent = table.pop(block, None)
        if extent is not None:
            found.setdefault(extent, []).append(block)
    return found

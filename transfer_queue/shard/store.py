"""What a shard holds: immutable blocks, their owners, and the exact number of bytes. No sockets here.

One `bytes` object a block, one block a (group, column): when a group goes, its memory goes, however it was written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from transfer_queue.shard.messages import Ranges

Bytes = bytes | memoryview


class Refused(Exception):
    """A request that breaks a rule; nothing changed. Becomes a ShardError with this code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Block(msgspec.Struct, frozen=True, gc=False):
    data: bytes
    owner: str


@dataclass
class Store:
    """Invariant: used_bytes == sum of len(block.data); by_owner partitions the numbers of `blocks`."""

    capacity_bytes: int
    used_bytes: int = 0
    blocks: dict[int, Block] = field(default_factory=dict)
    by_owner: dict[str, set[int]] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)  # name -> newest incarnation that was swept
    next_block: int = 0  # numbers are never used twice: a stale slice must not find somebody else's bytes

    def write(self, owner: str, frames: Sequence[Bytes], cuts: Sequence[Sequence[int]]) -> int:
        """Cut every frame into blocks; returns the number of the first. All or nothing."""
        self._check_write(owner, frames, cuts)
        pieces = [bytes(frame[start:stop]) for frame, marks in zip(frames, cuts, strict=True) for start, stop in pairwise(marks)]
        first, self.next_block = self.next_block, self.next_block + len(pieces)
        if pieces:
            self.by_owner.setdefault(owner, set()).update(range(first, self.next_block))
        for number, piece in enumerate(pieces, first):
            self.blocks[number] = Block(piece, owner)
            self.used_bytes += len(piece)
        return first

    def _check_write(self, owner: str, frames: Sequence[Bytes], cuts: Sequence[Sequence[int]]) -> None:
        name, incarnation = split_owner(owner)
        if incarnation <= self.ended.get(name, -1):
            raise Refused("stale_owner", f"owner={owner!r} was declared dead: what it writes would never be freed; register again")
        if len(frames) != len(cuts):
            raise Refused("malformed", f"{len(cuts)} columns announced, {len(frames)} frames came: send one frame a column")
        for column, (frame, marks) in enumerate(zip(frames, cuts, strict=True)):
            ascending = all(a <= b for a, b in pairwise(marks))
            if len(marks) != len(cuts[0]) or len(marks) < 1 or marks[0] != 0 or marks[-1] != len(frame) or not ascending:
                raise Refused("malformed", f"cuts[{column}] must ascend from 0 to the frame's {len(frame)} bytes, and all columns have as many cuts")
        needed = sum(len(frame) for frame in frames)
        if self.used_bytes + needed > self.capacity_bytes:
            raise Refused(
                "capacity",
                f"{needed} bytes do not fit: {self.used_bytes} of capacity_bytes={self.capacity_bytes} are used; nothing was stored. "
                "The topics' budget_bytes admit more than the shards hold: lower them, or add shards or capacity",
            )

    def check_read(self, columns: Iterable[Ranges]) -> None:
        """A reply holds no more than the shard may: a few bytes of request could else ask for all memory, many times over."""
        asked = sum(stop - start for ranges in columns for start, stop in zip(ranges.starts, ranges.stops, strict=False))
        if asked > self.capacity_bytes:
            raise Refused(
                "capacity",
                f"{asked} bytes were asked for at once, more than capacity_bytes={self.capacity_bytes}: none are sent; read fewer rows at a time",
            )

    def missing(self, ranges: Iterable[Ranges]) -> list[int]:
        """Blocks named that are not here, each once."""
        return sorted({block for column in ranges for block in column.blocks if block not in self.blocks})

    def read(self, ranges: Ranges) -> bytes:
        """The concatenation of all ranges: the block itself where one whole block is asked for, else one copy."""
        if not len(ranges.blocks) == len(ranges.starts) == len(ranges.stops):
            raise Refused("malformed", f"{len(ranges.blocks)} blocks, {len(ranges.starts)} starts, {len(ranges.stops)} stops: they go together")
        parts = []
        for block, start, stop in zip(ranges.blocks, ranges.starts, ranges.stops, strict=True):
            data = self.blocks[block].data
            if not 0 <= start <= stop <= len(data):
                raise Refused("malformed", f"bytes [{start}, {stop}) of block {block}, which has {len(data)}: slice and dtype do not fit together")
            parts.append(data if stop - start == len(data) else memoryview(data)[start:stop])
        return b"".join(parts)  # CPython returns a lone bytes object as it is

    def free(self, blocks: Iterable[int]) -> int:
        """Returns the bytes freed. Unknown numbers are ignored: freeing is idempotent."""
        before = self.used_bytes
        for number in blocks:
            block = self.blocks.pop(number, None)
            if block is None:
                continue
            self.used_bytes -= len(block.data)
            owned = self.by_owner[block.owner]
            owned.discard(number)
            if not owned:
                del self.by_owner[block.owner]
        return before - self.used_bytes

    def sweep(self, owner: str, keep: Collection[int]) -> int:
        """`owner` has ended: free what it never published. Returns the bytes freed."""
        name, incarnation = split_owner(owner)
        self.ended[name] = max(incarnation, self.ended.get(name, -1))
        return self.free(self.by_owner.get(owner, set()) - set(keep))


def split_owner(owner: str) -> tuple[str, int]:
    """ "rollout-0#3" → ("rollout-0", 3)."""
    name, _, incarnation = owner.rpartition("#")
    if not name or not incarnation.isdecimal():
        raise Refused("malformed", f"owner={owner!r} must be 'name#incarnation'")
    return name, int(incarnation)

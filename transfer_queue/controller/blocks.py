"""Which shard blocks are referred to, and by how many owners: memory goes when the last owner goes, and never earlier.

An owner is a prompt (its shared columns) or a group (its rows' columns). A refused message names blocks too; they are freed unless an owner has them,
so that the repeat of a message never frees what its first copy stored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from transfer_queue.messages import Slice

BlockId = tuple[int, int]  # (shard, block)


def ids_of(slices: Iterable[Slice]) -> set[BlockId]:
    return {(piece.shard, piece.block) for piece in slices}


class Blocks:
    def __init__(self) -> None:
        self._owners: dict[int, dict[int, int]] = defaultdict(dict)  # shard -> block -> owners
        self.frees: dict[int, list[int]] = {}  # shard -> blocks to free, drained by the server

    def hold(self, blocks: Iterable[BlockId]) -> None:
        """One more owner of each block."""
        for shard, block in blocks:
            owners = self._owners[shard]
            owners[block] = owners.get(block, 0) + 1

    def release(self, blocks: Iterable[BlockId]) -> None:
        """One owner less of blocks that are held; those without any are freed."""
        for shard, block in blocks:
            owners = self._owners[shard]
            left = owners.get(block, 0) - 1
            if left > 0:
                owners[block] = left
            else:
                owners.pop(block, None)
                if not owners:
                    del self._owners[shard]
                self.frees.setdefault(shard, []).append(block)

    def refuse(self, slices: Iterable[Slice]) -> None:
        """Free the blocks of a refused message that nobody owns. Call it after every `hold` of the same message."""
        for shard, block in ids_of(slices):
            if block not in self._owners.get(shard, ()):
                self.frees.setdefault(shard, []).append(block)

    def live(self, shard: int) -> list[int]:
        return list(self._owners[shard]) if shard in self._owners else []

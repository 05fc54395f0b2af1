"""Small rows out of regions without a word to the shard: found by the numbers of their blocks, copied, and looked at again.

What was freed before the copy was made is not there then; what became of it, the ordinary way says. See `transfer_queue.shard.region`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from transfer_queue.memory.mapping import Mapping
from transfer_queue.shard.region import BEGINS_AT, BLOCKS, INDEX_BITS, PUTS_AT, REGION_BYTES, SLOTS, TABLE, TABLE_BYTES

FEW = 16  # blocks that are looked at one by one: operations on arrays would cost more
_ENTRY, _BEGIN = struct.Struct("=qq"), struct.Struct("=I")


def find(memory: Mapping, blocks: np.ndarray) -> np.ndarray | None:
    """Where in the arena the extents of `blocks`, [n] int64 with IN_REGION, begin; None where one of them is not there. They may go any time."""
    if len(blocks) <= FEW:
        seen: dict[int, int] = {}
        found = [find_one(memory, block, seen) for block in blocks.tolist()]
        return None if -1 in found else np.array(found, dtype=np.int64)
    directories = _directories(memory, blocks)
    if directories is None:
        return None
    begins = memory.words[(directories + BEGINS_AT >> 2) + (blocks & BLOCKS - 1)]
    there = (begins >= PUTS_AT) & (begins <= REGION_BYTES)
    return directories + begins if there.all() else None


def still_there(memory: Mapping, blocks: np.ndarray) -> bool:
    """Whether nothing was freed until now: what was copied before is what was put. The table is looked at last, see `region`."""
    if len(blocks) <= FEW:
        return few_still_there(memory, blocks.tolist())
    directories = _directories(memory, blocks)
    if directories is None or memory.readable[directories + (blocks & BLOCKS - 1)].any():
        return False
    again = _directories(memory, blocks)
    return again is not None and bool((again == directories).all())


def find_one(memory: Mapping, block: int, seen: dict[int, int]) -> int:
    """Where the extent of one block begins, -1: it is not there. `seen`: where the regions of earlier ones begin."""
    region = block >> INDEX_BITS
    directory = seen.get(region)
    if directory is None:
        directory = seen[region] = _directory(memory, block)
    if directory < 0:
        return -1
    (begin,) = _BEGIN.unpack_from(memory.bytes, directory + BEGINS_AT + 4 * (block & BLOCKS - 1))
    return directory + begin if PUTS_AT <= begin <= REGION_BYTES else -1


def few_still_there(memory: Mapping, blocks: Sequence[int]) -> bool:
    """`still_there`, of a few."""
    directories = {block >> INDEX_BITS: _directory(memory, block) for block in blocks}
    if min(directories.values(), default=0) < 0 or any(memory.bytes[directories[block >> INDEX_BITS] + (block & BLOCKS - 1)] for block in blocks):
        return False
    return all(_directory(memory, region << INDEX_BITS) == directory for region, directory in directories.items())


def _directory(memory: Mapping, block: int) -> int:
    """Where the region of `block` begins; -1: the table does not have it."""
    at = memory.note.item() + TABLE.itemsize * (block >> INDEX_BITS & SLOTS - 1)
    if not 0 <= at <= len(memory.bytes) - TABLE.itemsize:
        return -1
    region, begin = _ENTRY.unpack_from(memory.bytes, at)
    return begin if region == block >> INDEX_BITS and 0 <= begin <= len(memory.bytes) - REGION_BYTES else -1


def _directories(memory: Mapping, blocks: np.ndarray) -> np.ndarray | None:
    """The same of all; None where the table does not have one of them."""
    begin = memory.note.item()
    if not 0 <= begin <= len(memory.readable) - TABLE_BYTES:
        return None
    found = memory.readable[begin : begin + TABLE_BYTES].view(TABLE)[blocks >> INDEX_BITS & SLOTS - 1]
    begins = found["begin"]
    if (found["region"] != blocks >> INDEX_BITS).any() or (begins < 0).any() or (begins > len(memory.readable) - REGION_BYTES).any():
        return None
    return begins

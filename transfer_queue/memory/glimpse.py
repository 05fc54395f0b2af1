"""Small rows out of regions without a word to the shard: found by the numbers of their blocks, copied, and looked at again.

What was freed before the copy was made is not there then; what became of it, the ordinary way says. See `transfer_queue.shard.region`.
"""

from __future__ import annotations

import numpy as np

from transfer_queue.memory.mapping import Mapping
from transfer_queue.shard.region import BEGINS_AT, BLOCKS, INDEX_BITS, PUTS_AT, REGION_BYTES, SLOTS, TABLE, TABLE_BYTES


def find(memory: Mapping, blocks: np.ndarray) -> np.ndarray | None:
    """Where in the arena the extents of `blocks`, [n] int64 with IN_REGION, begin; None where one of them is not there. They may go any time."""
    directories = _directories(memory, blocks)
    if directories is None:
        return None
    begins = memory.words[(directories + BEGINS_AT >> 2) + (blocks & BLOCKS - 1)]
    there = (begins >= PUTS_AT) & (begins <= REGION_BYTES)
    return directories + begins if there.all() else None


def still_there(memory: Mapping, blocks: np.ndarray) -> bool:
    """Whether nothing was freed until now: what was copied before is what was put. The table is looked at last, see `region`."""
    directories = _directories(memory, blocks)
    if directories is None or memory.readable[directories + (blocks & BLOCKS - 1)].any():
        return False
    again = _directories(memory, blocks)
    return again is not None and bool((again == directories).all())


def _directories(memory: Mapping, blocks: np.ndarray) -> np.ndarray | None:
    """Where the regions of `blocks` begin; None where the table does not have one of them."""
    begin = int(memory.note[0])
    if not 0 <= begin <= len(memory.readable) - TABLE_BYTES:
        return None
    table = memory.readable[begin : begin + TABLE_BYTES].view(TABLE)
    found = table[blocks >> INDEX_BITS & SLOTS - 1]
    begins = found["begin"]
    if (found["region"] != blocks >> INDEX_BITS).any() or (begins < 0).any() or (begins > len(memory.readable) - REGION_BYTES).any():
        return None
    return begins

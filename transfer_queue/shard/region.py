"""A region: room in a shard's arena that a writer reserved ahead, which it fills without a word to the shard. What is written there, and by whom.

    gone     u8 [BLOCKS]   by block: 1 once it was freed                                      the shard writes it
    begins   u32 [BLOCKS]  by block: where its put's columns begin in the region; 0: not yet   the writer, last of all
    revoked  u8            1: no put is taken in any more                                      the shard
    a put    cuts u32 [C, G + 1], HEAD (first block, groups, columns), then the columns as `extents.plan` says; then the next    the writer

Why it stays right whoever is killed at whatever instruction: a put is there when `begins` names it, and by then everything else of it is (stores keep
their order, see ORDERED); what was half written is in nobody's way, for the room after the last put is nobody's until the writer is through or gone.
A put never changes. Its memory is used again only after `gone` says so, a region's directory only after the shard's table forgot the region: so a
reader that copied bytes, and afterwards finds its blocks in the table and not gone, has copied the right ones (a seqlock, without retries: what is
gone stays gone).

Blocks of regions have numbers of their own, which say where to look: one bit, the use of the slot in the table, the slot, the place in the region.
"""

from __future__ import annotations

import platform
import struct
import threading

import numpy as np

from transfer_queue.shard.extents import ALIGN, aligned, plan
from transfer_queue.shard.messages import LIFE_BITS

REGION_BYTES = 2 << 20
INDEX_BITS, SLOT_BITS = 11, 14
BLOCKS = 1 << INDEX_BITS  # of a region, at most
SLOTS = 1 << SLOT_BITS  # regions of a shard with blocks in them, at most
USES = 1 << LIFE_BITS - 1 - SLOT_BITS - INDEX_BITS  # of a slot, within a life of the shard: no number is ever used twice
IN_REGION = 1 << LIFE_BITS - 1  # set in the numbers of blocks of regions, and in no other's

HEAD = struct.Struct("=IIII")  # first block, groups, columns, 0: just before the columns of a put
BEGINS_AT = BLOCKS
REVOKED_AT = BEGINS_AT + 4 * BLOCKS
PUTS_AT = aligned(REVOKED_AT + 1)
TABLE = np.dtype([("region", np.int64), ("begin", np.int64)])  # by slot: number of the region there, 0 for none; where it begins in the arena
TABLE_BYTES = SLOTS * TABLE.itemsize

ORDERED = platform.machine().lower() in ("x86_64", "amd64")  # stores are seen in order, and loads happen in order; elsewhere nobody reserves ahead
_FENCE = threading.Lock()


def region_of(block: int) -> int:
    """Number of the region that a block with IN_REGION is in; its blocks are numbered from `region << INDEX_BITS`."""
    return block >> INDEX_BITS


def head_bytes(columns: int, groups: int) -> int:
    """What lies before the columns of a put."""
    return aligned(HEAD.size + 4 * columns * (groups + 1))


def begins_of(region: np.ndarray) -> np.ndarray:
    """u32 [BLOCKS] of a region's memory, uint8 [≥ PUTS_AT]."""
    return region[BEGINS_AT : BEGINS_AT + 4 * BLOCKS].view(np.uint32)


def write_head(region: np.ndarray, begin: int, first: int, cuts: np.ndarray) -> None:
    """Before the columns at `begin`: how they are cut, u32 [C, G + 1]."""
    columns, marks = cuts.shape
    head = begin - HEAD.size
    HEAD.pack_into(region.data, head, first, marks - 1, columns, 0)
    region[head - cuts.nbytes : head] = cuts.reshape(-1).view(np.uint8)


def read_head(region: np.ndarray, begin: int) -> tuple[int, np.ndarray] | None:
    """(first block, int64 [C, G + 1] marks from `begin` on), or None where no writer of ours wrote this."""
    if not PUTS_AT + HEAD.size <= begin <= len(region) or begin % ALIGN:
        return None
    first, groups, columns, _ = HEAD.unpack_from(region.data, begin - HEAD.size)
    nbytes = 4 * columns * (groups + 1)
    if not columns or not 0 < groups <= BLOCKS - first or begin - HEAD.size - nbytes < PUTS_AT:
        return None
    cuts = region[begin - HEAD.size - nbytes : begin - HEAD.size].view(np.uint32).astype(np.int64).reshape(columns, groups + 1)
    if cuts[:, 0].any() or (cuts[:, 1:] < cuts[:, :-1]).any():
        return None
    marks = cuts + np.array(plan(cuts).bases, dtype=np.int64)[:, None]
    return (first, marks) if begin + int(marks[-1, -1]) <= len(region) else None


def fence() -> None:
    """No load after it happens before a store before it is seen by all: taking a lock is an instruction that waits for that."""
    with _FENCE:
        pass

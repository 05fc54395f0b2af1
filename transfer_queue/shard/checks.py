"""What a request must be before anything is allocated or copied for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from transfer_queue.shard.extents import plan
from transfer_queue.shard.messages import MOST_BLOCKS, Ranges
from transfer_queue.shard.refused import Refused
from transfer_queue.wire import Frame

_ASCEND = "cuts[{}] must ascend from 0 to the column's bytes, and all columns have as many cuts: one a group, and one"


def check_cuts(cuts: Sequence[Sequence[int]]) -> int:
    """The bytes of all columns together; whether they fit, and ascend, is checked by others. Raises Refused naming the column."""
    if not cuts or len(cuts[0]) < 2:
        raise Refused("malformed", f"cuts={cuts!r:.80}: at least one column and one group; a write of nothing has no bytes to find again")
    if len(cuts) * len(cuts[0]) > MOST_BLOCKS:
        raise Refused("malformed", f"{len(cuts)} columns × {len(cuts[0]) - 1} groups are more than {MOST_BLOCKS} pieces: write fewer rows at once")
    for column, marks in enumerate(cuts):
        if len(marks) != len(cuts[0]) or marks[0] != 0 or min(marks) < 0 or max(marks) > marks[-1]:
            raise Refused("malformed", _ASCEND.format(column))
    return sum(marks[-1] for marks in cuts)


def marks_of(cuts: Sequence[Sequence[int]]) -> np.ndarray:
    """int64 [C, G + 1] of cuts that were checked and whose bytes fit into a shard, counted from the begin of the extent."""
    table = np.array(cuts, dtype=np.int64)
    falling = np.flatnonzero((table[:, 1:] < table[:, :-1]).any(axis=1))
    if len(falling):
        raise Refused("malformed", _ASCEND.format(falling[0]))
    return table + np.array(plan(cuts).bases, dtype=np.int64)[:, None]


def check_frames(frames: Sequence[Frame], cuts: Sequence[Sequence[int]]) -> None:
    """One frame a column, each as long as its last cut."""
    if len(frames) != len(cuts):
        raise Refused("malformed", f"{len(cuts)} columns announced, {len(frames)} frames came: send one frame a column")
    for column, (frame, marks) in enumerate(zip(frames, cuts, strict=True)):
        if not marks or marks[-1] != len(frame):
            raise Refused("malformed", f"cuts[{column}] must ascend from 0 to the frame's {len(frame)} bytes")


def check_ranges(columns: Sequence[Ranges], most_bytes: int) -> None:
    """A reply holds no more than the shard may: a few bytes of request could else ask for all memory, many times over."""
    asked = 0
    for ranges in columns:
        if not len(ranges.blocks) == len(ranges.starts) == len(ranges.stops):
            raise Refused("malformed", f"{len(ranges.blocks)} blocks, {len(ranges.starts)} starts, {len(ranges.stops)} stops: they go together")
        asked += sum(ranges.stops) - sum(ranges.starts)
    if asked > most_bytes:
        raise Refused("capacity", f"{asked} bytes in one read are more than capacity_bytes={most_bytes}: none are sent; read fewer rows at a time")


def split_owner(owner: str) -> tuple[str, int]:
    """ "rollout-0#3" → ("rollout-0", 3)."""
    name, _, incarnation = owner.rpartition("#")
    if not name or not incarnation.isdecimal() or len(incarnation) > 18:
        raise Refused("malformed", f"owner={owner!r:.80} must be 'name#incarnation'")
    return name, int(incarnation)

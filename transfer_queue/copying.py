"""A read of few bytes out of a shard's mapped memory: copied without asking the shard, where all rows lie in regions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from transfer_queue.codec import offsets_of
from transfer_queue.gather import Gather
from transfer_queue.memory.glimpse import find, still_there
from transfer_queue.memory.mapping import Mapping
from transfer_queue.memory.runs import copy_runs
from transfer_queue.peer import Peer
from transfer_queue.shard.region import IN_REGION, REGION_BYTES

MOST_BYTES = 256 << 10  # more is rather looked at where it is: the copy would cost as much as the question


def copied(peer: Peer, gathers: Sequence[Gather]) -> bool:
    """Whether every gather got its part of this shard; else none got anything, and the shard is to be asked."""
    memory = peer.memory
    if memory is None or peer.freed or not peer.link.up:
        return False
    pieces = [gather.pieces(peer.index) for gather in gathers]
    blocks = pieces[0][0] if len(pieces) == 1 else np.concatenate([block for block, _, _ in pieces])
    if not (blocks & IN_REGION).all() or sum(int(lengths.sum()) for _, _, lengths in pieces) > MOST_BYTES:
        return False
    extents = find(memory, blocks)
    if extents is None:
        return False
    frames, done = [], 0
    for block, starts, lengths in pieces:
        frames.append(_copy(memory, extents[done : done + len(block)] + starts, starts, lengths))
        done += len(block)
    if any(frame is None for frame in frames) or not still_there(memory, blocks):
        return False
    for gather, frame in zip(gathers, frames, strict=True):
        assert frame is not None
        gather.add(peer.index, frame)
    return True


def _copy(memory: Mapping, begins: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray | None:
    """The bytes [begins, begins + lengths) one after the other; None where a slice is none that a writer of ours made, which the shard then says."""
    if not len(begins):
        return np.empty(0, dtype=np.uint8)
    if starts.min() < 0 or (starts + lengths).max() > REGION_BYTES or (begins + lengths).max() > len(memory.readable):
        return None
    if len(begins) == 1:
        begin, nbytes = begins.item(), lengths.item()
        return memory.readable[begin : begin + nbytes].copy()
    targets = offsets_of(lengths)
    out = np.empty(int(targets[-1]), dtype=np.uint8)
    copy_runs(memory.readable, begins, lengths, out, targets[:-1])
    return out

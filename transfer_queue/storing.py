"""One write into one shard: straight into its memory where that is mapped, else as frames of the caller's memory; small ones into room that was
reserved ahead, else as one message.

Whatever goes wrong after the shard gave the room, the room is given back: nobody will name what is stored there.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from shared_arena import ArenaUnreachable
from transfer_queue.errors import QueueTimeout
from transfer_queue.layout import Extent
from transfer_queue.peer import Peer
from transfer_queue.pending import Pending
from transfer_queue.shard import messages as sm

UNDER_WAY = 16  # Fill messages without an answer: enough that the socket never waits for the shard, few enough to count as bounded


def store(peer: Peer, extent: Extent, timeout_s: float) -> int:
    """Returns the number of the first block once the shard has every byte. Raises QueueError (capacity, stale_owner), QueueTimeout, QueueGone."""
    peer.open(timeout_s)
    if extent.nbytes <= sm.INLINE_BYTES:
        if peer.ahead is not None and (ahead := peer.ahead.put(extent)) is not None:
            return ahead
        return _inline(peer, extent, timeout_s)
    first, offset = _reserve(peer, extent, timeout_s)
    try:
        room = _room(peer, offset, extent.nbytes)
        if room is not None:
            extent.fill(room)
        else:
            _send(peer, extent, first, timeout_s)
    except BaseException:  # whatever it is, Ctrl-C included
        peer.free(extent.blocks(first))
        raise
    return first


def _inline(peer: Peer, extent: Extent, timeout_s: float) -> int:
    memory = np.empty(extent.nbytes, dtype=np.uint8)  # whether rows are sorted or not, one copy
    extent.fill(memory)
    frames = [memory[base : base + marks[-1]] for base, marks in zip(extent.bases, extent.cuts, strict=True)]
    written: sm.Written = _first(peer, peer.ask(sm.Write(owner=peer.owner, cuts=extent.cuts), frames), extent, timeout_s)
    return written.first


def _reserve(peer: Peer, extent: Extent, timeout_s: float) -> tuple[int, int]:
    reserved: sm.Reserved = _first(peer, peer.ask(sm.Reserve(owner=peer.owner, cuts=extent.cuts)), extent, timeout_s)
    return reserved.first, reserved.offset


def _room(peer: Peer, offset: int, nbytes: int) -> np.ndarray | None:
    """None: by bytes."""
    if peer.memory is None:
        return None
    try:
        return peer.memory.room(offset, nbytes)
    except ArenaUnreachable:
        peer.by_bytes()
        return None


def _first(peer: Peer, pending: Pending[tuple[sm.Written | sm.Reserved, list[object]]], extent: Extent, timeout_s: float) -> Any:
    try:
        return pending.result(timeout_s)[0]
    except QueueTimeout:  # it would stay until this incarnation ends
        pending.late = lambda reply: peer.free(extent.blocks(reply[0].first))
        raise


def _send(peer: Peer, extent: Extent, first: int, timeout_s: float) -> None:
    """Every byte in messages of at most FILL_BYTES; all are acknowledged on return. The deadline is that of a silence, not of the whole."""
    waiting: deque[Pending[object]] = deque()
    for base, values in extent.pieces():
        for start in range(0, len(values), sm.FILL_BYTES):
            if len(waiting) == UNDER_WAY:
                waiting.popleft().result(timeout_s)
            request = sm.Fill(owner=peer.owner, block=first, start=base + start)
            waiting.append(peer.ask(request, [values[start : start + sm.FILL_BYTES]]))
    for pending in waiting:
        pending.result(timeout_s)

"""One read from all the shards it concerns at once: few bytes are copied, more looked at, where their memory is mapped; else they come as frames."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from transfer_queue.copying import copied
from transfer_queue.errors import Gone, QueueError, QueueGone
from transfer_queue.gather import Gather
from transfer_queue.memory.buffers import Buffers
from transfer_queue.memory.holds import Holds
from transfer_queue.peer import Peer
from transfer_queue.receiving import Received
from transfer_queue.shard import messages as sm


def fetch(gathers: Sequence[Gather], peer_of: Callable[[int], Peer], buffers: Buffers, timeout_s: float) -> None:
    """Give every gather its bytes. Raises Gone(gids), QueueError, QueueTimeout, QueueGone."""
    parts: list[Part] = []
    try:
        for shard in sorted(set[int]().union(*(gather.shards() for gather in gathers))):
            peer = peer_of(shard)
            peer.open(timeout_s)
            if copied(peer, gathers):
                continue
            parts.append(Received(peer, gathers, buffers) if peer.memory is None else Mapped(peer, gathers, buffers))
        gone = set[int]().union(*(part.take(timeout_s) for part in parts))
    except BaseException:  # whatever it is, Ctrl-C included: what the others were granted is given back
        for part in parts:
            part.abandon()
        raise
    if gone:
        raise Gone(gone)


class Part(Protocol):
    """What one shard has of a read: asked for when it is made."""

    def take(self, timeout_s: float) -> set[int]:
        """The gids whose bytes are gone; if there are none, every gather has got this shard's part."""
        ...

    def abandon(self) -> None:
        """Nobody takes it, or it was taken already."""
        ...


class Mapped:
    """Blocks are held, and their bytes looked at in the shard's memory."""

    def __init__(self, peer: Peer, gathers: Sequence[Gather], buffers: Buffers) -> None:
        self._peer, self._gathers, self._buffers = peer, gathers, buffers
        self._blocks = np.unique(np.concatenate([gather.blocks(peer.index) for gather in gathers]))
        self._pending = peer.ask(sm.Hold(blocks=self._blocks.tolist()))
        self._taken = False

    def take(self, timeout_s: float) -> set[int]:
        shard = self._peer.index
        try:
            reply, _ = self._pending.result(timeout_s)
        except QueueError as error:
            return self._otherwise(error, timeout_s)
        self._peer.freed = False
        if isinstance(reply, sm.NotFound):
            return set[int]().union(*(gather.owners(shard, reply.gone) for gather in self._gathers))
        assert self._peer.memory is not None  # or nothing would have been asked to be held
        memory = self._peer.holds.array(self._peer.memory.readable, reply.hold)
        self._taken = True
        for gather in self._gathers:
            gather.map(shard, memory, self._blocks, np.array(reply.offsets, dtype=np.int64))
        return set()

    def _otherwise(self, error: QueueError, timeout_s: float) -> set[int]:
        """The shard holds no more for us, or does not know this connection since it was lost and came back: these bytes can still be sent."""
        if error.code not in ("bad_request", "too_many"):
            raise error
        if error.code == "bad_request":
            self._peer.reopen()
        return Received(self._peer, self._gathers, self._buffers).take(timeout_s)

    def abandon(self) -> None:
        if self._taken:
            return
        self._pending.late = late = partial(_let_go, self._peer.holds)  # not a method of ours: with us it would keep what others were granted
        if self._pending.done():
            with contextlib.suppress(QueueError, QueueGone):
                late(self._pending.result(0.0))


def _let_go(holds: Holds, reply: tuple[sm.ShardReply, Any]) -> None:
    if isinstance(reply[0], sm.Held):
        holds.give_up(reply[0].hold)

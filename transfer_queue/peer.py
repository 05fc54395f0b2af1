"""One shard as one connection reaches it: the socket, and the shard's memory where that can be mapped.

Which way bytes go is found out once, on first use, by trying: the descriptor opens and carries the arena's nonce ("shared"), or not ("bytes").
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from shared_arena import ArenaUnreachable
from transfer_queue.ahead import Ahead
from transfer_queue.errors import QueueError, QueueGone, QueueRefused
from transfer_queue.link import Link
from transfer_queue.memory.holds import Holds
from transfer_queue.memory.mapping import Mapping, mapping, process_number
from transfer_queue.messages import ShardInfo
from transfer_queue.pending import Pending, Pump
from transfer_queue.security import Security
from transfer_queue.shard import messages as sm
from transfer_queue.shard.region import ORDERED
from transfer_queue.wire import Frame, decode_shard_reply, id_of

Path = Literal["shared", "bytes"]


class Peer:
    def __init__(self, info: ShardInfo, pump: Pump, security: Security | None, owner: str, map_memory: bool) -> None:
        self.info, self.index = info, info.index
        self.since = time.monotonic()
        self.link = Link(info.endpoint, info.server_key, security, _decode, f"shard {info.index}")
        self.holds = Holds(self.link)
        self.memory: Mapping | None = None
        self.path: Path | None = None if map_memory else "bytes"  # None: not tried yet
        self.ahead: Ahead | None = None  # where its memory is mapped
        self.owner = owner
        self.freed = False  # we told it to free something since its last answer: what it says is newer than what its memory says
        self._pump = pump
        self._close = weakref.finalize(self, _close, self.holds, self.link, os.getpid())
        self._close.atexit = False  # of a client that is dropped without being closed

    def ask(self, request: sm.ShardRequest, frames: Sequence[Any] = ()) -> Pending[Any]:
        """The reply is (record, frames)."""
        pending = self.link.send(self._pump, request, frames)
        pending.silent = True  # awaited by us, and nobody else's business
        return pending

    def open(self, timeout_s: float) -> None:
        """Find out which way bytes go. Raises as every request does, and may then be tried again."""
        if self.path is not None:
            return
        described, _ = self.ask(sm.Describe()).result(timeout_s)
        memory = _mapped(described)
        if memory is not None and not self._joined(timeout_s):
            memory = None
        self.memory, self.path = memory, "bytes" if memory is None else "shared"
        self.ahead = Ahead(self, memory) if memory is not None and ORDERED else None

    def _joined(self, timeout_s: float) -> bool:
        """Whether the shard lets us map its memory: it watches so many processes and no more."""
        try:
            self.ask(sm.Join(owner=self.owner, pid=process_number())).result(timeout_s)
        except QueueError:
            return False
        return True

    def reopen(self) -> None:
        """The shard does not know us any more: the connection was lost and came back. What it cannot lend us now goes by bytes."""
        self.memory, self.path, self.ahead = None, None, None

    def by_bytes(self) -> None:
        """Its memory cannot be written to from here: it ended since that was mapped for reading, or there is no room for a second mapping."""
        self.memory, self.path, self.ahead = None, "bytes", None

    def free(self, blocks: list[int]) -> None:
        self.link.post(sm.Free(blocks=blocks))
        self.freed = True

    def close(self) -> None:
        """The socket stays open as long as arrays look at the shard's memory."""
        self._close()


def _close(holds: Holds, link: Link, process: int) -> None:
    """What was reserved ahead and not used is given back. In a forked child the socket is the parent's."""
    if os.getpid() == process and link.up:
        with contextlib.suppress(QueueGone, QueueRefused):
            link.post(sm.Seal())
    holds.close()


def _mapped(described: sm.Described) -> Mapping | None:
    if described.descriptor is None:
        return None
    try:
        return mapping(described.descriptor)
    except ArenaUnreachable:
        return None


def _decode(frames: list[Frame]) -> tuple[int, tuple[sm.ShardReply, list[Frame]] | None, Exception | None]:
    try:
        reply = decode_shard_reply(frames[0])
    except msgspec.DecodeError as error:
        return id_of(frames[0]), None, QueueError("malformed", f"a reply of a shard: {error}; do both sides run the same release?")
    if isinstance(reply, sm.ShardError):
        return reply.id, None, QueueError(reply.code, reply.message)
    return reply.id, (reply, frames[1:]), None

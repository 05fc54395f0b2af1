"""Asks a running queue for what it holds: the controller for everything but bytes, then all shards at once for theirs.

It is no member: it takes part in nothing, and a queue runs on the same whether it is asked or not.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

import msgspec
import zmq

from transfer_queue.client import Pending, QueueClient
from transfer_queue.errors import QueueError, QueueGone, QueueRefused, QueueTimeout
from transfer_queue.messages import OkStatus, ShardInfo
from transfer_queue.operation.report import QueueReport, ShardReport, ShardStored
from transfer_queue.peer import Peer
from transfer_queue.security import Security
from transfer_queue.shard import messages as sm

FAILURES = (QueueError, QueueGone, QueueRefused, QueueTimeout)  # of one question
NOBODY = ""  # the owner of nothing


class Probe:
    """Belongs to one thread at a time. Connections stay open between questions; one that did not answer is closed and made anew."""

    def __init__(self, url: str, security: Security | None = None) -> None:
        """`security`: the client's keys, where the run has any. Raises ValueError for what is no address."""
        self.url = url
        self._security = security.worker() if security is not None else None
        self._client = self._connect()
        self._shards: dict[int, tuple[ShardInfo, Peer]] = {}

    def ask(self, timeout_s: float, waits: bool = False) -> QueueReport:
        """One snapshot, within `timeout_s` for everything together. `waits`: with who waits for what since when, which looks at every open group.

        A shard that does not answer is in the report, with the reason. Raises QueueTimeout, QueueGone, QueueRefused or QueueError where the
        controller does not.
        """
        begun = time.monotonic()
        try:
            reply: OkStatus = self._client.status(waits=waits).result(timeout_s)
        except FAILURES:
            self._reconnect()
            raise
        answer_s = time.monotonic() - begun
        shards = self._ask_shards(reply.status.shards, begun + timeout_s)
        return QueueReport(reply.status, shards, reply.waits, answer_s)

    def wait(self, seconds: float) -> None:
        """Meanwhile the connections are looked after."""
        self._client.poll(seconds)

    def close(self) -> None:
        for index in list(self._shards):
            self._forget(index)
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------ the controller

    def _connect(self) -> QueueClient:
        try:
            return QueueClient.outsider(self.url, security=self._security)
        except zmq.ZMQError as error:
            raise ValueError(f"controller={self.url!r} is no address ({error}): nothing was asked; write tcp://HOST:PORT") from None

    def _reconnect(self) -> None:
        self.close()
        self._client = self._connect()

    # ------------------------------------------------------------ shards

    def _ask_shards(self, infos: list[ShardInfo], deadline: float) -> list[ShardReport]:
        for index in self._shards.keys() - {info.index for info in infos}:
            self._forget(index)
        asked = [(info, self._ask_shard(info)) for info in infos]
        return [self._answer(info, pending, deadline) for info, pending in asked]

    def _ask_shard(self, info: ShardInfo) -> Pending[tuple[sm.ShardStatusReply, list[object]]] | str:
        """What is waited for, or why it cannot be asked."""
        known = self._shards.get(info.index)
        if known is not None and known[0] != info:  # another process serves it now
            self._forget(info.index)
        try:
            if info.index not in self._shards:
                peer = Peer(info, self._client, self._security, NOBODY, map_memory=False)
                self._shards[info.index] = info, peer
                self._client.add(peer.link)
            return self._shards[info.index][1].ask(sm.ShardStatus())
        except (*FAILURES, zmq.ZMQError) as error:
            return str(error)

    def _answer(self, info: ShardInfo, pending: Pending[tuple[sm.ShardStatusReply, list[object]]] | str, deadline: float) -> ShardReport:
        if isinstance(pending, str):
            return ShardReport(info.index, info.endpoint, None, pending)
        try:
            reply, _ = pending.result(max(0.0, deadline - time.monotonic()))
        except FAILURES as error:
            self._forget(info.index)
            return ShardReport(info.index, info.endpoint, None, str(error))
        return ShardReport(info.index, info.endpoint, msgspec.convert(reply, ShardStored, from_attributes=True))

    def _forget(self, index: int) -> None:
        found = self._shards.pop(index, None)
        if found is not None:
            self._client.remove(found[1].link)
            found[1].close()

"""The controller's own connections to the shards: what is to be freed, and whose unpublished blocks are to go. Nothing here waits."""

from __future__ import annotations

import logging
from collections.abc import Callable

import zmq

from transfer_queue.controller.core import Core
from transfer_queue.controller.members import SHARD, Member, shard_index
from transfer_queue.security import Security
from transfer_queue.shard.messages import Free, Sweep
from transfer_queue.wire import encode

log = logging.getLogger(__name__)

UNTOLD = 1 << 16  # messages to a shard that does not read: what is lost is memory lost until the shard ends, or the controller comes back


class Shards:
    def __init__(self, core: Core, security: Security | None, unreachable: Callable[[Member, str], None]) -> None:
        """`unreachable` hears of a shard that cannot be connected to, and why."""
        self._core, self._security, self._unreachable = core, security, unreachable
        self._sockets: dict[int, tuple[str, zmq.Socket[bytes]]] = {}  # index → (endpoint, socket)

    def tell(self) -> None:
        """What the state machine wants shards to be told since the last time."""
        core = self._core
        if not core.frees and not core.sweeps:
            return
        self._connect_all()
        for index in list(core.frees):
            self._post(index, Free(blocks=core.frees.pop(index), upto=core.told[index].all_freed if index in core.told else 0))
        sweeps = list(core.sweeps)
        core.sweeps.clear()
        for only, owner in sweeps:
            for index in self._sockets if only is None else (only,):
                upto = core.told[index].all_swept if index in core.told else 0
                self._post(index, Sweep(owner=owner, keep=core.live_blocks(index), upto=upto))

    def remind(self) -> None:
        """Tell again what was told and not confirmed: for a controller that comes back."""
        self._core.frees.clear()
        self._core.sweeps.clear()
        self._connect_all()
        for index, told in self._core.told.items():
            if told.frees:
                self._post(index, Free(blocks=list(told.frees), upto=told.all_freed))
            for owner in told.sweeps:
                self._post(index, Sweep(owner=owner, keep=self._core.live_blocks(index), upto=told.all_swept))

    def _connect_all(self) -> None:
        """Follow the membership: a socket for each shard, at its present endpoint."""
        present = {shard_index(member.name): member for member in self._core.members if member.role == SHARD}
        for index in list(self._sockets):
            if index not in present or present[index].endpoints[SHARD] != self._sockets[index][0]:
                self._sockets.pop(index)[1].close(linger=0)
        for index in present.keys() - self._sockets.keys():
            try:
                self._sockets[index] = present[index].endpoints[SHARD], self._connect(present[index])
            except zmq.ZMQError as error:  # an address or a key that zmq does not take: the shard's fault must not end the loop
                self._unreachable(present[index], str(error))

    def _connect(self, shard: Member) -> zmq.Socket[bytes]:
        endpoint = shard.endpoints[SHARD]
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        try:
            socket.setsockopt(zmq.SNDHWM, UNTOLD)
            socket.setsockopt(zmq.IPV6, int("[" in endpoint))
            if self._security is not None:
                self._security.client(socket, shard.endpoints.get("server_key", ""))
            socket.connect(endpoint)
        except zmq.ZMQError:
            socket.close(linger=0)
            raise
        return socket

    def _post(self, index: int, message: Free | Sweep) -> None:
        """Blocks of an unknown shard need no freeing: it is gone, and they with it."""
        found = self._sockets.get(index)
        if found is None:
            return
        try:
            found[1].send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            log.warning("shard %d does not read: %s is lost, its memory goes when the shard ends", index, type(message).__name__)

    def close(self) -> None:
        for _, socket in self._sockets.values():
            socket.close(linger=500)

"""The controller's process: a ROUTER socket around the state machine. One thread, no polling: it sleeps until a message or the next deadline."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

import msgspec
import zmq

from transfer_queue.controller.config import CoreConfig
from transfer_queue.controller.core import Core
from transfer_queue.controller.members import SHARD, Member, shard_index
from transfer_queue.controller.runtime import Observer
from transfer_queue.messages import Reply
from transfer_queue.security import Security, bind
from transfer_queue.shard.messages import Free, Sweep
from transfer_queue.wire import decode_request, encode, id_of

log = logging.getLogger(__name__)

BURST = 4096  # messages handled between two looks at the deadlines: so many that a heartbeat in the queue counts before its sender is declared dead
FROZEN_S = 2.0  # a loop that comes round so much later than it meant to was stopped (or starved): no member is to blame for what it did not hear
LOOK_S = 1.0  # longest single wait: a stop inside it is told from waiting for a deadline only by what is left of it
QUIET_S = 0.25  # after the last member left, so that whoever watches the run gets its last answer
QUEUE = 4096  # unread messages a connection, each way; a client waits for at most 1000 replies, so that one with more unread never reads
UNTOLD = 1 << 16  # messages to a shard that does not read: a lost Free is memory lost until the shard ends


class LoopClock:
    """The state machine's time, monotonic seconds. It stands still between two looks of the loop: no deadline falls due in a gap before the loop has
    noticed the gap."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def __call__(self) -> float:
        return self.now


class Server:
    def __init__(self, core: Core, socket: zmq.Socket[bytes], security: Security | None, clock: LoopClock) -> None:
        """`clock` is the one that `core` was made with."""
        self.core = core
        self._clock = clock
        self.socket = socket
        self._security = security
        self._shards: dict[int, tuple[str, zmq.Socket[bytes]]] = {}  # index -> (endpoint, socket)
        self._checked, self._worked = time.monotonic(), time.thread_time()  # for gaps

    def run(self, grace_s: float) -> None:
        """Serve until the run is stopped and its members left, or `grace_s` after the stop."""
        stopped_at: float | None = None
        left_at: float | None = None
        while True:
            now, end = time.monotonic(), math.inf
            if self.core.stopped:
                stopped_at = now if stopped_at is None else stopped_at
                left_at = None if self.core.members else (now if left_at is None else left_at)
                end = min(stopped_at + grace_s, math.inf if left_at is None else left_at + QUIET_S)
            if now >= end:
                return
            self._notice_gap(-math.inf)  # inside `tick` or `flush`: it is no part of the wait
            self._notice_gap(self._wait(end))
            self._receive()
            self._notice_gap(-math.inf)
            self.core.tick()
            self.flush()

    def _notice_gap(self, meant: float) -> None:
        """After a step that was to be over at `meant`, or at once. Before `tick`, which would take silence for death. Time that we worked does not
        count: a loop that is slow by itself would put every deadline off for ever."""
        now, worked = time.monotonic(), time.thread_time()
        late = now - max(meant, self._checked) - (worked - self._worked)
        self._clock.now = self._checked = now
        self._worked = worked
        if late > FROZEN_S:
            self.core.frozen(late)

    def _wait(self, end: float) -> float:
        """For a message, the next deadline, `end` or LOOK_S; returns the latest time at which it meant to be back (monotonic)."""
        deadline = self.core.next_deadline()
        now = time.monotonic()
        wake = min(end, now + LOOK_S, math.inf if deadline is None else deadline)
        self.socket.poll(int(max(0.0, wake - now) * 1000) + 1)  # rounded up: waking before the deadline would spin
        return wake

    def _receive(self) -> None:
        now = time.monotonic()
        for _ in range(BURST):
            try:
                connection, *frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            before, now = now, time.monotonic()
            if now - before > FROZEN_S:  # before this message is taken in, or it would count as heard at the end of a gap that is then forgiven
                self._notice_gap(-math.inf)
            self._clock.now = now
            self._handle(connection, frames)
            self.flush()

    def _handle(self, connection: bytes, frames: list[bytes]) -> None:
        payload = frames[0] if frames else b""
        try:
            request = decode_request(payload)
        except msgspec.DecodeError as error:
            message = f"a request is one msgpack frame: {error}; nothing was done. Do both sides run the same release?"
            self.core.malformed(connection, id_of(payload), message)
        else:
            self.core.handle(connection, request)

    def flush(self) -> None:
        """Send everything that the core wants sent. A reply that cannot be delivered is taken back."""
        while self.core.outbox or self.core.frees or self.core.sweeps:
            outbox, self.core.outbox = self.core.outbox, []
            for connection, reply in outbox:
                self._reply(connection, reply)
            self._free()

    def _reply(self, connection: bytes, reply: Reply) -> None:
        try:
            self.socket.send_multipart([connection, encode(reply)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            self.core.undelivered(connection, reply)

    # ------------------------------------------------------------ shards

    def _free(self) -> None:
        if not self.core.frees and not self.core.sweeps:
            return
        self._connect_shards()
        for index in list(self.core.frees):
            self._post(index, Free(blocks=self.core.frees.pop(index)))
        sweeps = list(self.core.sweeps)
        self.core.sweeps.clear()
        for only, owner in sweeps:
            for index in self._shards if only is None else (only,):
                self._post(index, Sweep(owner=owner, keep=self.core.live_blocks(index)))

    def _connect_shards(self) -> None:
        """Follow the membership: a socket for each shard, at its present endpoint."""
        present = {shard_index(member.name): member for member in self.core.members if member.role == SHARD}
        for index in list(self._shards):
            if index not in present or present[index].endpoints[SHARD] != self._shards[index][0]:
                self._shards.pop(index)[1].close(linger=0)
        for index in present.keys() - self._shards.keys():
            try:
                self._shards[index] = present[index].endpoints[SHARD], self._connect(present[index])
            except zmq.ZMQError as error:  # an address or a key that zmq does not take: the shard's fault must not end the loop
                self.core.unreachable(present[index], str(error))

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
        found = self._shards.get(index)
        if found is None:
            return
        try:
            found[1].send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            log.warning("shard %d does not read: %s is lost, its memory goes when the shard ends", index, type(message).__name__)

    def close(self) -> None:
        for _, socket in self._shards.values():
            socket.close(linger=500)
        self.socket.close(linger=500)


def serve(
    config: CoreConfig,
    observer_factory: Callable[[], Observer],
    *,
    bind: str,
    security: Security | None,
    ready: Callable[[str], None],
    grace_s: float = 30.0,
    attach: Callable[[Core], None] | None = None,
) -> None:
    """Bind, call `ready` with the endpoint (port 0 resolved), and serve until the run is stopped and all members left, or `grace_s` after the stop.

    `attach` gets the state machine once, before the first request: an observer may read it (`status`, `members`) while it is
    called, and changes nothing.
    Raises ValueError for a bind beyond loopback without keys, and for topics that cannot work.
    """
    clock = LoopClock()
    core = Core(config, observer_factory(), clock)
    core.measure_cpu_by(time.thread_time)
    if attach is not None:
        attach(core)
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a reply to a connection that is gone is an error we see, so that what it handed out is taken back
    socket.setsockopt(zmq.SNDHWM, QUEUE)
    socket.setsockopt(zmq.RCVHWM, QUEUE)
    socket.setsockopt(zmq.MAXMSGSIZE, 1 << 28)  # a message carries references, no bytes: more than this is no message of ours
    server = Server(core, socket, security, clock)
    try:
        ready(_bind(socket, bind, security))
        server.run(grace_s)
    finally:
        server.close()


def _bind(socket: zmq.Socket[bytes], endpoint: str, security: Security | None) -> str:
    return bind(socket, endpoint, security)[0]

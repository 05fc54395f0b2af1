"""The controller's process: a ROUTER socket around the state machine. One thread, no polling: it sleeps until a message or the next deadline."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import cast

import msgspec
import zmq

from transfer_queue.controller.config import CoreConfig
from transfer_queue.controller.core import Core
from transfer_queue.controller.inputs import Forgotten, Inputs
from transfer_queue.controller.members import Member
from transfer_queue.controller.runtime import Observer
from transfer_queue.controller.shards import Shards
from transfer_queue.draining import drains
from transfer_queue.messages import Drain, Reply, Request, Stop
from transfer_queue.messages.keyed import MOST_MESSAGE_BYTES
from transfer_queue.security import Security, bind
from transfer_queue.wire import decode_request, encode, id_of

BURST = 4096  # messages handled between two looks at the deadlines: so many that a heartbeat in the queue counts before its sender is declared dead
FROZEN_S = 2.0  # a loop that comes round so much later than it meant to was stopped (or starved): no member is to blame for what it did not hear
LOOK_S = 1.0  # longest single wait: a stop inside it is told from waiting for a deadline only by what is left of it
QUIET_S = 0.25  # after the last member left, so that whoever watches the run gets its last answer
DRAINED = "drained"  # why a run was stopped that was asked to end in order
_POLLIN, _NAME = int(zmq.POLLIN), int(zmq.NOBLOCK | zmq.SNDMORE)  # once: an operation on zmq's own enumeration costs as much as a send
QUEUE = 4096  # unread messages a connection, each way; a client waits for at most 1000 replies, so that one with more unread never reads


class LoopClock:
    """The state machine's time, monotonic seconds. It stands still between two looks of the loop: no deadline falls due in a gap before the loop has
    noticed the gap."""

    def __init__(self) -> None:
        self._ahead_s = 0.0  # what it shows above the system's clock: not 0 where a state machine came back on a machine that was started anew
        self.now = time.monotonic()

    def __call__(self) -> float:
        return self.now

    def read(self) -> float:
        """It never goes back."""
        return max(self.now, time.monotonic() + self._ahead_s)

    def turn_to(self, ahead_s: float) -> None:
        self._ahead_s = ahead_s
        self.now = self.read()


class Server:
    def __init__(
        self,
        core: Core,
        socket: zmq.Socket[bytes],
        security: Security | None,
        clock: LoopClock,
        inputs: Inputs | None = None,
        drain_s: float | None = None,
    ) -> None:
        """`clock` is the one that `core` was made with. `drain_s`: how long what is under way may take once the run drains; None: any time."""
        self.core = core
        self.shards = Shards(core, security, self._on_unreachable)
        self.socket = socket
        self._clock = clock
        self._inputs = Forgotten() if inputs is None else inputs
        self._checked, self._worked = clock.read(), time.thread_time()  # for gaps
        self._drain_s = math.inf if drain_s is None else drain_s
        self._asked = False  # to drain, by a signal
        self._drained_by: float | None = None  # when what is under way must be over

    def run(self, grace_s: float) -> None:
        """Serve until the run is stopped and its members left, or `grace_s` after the stop."""
        stopped_at: float | None = None
        left_at: float | None = None
        while True:
            now, end = self._clock.read(), math.inf
            if self.core.stopped:
                stopped_at = now if stopped_at is None else stopped_at
                left_at = None if self.core.members else (now if left_at is None else left_at)
                end = min(stopped_at + grace_s, math.inf if left_at is None else left_at + QUIET_S)
            if now >= end:
                return
            self._turn(min(end, self._drain(now)))

    def drain(self) -> None:
        """Hand nothing new out from now on, and stop the run when what is under way is done, or after `drain_s`. For a signal's handler."""
        self._asked = True

    def _drain(self, now: float) -> float:
        """Goes on with it, whoever asked for it; returns when it is to be looked at again, though nothing comes."""
        if self.core.stopped or not (self._asked or self.core.draining):
            return math.inf
        if self._drained_by is None:
            self._drained_by = now + self._drain_s
            self._say(Drain(reason=f"draining for at most {self._drain_s:g} s"))
        if self.core.drained or now >= self._drained_by:
            self._say(Stop(reason=DRAINED))
        return self._drained_by

    def _say(self, request: Request) -> None:
        """An input of our own, like a request that nobody waits for."""
        self._inputs.request(b"", encode(request), request)
        self.core.handle(b"", request)
        self.core.outbox = [(connection, reply) for connection, reply in self.core.outbox if connection]
        self.flush()

    def _turn(self, end: float) -> None:
        """One wait, and everything that came or fell due by then."""
        self._notice_gap(-math.inf)  # inside `tick` or `flush`: it is no part of the wait
        self._notice_gap(self._wait(end))
        self._receive()
        self._notice_gap(-math.inf)
        due = self.core.next_deadline()
        if due is not None and due <= self._clock.now:
            self._inputs.tick()
            self.core.tick()
        self.flush()
        self._inputs.rest()

    def _notice_gap(self, meant: float) -> None:
        """After a step that was to be over at `meant`, or at once. Before `tick`, which would take silence for death. Time that we worked does not
        count: a loop that is slow by itself would put every deadline off for ever."""
        now, worked = self._clock.read(), time.thread_time()
        late = now - max(meant, self._checked) - (worked - self._worked)
        self._clock.now = self._checked = now
        self._worked = worked
        if late > FROZEN_S:
            self._inputs.frozen(late)
            self.core.frozen(late)

    def _wait(self, end: float) -> float:
        """For a message, the next deadline, `end` or LOOK_S; returns the latest time at which it meant to be back (monotonic)."""
        deadline = self.core.next_deadline()
        now = self._clock.read()
        wake = min(end, now + LOOK_S, math.inf if deadline is None else deadline)
        self.socket.poll(int(max(0.0, wake - now) * 1000) + 1)  # rounded up: waking before the deadline would spin
        return wake

    def _receive(self) -> None:
        now = self._clock.read()
        for _ in range(BURST):
            if not cast(int, self.socket.get(zmq.EVENTS)) & _POLLIN:  # asked, for an exception at the end costs more than the rest of the way
                return
            connection, *frames = self.socket.recv_multipart(zmq.NOBLOCK)
            before, now = now, self._clock.read()
            if now - before > FROZEN_S:  # before this message is taken in, or it would count as heard at the end of a gap that is then forgiven
                self._notice_gap(-math.inf)
            self._clock.now = now
            self._handle(self._inputs.life + connection, frames)
            if not self._inputs.in_groups:
                self.flush()

    def _handle(self, connection: bytes, frames: list[bytes]) -> None:
        payload = frames[0] if frames else b""
        try:
            request = decode_request(payload)
        except msgspec.DecodeError as error:
            message = f"a request is one msgpack frame: {error}; nothing was done. Do both sides run the same release?"
            self.core.malformed(connection, id_of(payload), message)
        else:
            self._inputs.request(connection, payload, request)
            self.core.handle(connection, request)

    def flush(self) -> None:
        """Send everything that the core wants sent. A reply that cannot be delivered is taken back."""
        core = self.core
        while core.outbox or core.repeated or core.frees or core.sweeps:
            self._inputs.keep(core.outbox)
            outbox, core.outbox = core.outbox, []
            repeated, core.repeated = core.repeated, []
            for connection, reply in outbox:
                if not self._send(connection, reply):
                    self._inputs.undelivered(connection, reply)
                    core.undelivered(connection, reply)
            for connection, reply in repeated:
                self._send(connection, reply)  # who does not get it will ask again
            self.shards.tell()

    def _send(self, connection: bytes, reply: Reply) -> bool:
        """False: the connection is gone, or nobody reads it."""
        life = self._inputs.life
        if not connection.startswith(life):
            return False  # of an earlier start of this controller: the same name would be somebody else's connection by now
        try:
            self.socket.send(connection[len(life) :], _NAME)
            self.socket.send(encode(reply), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False
        return True

    def _on_unreachable(self, shard: Member, cause: str) -> None:
        self._inputs.unreachable(shard.name, cause)
        self.core.unreachable(shard, cause)

    def close(self) -> None:
        self.shards.close()
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
    drain_s: float | None = None,
) -> None:
    """Bind, call `ready` with the endpoint (port 0 resolved), and serve until the run is stopped and all members left, or `grace_s` after the stop.

    `attach` gets the state machine once, before the first request: an observer may read it (`status`, `members`) while it is
    called, and changes nothing. `drain_s`: SIGTERM and Ctrl-C drain the run, within so long; once more ends the process at once (main thread only).
    None leaves the signals alone.
    `transfer_queue.journal.serving.serve` is the same with a journal.
    Raises ValueError for a bind beyond loopback without keys, and for topics that cannot work.
    """
    clock = LoopClock()
    core = Core(config, observer_factory(), clock)
    core.measure_cpu_by(time.thread_time)
    if attach is not None:
        attach(core)
    server = Server(core, router(), security, clock, drain_s=drain_s)
    try:
        with drains(server.drain, drain_s is not None):
            ready(_bind(server.socket, bind, security))
            server.run(grace_s)
    finally:
        server.close()


def router() -> zmq.Socket[bytes]:
    """The socket that a controller serves, not bound yet."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a reply to a connection that is gone is an error we see, so that what it handed out is taken back
    socket.setsockopt(zmq.SNDHWM, QUEUE)
    socket.setsockopt(zmq.RCVHWM, QUEUE)
    socket.setsockopt(zmq.MAXMSGSIZE, MOST_MESSAGE_BYTES)
    return socket


def _bind(socket: zmq.Socket[bytes], endpoint: str, security: Security | None) -> str:
    return bind(socket, endpoint, security)[0]

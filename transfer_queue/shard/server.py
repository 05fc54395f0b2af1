"""A shard's process: tensor bytes in, tensor bytes out. One bad message costs its sender an error reply and nobody else anything."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable

import msgspec
import zmq

from transfer_queue import security as sec
from transfer_queue.client import QueueClient
from transfer_queue.draining import drains
from transfer_queue.errors import QueueError, QueueGone, QueueTimeout
from transfer_queue.messages import Directive, MemberDead, OkEmpty
from transfer_queue.pending import Pending
from transfer_queue.shard import messages as m
from transfer_queue.shard.answers import Answers, Reply
from transfer_queue.shard.checks import split_owner
from transfer_queue.shard.refused import Refused
from transfer_queue.shard.store import KEEP_BYTES, Store
from transfer_queue.wire import Frame, decode_shard_request, encode, id_of

log = logging.getLogger(__name__)

SILENCE_S = 60.0  # a controller that answers no heartbeat for so long hangs
LEAVE_S = 2.0  # the controller answers at once, or it is gone
TOLD = 64  # notices of deaths without an answer at a time
BURST = 64  # messages answered between two looks at the controller
DRAINED = "drained"  # why a shard ended that was asked to
COOL_BYTES = 32 << 20  # given back to the system between two bursts: some milliseconds


def serve(
    name: str,
    controller_url: str,
    security: sec.Security | None = None,
    *,
    bind: str = "tcp://127.0.0.1:0",
    capacity_bytes: int = 1 << 32,
    keep_bytes: int = KEEP_BYTES,
    ready: Callable[[str], None] | None = None,
    drain_s: float | None = None,
) -> str:
    """Serve until the run ends; returns the reason. `name` ends in the shard's index ("shard-0"); `ready` gets the endpoint once it is registered.

    `capacity_bytes`: most bytes that are stored. `keep_bytes`: free memory above it goes back to the system; what stays is warm, and new bytes are
    copied there ten times as fast. `drain_s`: on SIGTERM and Ctrl-C (main thread only) nothing new is taken in, and the shard leaves when its last
    bytes are freed, or after so long: what it still has is lost then. Where the run drains or stops itself, it ends with that. Once more ends the
    process at once. None leaves the signals alone.

    Raises QueueTimeout, QueueRefused when the controller cannot be joined, ValueError or OSError when `bind` is refused.
    """
    keys = security.worker() if security is not None else None
    answers = Answers(Store(capacity_bytes, keep_bytes))
    socket = _socket()
    try:
        endpoint, server_key = sec.bind(socket, bind, keys)
        _check_reachable(endpoint)
        served = {"shard": endpoint, "server_key": server_key}
        with QueueClient.connect(controller_url, name=name, role="shard", security=keys, endpoints=served) as client:
            answers.store.begin(client.incarnation)
            server = ShardServer(socket, client, answers, drain_s)
            with drains(server.drain, drain_s is not None):
                if ready is not None:
                    ready(endpoint)
                return server.run()
    finally:
        socket.close()
        answers.close()


def _socket() -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 500)
    socket.setsockopt(zmq.SNDHWM, 4096)  # above what a client may have outstanding: a reply is never dropped for a full pipe
    socket.setsockopt(zmq.RCVHWM, 64)  # beyond it, senders wait in their own memory
    socket.setsockopt(zmq.MAXMSGSIZE, m.MOST_FRAME_BYTES)  # a frame that claims more ends its connection before it is allocated
    return socket


def _check_reachable(endpoint: str) -> None:
    if endpoint.startswith(("tcp://0.0.0.0:", "tcp://[::]:")):
        raise ValueError(f"bind={endpoint!r} means every address of this host, but members are told one: bind the address that they reach")


class ShardServer:
    def __init__(self, socket: zmq.Socket[bytes], client: QueueClient, answers: Answers, drain_s: float | None = None) -> None:
        """`drain_s`: how long readers may take once it drains; None: any time."""
        self.socket, self.client, self.answers = socket, client, answers
        self._drain_s = math.inf if drain_s is None else drain_s
        self._drained_by: float | None = None
        self._told: list[Pending[OkEmpty]] = []  # notices of deaths that the controller has not answered

    def drain(self) -> None:
        """Take nothing new in, and end when nothing is left, or after `drain_s`. For a signal's handler."""
        if self._drained_by is None:
            self._drained_by = time.monotonic() + self._drain_s

    def _is_drained(self) -> bool:
        """Never where the run drains, or stops, itself: what is under way there can only be finished with us."""
        if self._drained_by is None or not self.answers.draining:
            return False
        return self.answers.is_drained() or time.monotonic() >= self._drained_by

    def run(self) -> str:
        """Answer until the directive says stop and only shards are left, or the controller is gone.

        Raises QueueError when the controller holds us for dead, QueueTimeout when it hangs: losing the bytes of a run must not look like a clean end.
        """
        watch, asked = self.client.watch(busy=self.answers.told), False
        heard_at = time.monotonic()
        waiting = 0
        while True:
            if self.socket in self.client.poll(0.0 if waiting else 1.0, self.socket, *self.answers.readers.watched()):
                self._burst()
            waiting = self.answers.collect(COOL_BYTES)
            self._tell_deaths()
            if self._is_drained():
                self._leave()
                return DRAINED
            if not watch.done() and time.monotonic() < heard_at + SILENCE_S + self.client.registration.comeback_s:
                continue
            heard_at = time.monotonic()
            try:
                directive = watch.result(0.0).directive
            except QueueGone as error:
                return str(error)
            if directive.state == "stop" and self._alone(directive):
                self._leave()
                return directive.reason
            self.answers.draining = asked and directive.state not in ("drain", "stop")
            watch, asked = self.client.watch(seen=directive.revision, busy=self.answers.told), self._drained_by is not None

    def _tell_deaths(self) -> None:
        """In a queue without topics no silence ends a member, and what one that died had not published would stay."""
        ended = self.answers.readers.ended
        if self.client.registration.topics:
            ended.clear()
        self._told = [notice for notice in self._told if not notice.done()]
        while ended and len(self._told) < TOLD:
            owner, pid = ended.popleft()
            name, incarnation = split_owner(owner)
            dead = MemberDead(member=name, incarnation=incarnation, cause=f"its process {pid} ended, as {self.client.member} saw", pid=pid)
            self._told.append(self.client.submit(dead))
            self._told[-1].silent = True

    def _leave(self) -> None:
        with contextlib.suppress(QueueGone, QueueTimeout, QueueError):
            self.client.leave().result(LEAVE_S)  # awaited: a forked process ends without zmq's linger

    def _alone(self, directive: Directive) -> bool:
        """Only shards are left. They share the stem of our name (shard-0, shard-1): the directive lists names, not roles."""
        stem = self.client.member.rstrip("0123456789")
        return all(member.startswith(stem) for member in directive.alive)

    def _burst(self) -> None:
        for _ in range(BURST):
            try:
                sender, *frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            reply = self._answer(sender.bytes, [frame.buffer for frame in frames])
            if reply is None:
                continue
            try:
                self.socket.send_multipart([sender.bytes, encode(reply[0]), *reply[1]], zmq.NOBLOCK, copy=False)
            except zmq.Again:
                log.warning("a reply was dropped: its client has 4096 unread ones")

    def _answer(self, sender: bytes, frames: list[Frame]) -> Reply | None:
        number = -1
        try:
            if not frames:
                raise Refused("malformed", "empty message: send a header frame and one frame a column")
            number = id_of(frames[0])
            return self.answers.answer(sender, decode_shard_request(frames[0]), frames[1:])
        except Refused as error:
            return m.ShardError(id=number, code=error.code, message=str(error)), ()
        except msgspec.DecodeError as error:
            return m.ShardError(id=number, code="malformed", message=f"header frame: {error}"), ()
        except Exception as error:  # one request must never end the server: every client would hang (FAULTS 2)
            log.exception("shard request failed")
            return m.ShardError(id=number, code="internal", message=f"{type(error).__name__}: {error}"), ()

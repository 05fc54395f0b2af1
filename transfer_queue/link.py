"""One connection to one server: requests out, replies matched by id, and the truth about whether the peer is still there.

A ROUTER forgets a client when its TCP connection ends, so replies that were due on it never come. Where a server tells a repeat from a new request,
as the controller does for members, pending requests are sent again when the connection comes back; else they fail then, or after a short grace,
instead of at their deadline.
"""

from __future__ import annotations

import itertools
import secrets
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from transfer_queue.errors import QueueError, QueueGone, QueueRefused
from transfer_queue.messages import Cancel
from transfer_queue.pending import Pending, Pump
from transfer_queue.security import Security
from transfer_queue.wire import Frame, encode

MAX_OUTSTANDING = 1000  # requests without a reply on one connection
GRACE_S = 1.0  # a lost connection may come back within this time
_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_DISCONNECTED
_POLLIN = int(zmq.POLLIN)  # an operation on zmq's own enumeration costs as much as the look itself
_KEYS = "the keys of the two sides do not fit, or only one side has any; pass the client.key of this run, or none where the run has none"

Decode = Callable[[list[Frame]], "tuple[int, Any, Exception | None]"]  # frames of a message → (request's id, reply, error in its place)


class Link:
    def __init__(self, endpoint: str, server_key: str, security: Security | None, decode: Decode, label: str, repeats: bool = False) -> None:
        """Connect in the background. `server_key` is used with `security` only. `label` names the peer in messages: "controller", "shard 0".
        `repeats`: requests are sent again when a lost connection comes back, under their ids, which no other connection uses."""
        self.endpoint = endpoint
        self.label = label
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 500)  # a last Free or Leave still goes out; a dead peer delays the exit by no more
        self.socket.setsockopt(zmq.SNDHWM, 2 * MAX_OUTSTANDING)
        self.socket.setsockopt(zmq.RCVHWM, 2 * MAX_OUTSTANDING)
        self.socket.setsockopt(zmq.HEARTBEAT_IVL, 5000)  # a host that vanished without a FIN is noticed, too
        self.socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 20000)
        self.socket.setsockopt(zmq.IPV6, int("[" in endpoint))
        if security is not None:
            security.client(self.socket, server_key)
        # an address of its own: pyzmq's holds the number of a descriptor, which may be used again before zmq has let go of the address
        self.monitor: zmq.Socket[bytes] = self.socket.get_monitor_socket(_EVENTS, addr=f"inproc://monitor-{secrets.token_hex(8)}")
        self._closing = weakref.finalize(self, _close, self.socket, self.monitor)
        self._closing.atexit = False
        self._decode = decode
        self.grace_s = GRACE_S
        self._repeats = repeats
        self._ids = itertools.count((1 + secrets.randbits(30) << 32 if repeats else 0) + 1)
        self._pending: dict[int, Pending[Any]] = {}
        self.said_at = 0.0  # when something was sent last (time.monotonic)
        self._up = False
        self._lost_at: float | None = None
        self._doomed: set[int] = set()  # requests whose replies were due on the connection that was lost
        self._refused = False
        self.socket.connect(endpoint)

    def send(self, pump: Pump, request: msgspec.Struct, frames: Sequence[Any] = ()) -> Pending[Any]:
        """Queue `request` (its `id` is set here) and its frames. Frames are not copied: leave them alone until the reply came."""
        if len(self._pending) >= MAX_OUTSTANDING:
            raise QueueError("too_many", f"{MAX_OUTSTANDING} requests to {self} wait for replies, the limit of one client: wait for some of them")
        self._listen()  # a request that is sent after a loss was noticed is not doomed with those before it
        number = next(self._ids)
        pending: Pending[Any] = Pending(pump, number, type(request).__name__, self, request if self._repeats else None)
        self.post(self._numbered(request, number), frames)
        self._pending[number] = pending
        return pending

    def _numbered(self, request: msgspec.Struct, number: int) -> msgspec.Struct:
        if not self._repeats:
            return msgspec.structs.replace(request, id=number)
        return msgspec.structs.replace(request, id=number, back=number - next(iter(self._pending), number))

    def post(self, request: msgspec.Struct, frames: Sequence[Any] = ()) -> None:
        """Send without a reply."""
        self.said_at = time.monotonic()
        try:
            if frames:
                self.socket.send_multipart([encode(request), *frames], zmq.NOBLOCK, copy=False)
            else:
                self.socket.send(encode(request), zmq.NOBLOCK)
        except zmq.Again:
            self._listen()
            if self._refused:  # zmq gives a refused connection up for good
                raise self._refusal() from None
            raise QueueGone(f"{self} takes no more messages: {2 * MAX_OUTSTANDING} are queued for it; it hangs or cannot be reached") from None

    @property
    def up(self) -> bool:
        """Whether the peer is connected, as far as is known now."""
        self._listen()
        return self._up and self._lost_at is None

    def look(self) -> list[Pending[Any]]:
        """`pump`, where no poll came before."""
        return self.pump(_readable(self.socket), _readable(self.monitor))

    def pump(self, comes: bool, changes: bool) -> list[Pending[Any]]:
        """Read everything that is there. Returns the requests that got their reply or their error. `comes`, `changes`: what a poll said of `socket`
        and of `monitor` just now."""
        settled = []
        while comes:
            frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            number, reply, error = self._decode([frame.buffer for frame in frames])
            pending = self._pending.pop(number, None)
            if pending is not None:
                pending.settle(reply, error)
                settled.append(pending)
            comes = _readable(self.socket)  # asked, for an exception at the end of every look costs more than a message
        if changes:
            self._listen()
        if self._doomed or self._refused or self._lost_at is not None:
            settled += self._failures()
        return settled

    def _failures(self) -> list[Pending[Any]]:
        if self._refused:
            return self._fail(set(self._pending), self._refusal())
        if self._lost_at is None:
            return self._fail(self._doomed, QueueGone(f"{self} lost the connection and came back: replies that were under way are lost; ask again"))
        if time.monotonic() >= self._lost_at + self.grace_s:
            gone = f"{self} closed the connection and did not come back within {self.grace_s} s: it ended or was killed"
            return self._fail(set(self._pending), QueueGone(gone))
        return []

    def _listen(self) -> None:
        """Take in what the monitor saw of the connection."""
        while _readable(self.monitor):
            event = recv_monitor_message(self.monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                lost, self._up, self._lost_at, self._refused = self._lost_at, True, None, False
                if lost is not None and self._repeats:
                    self._send_again()
            elif event == zmq.EVENT_DISCONNECTED:
                if self._up and self._lost_at is None:  # failed attempts to come back are reported as further disconnects
                    self._lost_at = time.monotonic()
                    self._doomed = set() if self._repeats else set(self._pending)
            else:
                self._refused = True

    def _send_again(self) -> None:
        """Whatever has no reply: it may have been lost, or its reply. A cancel that came before what it cancels went unheard: it follows."""
        for number, pending in self._pending.items():
            assert pending.request is not None, "kept where requests are repeated"
            self.post(self._numbered(pending.request, number))
        for number, pending in self._pending.items():
            if pending.cancelled:
                self.post(self._numbered(Cancel(target=number), next(self._ids)))

    def _refusal(self) -> QueueRefused:
        return QueueRefused(f"{self.label} at {self.endpoint} refused the connection: {_KEYS}")

    @property
    def is_reached(self) -> bool:
        """It was up once, or the peer is up and refuses us: a request is answered, or fails, soon."""
        return self._up or self._refused

    def deadline(self) -> float | None:
        """When pending requests fail for a lost or refused connection (time.monotonic; 0.0 is now), else None."""
        if self._refused:
            return 0.0 if self._pending else None
        if self._lost_at is None:
            return 0.0 if self._doomed else None
        return self._lost_at + self.grace_s if self._pending else None

    def _fail(self, numbers: set[int], error: Exception) -> list[Pending[Any]]:
        failed = [pending for number in sorted(numbers) if (pending := self._pending.pop(number, None)) is not None]
        self._doomed = set()
        for pending in failed:
            pending.settle(None, error)
        return failed

    def close(self) -> None:
        self._closing()

    def __str__(self) -> str:
        state = "" if self._up else " (never connected: it is not up, the address is another, or the server's key is)"
        return f"{self.label} at {self.endpoint}{state}"


def _readable(socket: zmq.Socket[bytes]) -> bool:
    return bool(cast(int, socket.get(zmq.EVENTS)) & _POLLIN)


def _close(socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
    """In this order, also where a link is dropped without being closed: zmq's own thread waits for ever to hand an event to a monitor that has no
    reader any more, and then nothing moves in this process."""
    socket.disable_monitor()
    monitor.close(linger=0)
    socket.close()

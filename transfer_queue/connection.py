"""Who we are to the controller: joining, identity, requests and their replies."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
from typing import Any, Self

import msgspec

from transfer_queue import messages as m
from transfer_queue.errors import QueueError, QueueTimeout
from transfer_queue.heart import Heart
from transfer_queue.hub import Hub
from transfer_queue.link import GRACE_S, Link
from transfer_queue.memory.buffers import KEEP_BYTES
from transfer_queue.pending import Pending
from transfer_queue.security import Security
from transfer_queue.wire import Frame, decode_reply, id_of

BEAT = 0.3  # of the time after which silence is death: a member that waits says something then
NOBODY = m.OkRegistered(member="", incarnation=-1, config=b"", topics=[], shards=[])
JOINING = m.OkRegistered(member="", incarnation=-1, config=b"", topics=[], shards=[])  # no member yet


class Connection(Hub):
    """Use `connect` (a member), `attach` (a member's other thread) or `outsider` (no member)."""

    def __init__(
        self,
        url: str,
        security: Security | None,
        registration: m.OkRegistered,
        timeout_s: float,
        map_memory: bool = True,
        keep_bytes: int = KEEP_BYTES,
    ) -> None:
        super().__init__()
        self.url = url
        self.security = security
        self.registration = registration
        self.timeout_s = timeout_s  # deadline of calls that a healthy server answers at once
        self.map_memory = map_memory  # of shards on this host; False: bytes go through sockets everywhere
        self.keep_bytes = keep_bytes  # of memory for copies of rows, most that lies idle until the next ones
        key, repeats = security.server_public if security else "", registration is not NOBODY
        self.controller = self.add(Link(url, key, security, _decode, "the controller", repeats), self._beat)
        self._beats: Pending[m.OkRoster] | None = None  # the last one
        self._heart: Heart | None = None
        self._follow()

    def _follow(self) -> None:
        """What the controller said of itself: how long a member waits for it, and may be silent."""
        self.controller.grace_s = max(GRACE_S, self.registration.comeback_s)
        self._look_s = self.registration.heartbeat_s * BEAT or math.inf

    def _beat(self) -> None:
        """Whoever waits here is alive: a member that only waits, for work or for room, is not to be taken for dead."""
        if self._look_s == math.inf or time.monotonic() < self.controller.said_at + self._look_s:
            return
        if self._beats is None or self._beats.done():
            with contextlib.suppress(QueueError, OSError):  # who waits for something hears of it there
                self._beats = self.submit(m.Roster(member="", incarnation=0))
                self._beats.silent = True

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        name: str,
        role: str,
        security: Security | None = None,
        endpoints: dict[str, str] | None = None,
        timeout_s: float = 30.0,
        map_memory: bool = True,
        keep_bytes: int = KEEP_BYTES,
    ) -> Self:
        """Join the run. `name` is stable across restarts and ends the leases of its predecessor; `endpoints` is what this member serves.

        `map_memory`: use the memory of shards on this host where it can be had; False sends bytes through sockets everywhere. `keep_bytes`: most
        memory of collected arrays that is kept for the next read (only of rows that had to be copied); 0 gives all of it back at once.
        Waits for a controller that is not up yet. Raises QueueTimeout, QueueRefused (keys), QueueError (protocol, name).
        """
        client = cls(url, security, JOINING, timeout_s, map_memory, keep_bytes)
        client.controller.grace_s = timeout_s
        try:
            request = m.Register(name=name, role=role, pid=os.getpid(), host=socket.gethostname(), endpoints=endpoints or {})
            client.registration = client.call(request, timeout_s)
            client._follow()
        except BaseException:  # whatever ended the attempt, Ctrl-C included: its sockets must not stay open
            client.close()
            raise
        return client

    @classmethod
    def outsider(cls, url: str, *, security: Security | None = None, timeout_s: float = 30.0) -> Self:
        """A connection that is no member: for status, stop and death notices."""
        return cls(url, security, NOBODY, timeout_s)

    def attach(self) -> Self:
        """Another connection of the same member, for another thread. It is closed by itself."""
        return type(self)(self.url, self.security, self.registration, self.timeout_s, self.map_memory, self.keep_bytes)

    def keep_alive(self) -> Heart:
        """Heartbeats from a thread, until this client is closed or the process ends: for a member that computes for longer than the run's
        `heartbeat_s` between two calls. While a call waits it is heard anyway. `check` raises what ended them, `directive` is what was heard last."""
        if self._heart is None:
            self._heart = Heart(self.attach())
        return self._heart

    def close(self) -> None:
        """Close the sockets; says nothing to the controller (`leave` does)."""
        if self._heart is not None and self._process == os.getpid():
            self._heart.stop()
        self._heart = None
        super().close()

    @property
    def member(self) -> str:
        """The member's name, without the incarnation; "" for an outsider."""
        return self.registration.member

    @property
    def incarnation(self) -> int:
        return self.registration.incarnation

    @property
    def owner(self) -> str:
        """Who answers for bytes that are stored and not yet published."""
        return f"{self.member}#{self.incarnation}"

    def topic(self, name: str) -> m.TopicSpec:
        for spec in self.registration.topics:
            if spec.name == name:
                return spec
        raise QueueError("unknown_topic", f"topic={name!r} is not in this run, which has {[spec.name for spec in self.registration.topics]}")

    def submit(self, request: m.Request) -> Pending[Any]:
        """Send, return at once. `id` is filled in, and so are `member` and `incarnation` where the request speaks for its sender."""
        self.check_alone()
        if "incarnation" in request.__struct_fields__ and not isinstance(request, m.MemberDead):
            request = msgspec.structs.replace(request, member=self.member, incarnation=self.incarnation)
        return self.controller.send(self, request)

    def leave(self) -> Pending[m.OkEmpty]:
        """This incarnation ends in order: nobody has to notice it."""
        return self.submit(m.Leave(member="", incarnation=0))

    def call(self, request: m.Request, timeout_s: float) -> Any:
        """Submit and await. Raises QueueError, QueueGone, QueueRefused, or QueueTimeout; the same call may then be made again."""
        pending = self.submit(request)
        try:
            return pending.result(timeout_s)
        except QueueTimeout:
            pending.silent = True
            self.gave_up(request, pending)
            raise

    def gave_up(self, request: m.Request, pending: Pending[Any]) -> None:
        """Nobody waits for the reply any more."""
        if isinstance(request, m.Take):  # a terminal lease never expires: one that is granted after we gave up must not stay ours
            pending.late = lambda taken: self._give_back(request, taken)
            pending.cancel()

    def _give_back(self, request: m.Take, taken: m.OkTaken) -> None:
        if taken.lease >= 0:
            release = m.Release(topic=request.topic, consumer=request.consumer, member="", incarnation=0, lease=taken.lease)
            self.submit(release).silent = True

    def cancel(self, pending: Pending[Any]) -> None:
        """For `Pending.cancel`."""
        self.submit(m.Cancel(target=pending.id)).silent = True


def _decode(frames: list[Frame]) -> tuple[int, m.Reply | None, Exception | None]:
    try:
        reply = decode_reply(frames[0])
    except msgspec.DecodeError as error:
        return id_of(frames[0]), None, QueueError("malformed", f"a reply of the controller: {error}; do both sides run the same release?")
    if isinstance(reply, m.ErrorReply):
        return reply.id, None, QueueError(reply.code, reply.message)
    return reply.id, reply, None

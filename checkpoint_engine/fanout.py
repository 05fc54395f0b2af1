"""The publisher's side towards its broadcast group: epochs of membership, and one version at a time through the current group.

    idle ── new version, same members ─────────────────────────▶ sending ─▶ idle
     └───── members changed ──▶ inviting ──▶ forming (epoch + 1) ───▲ └─ failed: group gone, everyone pulls ─▶ idle

Broadcast is an optimisation: whatever fails here ends with `Available` to those concerned, and they pull. Nobody waits for it: the newest version
at the moment the group is free is the next one sent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from checkpoint_engine import messages as m
from checkpoint_engine.backends import choose, own_device
from checkpoint_engine.broadcast import broadcast_buffer
from checkpoint_engine.cache import HostCache
from checkpoint_engine.collective import Group, GroupError, form_s
from checkpoint_engine.membership import Members
from checkpoint_engine.pinning import Pins, runtime_in_use
from checkpoint_engine.rendezvous import MOST_NOTES, Board
from checkpoint_engine.slot import Lease
from checkpoint_engine.weights_id import WeightsId

INVITE_S = 0.5
_LEASE_S = 60.0
_SLOW_BYTES_S = 20e6

Send = Callable[[bytes, m.FromPublisher], None]


class SyncReport(msgspec.Struct, frozen=True):
    """One attempt to broadcast a version."""

    weights: WeightsId
    epoch: int  # of the group
    members: tuple[str, ...]
    total_bytes: int
    form_s: float  # inviting and forming; 0.0 when the group stood already
    send_s: float
    error: str = ""  # "" or why the members pull instead
    backend: str = "gloo"


Report = Callable[[SyncReport], None]


class FanoutSettings(msgspec.Struct, frozen=True):
    bucket_bytes: int
    timeout_s: float  # of one operation of the group
    host: str  # this process's address for the members
    backend: str = "auto"  # see backends.py


@dataclass
class _Epoch:
    """One membership epoch: from its invitation until it breaks."""

    number: int
    members: tuple[str, ...]  # invited; from forming on those that came, rank 1 first
    backend: str
    began: float
    accepted: set[str] = field(default_factory=set)
    over: threading.Event = field(default_factory=threading.Event)  # ends the broadcast thread's waits
    cause: str = ""  # why it broke
    group: Group | None = None
    board: Board = field(default_factory=Board)
    looks: list[tuple[bytes, m.Look]] = field(default_factory=list)  # parked until the note is posted
    form_s: float = 0.0
    lease: Lease | None = None  # of the version being sent
    sent_at: float = 0.0


class Fanout:
    """Everything here runs on the publisher's loop, except the two jobs. `wake` makes the loop call `tick` soon."""

    def __init__(self, settings: FanoutSettings, cache: HostCache, send: Send, wake: Callable[[], None], report: Report) -> None:
        self._settings, self._cache, self._send, self._wake, self._report = settings, cache, send, wake, report
        self.members = Members()
        self._pins = Pins()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="broadcast")
        self._phase: Literal["idle", "inviting", "forming", "sending"] = "idle"
        self._epoch: _Epoch | None = None
        self._epochs = 0
        self._job: Future[None] | None = None
        self._due: WeightsId | None = None  # the newest version, until a group has it or cannot

    # -------------------------------------------------------------- what happens

    def publish(self, weights: WeightsId) -> None:
        """A new version is served: who will not get it through a group soon is told to pull."""
        self._due = weights
        soon = self._plan()[1] if self._epoch is None or self._phase == "idle" else self._epoch.members
        self._announce(set(self.members.names()) - set(soon))
        self.tick()

    def accept(self, name: str, number: int) -> None:
        epoch = self._epoch
        self.members.alive(name, time.monotonic())
        if self._phase == "inviting" and epoch and number == epoch.number and name in epoch.members:
            epoch.accepted.add(name)
            self.tick()

    def post(self, request: m.Post) -> None:
        if self._epoch and request.epoch == self._epoch.number:
            try:
                self._epoch.board.post(request.key, request.value)
            except GroupError as error:
                self._break(self._epoch, str(error))

    def look(self, identity: bytes, request: m.Look) -> None:
        if self._epoch and request.epoch == self._epoch.number and len(self._epoch.looks) < MOST_NOTES:
            self._epoch.looks.append((identity, request))

    def done(self, request: m.Done) -> None:
        """A member's end of a broadcast. One that failed ends the group for all: the others wait for it."""
        self.members.alive(request.member, time.monotonic())
        if request.error and self._epoch and request.epoch == self._epoch.number:
            self._break(self._epoch, f"{request.member}: {request.error}")

    def member_died(self, name: str) -> None:
        self.members.remove(name)
        epoch = self._epoch
        if epoch is None or name not in epoch.members:
            return
        if self._phase == "inviting":
            epoch.members = tuple(member for member in epoch.members if member != name)
            epoch.accepted.discard(name)
            self.tick()
        else:
            self._break(epoch, f"{name} died")

    def tick(self) -> None:
        """Advance as far as it goes without waiting."""
        if self._job is not None and self._job.done():
            self._job_done(self._job)
        epoch = self._epoch
        if epoch is not None and epoch.looks:
            self._answer_looks(epoch)
        if self._phase == "inviting" and epoch and (len(epoch.accepted) == len(epoch.members) or time.monotonic() >= epoch.began + INVITE_S):
            self._form(epoch)
        if self._phase == "idle" and self._due is not None:
            self._start()

    def deadline(self) -> float | None:
        """When (monotonic) `tick` is due without any message."""
        return self._epoch.began + INVITE_S if self._phase == "inviting" and self._epoch else None

    def close(self) -> None:
        """Ends the group. Blocks for at most the time a group takes to form (2 s, 10 s on devices)."""
        self._due = None
        if self._epoch:
            self._break(self._epoch, "the publisher closes")
        self._pool.shutdown(wait=True)
        self.tick()
        self._pins.close()

    # -------------------------------------------------------------- steps

    def _plan(self) -> tuple[str, tuple[str, ...]]:
        """Which group could be made now: (backend, members)."""
        setting = self._settings.backend
        return choose(setting, own_device(setting), self.members.devices(self.members.eligible(time.monotonic())))

    def _start(self) -> None:
        backend, eligible = self._plan()
        if self._epoch and (self._epoch.backend, self._epoch.members) == (backend, eligible):
            self._send_version(self._epoch)
            return
        if self._epoch:
            self._break(self._epoch, "")
        if not eligible:
            self._due = None  # nobody to send it to: who joins later pulls
            return
        self._epochs += 1
        self._phase, self._epoch = "inviting", _Epoch(self._epochs, eligible, backend, time.monotonic())
        self._tell(eligible, m.Invite(epoch=self._epochs))

    def _form(self, epoch: _Epoch) -> None:
        late = set(epoch.members) - epoch.accepted
        for name in late:
            self.members.suspect(name)
        self._announce(late)
        epoch.members = tuple(sorted(epoch.accepted))
        if not epoch.members:
            self._phase, self._epoch, self._due = "idle", None, None
            return
        settings, world = self._settings, len(epoch.members) + 1
        epoch.board = Board(self._wake)
        for rank, name in enumerate(epoch.members, start=1):
            place = m.Place(settings.host, epoch.backend, settings.timeout_s)
            self._tell([name], m.Form(epoch=epoch.number, rank=rank, world=world, place=place))
        self._submit("forming", lambda: self._make_group(epoch, world))

    def _answer_looks(self, epoch: _Epoch) -> None:
        parked, epoch.looks = epoch.looks, []
        for identity, look in parked:
            value = epoch.board.look(look.key)
            if value is None:
                epoch.looks.append((identity, look))
            else:
                self._send(identity, m.Found(seq=look.seq, value=value))

    def _make_group(self, epoch: _Epoch, world: int) -> None:
        """In the broadcast thread."""
        from checkpoint_engine.board_store import BoardStore

        settings = self._settings
        store = BoardStore(epoch.board.post, epoch.board.await_note, form_s(epoch.backend))
        try:
            epoch.group = Group(store, 0, world, settings.host, settings.timeout_s, epoch.backend)
        finally:
            store.end()  # a backend's threads have nothing to say on the board any more

    def _send_version(self, epoch: _Epoch) -> None:
        self._due = None
        lease = self._cache.lease("broadcast", _LEASE_S)
        if lease is None or epoch.group is None:
            return
        group, settings, total = epoch.group, self._settings, lease.manifest.total_bytes
        lease.deadline += total / _SLOW_BYTES_S
        epoch.lease, epoch.sent_at = lease, time.monotonic()
        self._tell(epoch.members, m.Send(epoch=epoch.number, manifest=lease.manifest, bucket_bytes=settings.bucket_bytes))
        self._pins.keep_only(self._cache.nonces())
        self._submit("sending", lambda: self._broadcast(group, lease, epoch.over.is_set))

    def _broadcast(self, group: Group, lease: Lease, over: Callable[[], bool]) -> None:
        """In the broadcast thread."""
        self._pins.hold(lease.arena, runtime_in_use() if group.staging is not None else None)
        broadcast_buffer(group, lease.arena.tensor(), lease.manifest.total_bytes, self._settings.bucket_bytes, over)

    def _submit(self, phase: Literal["forming", "sending"], job: Callable[[], None]) -> None:
        self._phase = phase
        self._job = self._pool.submit(job)
        self._job.add_done_callback(lambda _: self._wake())

    def _job_done(self, job: Future[None]) -> None:
        """The group stands, the version is sent, or the epoch is over."""
        self._job = None
        phase, self._phase = self._phase, "idle"
        error, epoch = job.exception(), self._epoch
        if epoch is None or (error is not None and not isinstance(error, GroupError)):
            raise error or RuntimeError(f"a job of the broadcast thread ended in phase {phase} without an epoch")
        if error is not None and not epoch.cause:
            epoch.cause = str(error)
        if phase == "forming":
            epoch.form_s = time.monotonic() - epoch.began
        self._sent(epoch)
        if epoch.cause:
            self._break(epoch, epoch.cause)
        elif phase == "forming":
            self._send_version(epoch)  # even if somebody joined meanwhile: joiners must not keep the others from a version

    def _sent(self, epoch: _Epoch) -> None:
        """Report a version that was sent, or an epoch that broke before it could be."""
        send_s, weights, total = 0.0, self._due, 0
        if epoch.lease is not None:
            lease, epoch.lease = epoch.lease, None
            weights, total, send_s = lease.manifest.weights, lease.manifest.total_bytes, time.monotonic() - epoch.sent_at
            self._cache.release(lease, tainted=bool(epoch.cause))  # a stuck operation may still read there
        elif not epoch.cause:
            return
        if weights is not None:
            self._report(SyncReport(weights, epoch.number, epoch.members, total, epoch.form_s, send_s, epoch.cause, epoch.backend))
        epoch.form_s = 0.0

    def _break(self, epoch: _Epoch, cause: str) -> None:
        """The epoch is over. Its members are told at once; a job that runs is told too and ends in `_job_done`."""
        if not epoch.over.is_set():
            epoch.over.set()
            epoch.board.abandon()
            self._tell(epoch.members, m.Abandon(epoch=epoch.number))
        epoch.cause = epoch.cause or cause
        if self._phase in ("forming", "sending"):
            return
        if epoch.group is not None:
            epoch.group.close()
        self._phase, self._epoch = "idle", None
        if epoch.cause:
            self._announce(epoch.members)
            self._due = None if self._due == self._cache.latest() else self._due

    def _announce(self, names: Iterable[str]) -> None:
        weights = self._cache.latest()
        if weights is not None:
            self._tell(names, m.Available(weights=weights))

    def _tell(self, names: Iterable[str], record: m.FromPublisher) -> None:
        for name in names:
            identity = self.members.identity(name)
            if identity is not None:
                self._send(identity, record)

"""The publisher of one model: a process of its own beside the trainer, which keeps the last version in host memory and serves it.

One loop on the thread that calls `run` owns the socket and all state; two helper threads do what takes long (hashing a version, the broadcast).
A new version goes: slot committed → digest → served → `on_published` → broadcast to the group; whoever is in no group pulls.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import zmq

from checkpoint_engine import messages as m
from checkpoint_engine.backends import check_setting, own_device
from checkpoint_engine.broadcast import check_bucket
from checkpoint_engine.cache import HostCache
from checkpoint_engine.collective import check_timeout, import_torch
from checkpoint_engine.deadline import clamp_s
from checkpoint_engine.digest import digested
from checkpoint_engine.export import export_weights
from checkpoint_engine.fanout import Fanout, FanoutSettings, SyncReport
from checkpoint_engine.intake import Intake
from checkpoint_engine.manifest import Manifest
from checkpoint_engine.membership import MOST_MEMBERS
from checkpoint_engine.outlet import Outlet
from checkpoint_engine.slot import Reservation
from checkpoint_engine.wakeup import Wakeup
from checkpoint_engine.weights_id import WeightsId
from checkpoint_engine.wire import Secure, bind_router, decode_to_publisher, encode, host_of

_TICK_S = 0.1  # how late `stop` and deadlines may be noticed
_EXPORT_LEASE_S = 600.0
_MOST_WAITING = 1024  # questions for a version that is not there yet


class StopSignal(Protocol):
    def is_set(self) -> bool: ...


class Publisher:
    """Serves one model's weights from `endpoint`.

    `model`, `epoch`: what this trainer's history is called; others are refused. `bind`: "tcp://127.0.0.1:0"; another address than loopback needs
    `secure`. `transport` "pull" forms no groups. `spare`: slots beside the served one. `backend`: of the groups, see backends.py; who cannot be in
    one pulls. Callbacks run on the thread of `run`; what they raise ends it.
    """

    def __init__(
        self,
        model: str,
        epoch: int = 0,
        bind: str = "tcp://127.0.0.1:0",
        secure: Secure | None = None,
        bucket_bytes: int = 16 << 20,
        transport: Literal["collective", "pull"] = "collective",
        group_timeout_s: float = 5.0,
        on_published: Callable[[WeightsId], None] = lambda weights: None,
        on_sync: Callable[[SyncReport], None] = lambda report: None,
        spare: int = 1,
        copy_timeout_s: float = 120.0,
        backend: str = "auto",
    ) -> None:
        if transport not in ("collective", "pull"):
            raise ValueError(f"transport = {transport!r} is unknown: nothing would be sent; use 'collective' or 'pull'")
        if spare < 1:
            raise ValueError(f"spare = {spare} must be at least 1: with one slot the served version would be overwritten; set spare >= 1")
        settings = FanoutSettings(check_bucket(bucket_bytes), check_timeout(group_timeout_s), host_of(bind), check_setting(backend))
        self._model, self._collective = model, transport == "collective"
        if self._collective:
            import_torch()
            own_device(backend)
        self._on_published = on_published
        self._router, self.endpoint = bind_router(bind, secure)
        self._wakeup = Wakeup()
        self._cache = HostCache(spare)
        self._intake = Intake(model, epoch, self._cache, self._send, self._filled, copy_timeout_s)
        self._outlet = Outlet(self._cache, self._send)
        self._fanout = Fanout(settings, self._cache, self._send, self._wakeup.set, on_sync)
        self._hashing = ThreadPoolExecutor(1, thread_name_prefix="digest")
        self._hashed: deque[tuple[Reservation, Future[Manifest]]] = deque()
        self._deaths: deque[str] = deque()
        self._waiting: list[tuple[bytes, m.AwaitPublished, float]] = []

    # -------------------------------------------------------------- for the owner

    @property
    def published(self) -> WeightsId | None:
        """The version that is served. Any thread."""
        return self._cache.latest()

    def run(self, stop: StopSignal) -> None:
        """Serve until `stop` is set; closes everything on the way out."""
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._wakeup.fileno(), zmq.POLLIN)
        try:
            while not stop.is_set():
                ready = dict(poller.poll(int(self._patience_s() * 1e3) + 1))
                if self._wakeup.fileno() in ready:
                    self._wakeup.clear()
                if self._router in ready:
                    self._drain()
                self._advance()
        finally:
            self._close()

    def death_notice(self, member: str) -> None:
        """Somebody saw `member` (as it joined) end: its leases, its reservation and its group are over. Any thread."""
        self._deaths.append(member)
        self._wakeup.set()

    def export(self, path: Path | str, base: Path | str | None = None) -> WeightsId:
        """Write the served version to the directory `path`, which appears whole or not at all: model.safetensors, weights_id.json, and the
        other files of `base` (config, tokenizer). Any thread. Raises LookupError before the first version, FileExistsError."""
        lease = self._cache.lease("export", _EXPORT_LEASE_S)
        if lease is None:
            raise LookupError("nothing was published yet: there is nothing to export; publish a version first")
        try:
            export_weights(lease, Path(path), Path(base) if base is not None else None)
        finally:
            self._cache.release(lease)
            self._wakeup.set()
        return lease.manifest.weights

    # -------------------------------------------------------------- the loop

    def _patience_s(self) -> float:
        deadline = self._fanout.deadline()
        return _TICK_S if deadline is None else max(min(deadline - time.monotonic(), _TICK_S), 0.0)

    def _drain(self) -> None:
        for _ in range(256):  # then give the timers a turn
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            identity, payload = frames[0].bytes, frames[1].buffer if len(frames) > 1 else memoryview(b"")
            try:
                request = decode_to_publisher(payload)
            except msgspec.DecodeError as error:
                self._send(identity, m.Refused(code="malformed", message=f"{len(payload)} bytes are no record: {error}; nothing was done"))
                continue
            self._handle(identity, request, frames[2].buffer if len(frames) > 2 else memoryview(b""))

    def _handle(self, identity: bytes, request: m.AnyToPublisher, data: memoryview) -> None:
        match request:
            case m.Join():
                self._join(identity, request)
            case m.Leave():
                self._forget(request.member)
            case m.Accept():
                self._fanout.accept(request.member, request.epoch)
            case m.Post():
                self._fanout.post(request)
            case m.Look():
                self._fanout.look(identity, request)
            case m.Done():
                self._fanout.done(request)
            case m.Pull():
                self._outlet.pull(identity, request)
            case m.Fetch():
                self._outlet.fetch(identity, request)
            case m.Renew():
                self._outlet.renew(identity, request)
            case m.Release():
                self._outlet.release(request)
            case m.Reserve():
                self._intake.reserve(identity, request)
            case m.Write():
                self._intake.write(identity, request, data)
            case m.Commit():
                self._intake.commit(identity, request)
            case m.Discard():
                self._intake.discard(identity, request)
            case m.AwaitPublished():
                self._await_published(identity, request)

    def _advance(self) -> None:
        while self._deaths:
            self._forget(self._deaths.popleft())
        while self._hashed and self._hashed[0][1].done():
            self._publish(*self._hashed.popleft())
        for member in self._fanout.members.silent(time.monotonic()):
            self._forget(member)
        self._outlet.tick()
        self._fanout.tick()
        self._intake.tick()
        self._answer_waiting()

    def _join(self, identity: bytes, request: m.Join) -> None:
        members = self._fanout.members
        known = members.identity(request.member)
        if known is not None and known != identity:
            self._forget(request.member)  # the same name over another connection: the old one is gone
        elif known is None and len(members) >= MOST_MEMBERS:
            problem = f"{request.member!r} would be member {MOST_MEMBERS + 1}: it may not follow; names that went silent are forgotten, try again"
            self._send(identity, m.Refused(seq=request.seq, code="bad_request", message=problem))
            return
        collective = request.collective and self._collective
        members.heard(request.member, identity, collective, request.have, time.monotonic(), request.device)
        self._send(identity, m.Available(seq=request.seq, weights=self._cache.latest()))

    def _await_published(self, identity: bytes, request: m.AwaitPublished) -> None:
        if request.weights.model != self._model or len(self._waiting) >= _MOST_WAITING:
            problem = f"{request.weights} is awaited from the publisher of {self._model!r}, where {len(self._waiting)} of {_MOST_WAITING} may wait"
            self._send(identity, m.Refused(seq=request.seq, code="bad_request", message=f"{problem}: it would never come; ask for a version of it"))
        else:
            self._waiting.append((identity, request, time.monotonic() + clamp_s(request.wait_s)))

    def _forget(self, member: str) -> None:
        self._outlet.member_died(member)
        self._intake.member_died(member)
        self._fanout.member_died(member)

    def _filled(self, reservation: Reservation, manifest: Manifest) -> None:
        future = self._hashing.submit(digested, manifest, reservation.arena.array)
        self._hashed.append((reservation, future))
        future.add_done_callback(lambda _: self._wakeup.set())

    def _publish(self, reservation: Reservation, future: Future[Manifest]) -> None:
        manifest = future.result()
        self._cache.complete(reservation, manifest)
        self._on_published(manifest.weights)
        self._fanout.publish(manifest.weights)

    def _answer_waiting(self) -> None:
        published, now = self._cache.latest(), time.monotonic()
        still: list[tuple[bytes, m.AwaitPublished, float]] = []
        for identity, request, deadline in self._waiting:
            if deadline <= now or (published is not None and not published < request.weights):
                self._send(identity, m.Published(seq=request.seq, weights=published))
            else:
                still.append((identity, request, deadline))
        self._waiting = still

    def _send(self, identity: bytes, record: m.FromPublisher, *frames: Any) -> None:
        self._router.send_multipart([identity, encode(record), *frames], copy=False)

    def _close(self) -> None:
        self._fanout.close()
        self._hashing.shutdown(wait=True)
        self._router.close()
        self._wakeup.close()
        self._cache.close()

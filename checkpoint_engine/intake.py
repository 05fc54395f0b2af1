"""The publisher's side towards its trainer: slots are reserved, written and committed here.

A version is served only after `Commit`; a trainer that dies while it copies leaves a reservation whose memory is given up, never reused, for a
hung writer might still write there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from checkpoint_engine import messages as m
from checkpoint_engine.cache import HostCache
from checkpoint_engine.deadline import clamp_s
from checkpoint_engine.manifest import MOST_BYTES, Manifest, check_manifest
from checkpoint_engine.slot import Reservation
from checkpoint_engine.weights_id import WeightsId

Send = Callable[[bytes, m.FromPublisher], None]
Filled = Callable[[Reservation, Manifest], None]


@dataclass
class _Ticket:
    number: int
    member: str
    reservation: Reservation
    deadline: float


@dataclass
class _Parked:
    identity: bytes
    request: m.Reserve
    deadline: float


class Intake:
    """One writer at a time. `filled` gets each committed version; `copy_timeout_s` bounds the time from slot to commit."""

    def __init__(self, model: str, epoch: int, cache: HostCache, send: Send, filled: Filled, copy_timeout_s: float) -> None:
        self._model, self._epoch = model, epoch
        self._cache, self._send, self._filled = cache, send, filled
        self._copy_timeout_s = copy_timeout_s
        self._ticket: _Ticket | None = None
        self._parked: _Parked | None = None
        self._accepted: WeightsId | None = None
        self._numbers = 0

    def reserve(self, identity: bytes, request: m.Reserve) -> None:
        problem = self._problem(request.weights, request.nbytes)
        if problem:
            self._send(identity, m.Refused(seq=request.seq, code="bad_request", message=problem))
            return
        self._revoke()  # whoever held a ticket is asking anew, or was replaced
        self._answer_parked()
        self._parked = _Parked(identity, request, time.monotonic() + clamp_s(request.wait_s))
        self.tick()

    def write(self, identity: bytes, request: m.Write, data: memoryview) -> None:
        ticket = self._granted(identity, request.ticket, request.seq)
        if ticket is None:
            return
        arena = ticket.reservation.arena
        if not 0 <= request.offset <= arena.nbytes or len(data) > m.MOST_CHUNK_BYTES:
            problem = f"{len(data)} bytes at {request.offset}: chunks come in order, each of at most {m.MOST_CHUNK_BYTES} bytes; not written"
            self._send(identity, m.Refused(seq=request.seq, code="bad_request", message=problem))
            return
        try:
            arena.grow(request.offset + len(data))
        except OSError as error:
            self._send(identity, _no_memory(request.seq, request.offset + len(data), error))
            return
        arena.array[request.offset : request.offset + len(data)] = data
        ticket.deadline = time.monotonic() + self._copy_timeout_s
        self._send(identity, m.Ok(seq=request.seq))

    def commit(self, identity: bytes, request: m.Commit) -> None:
        ticket = self._granted(identity, request.ticket, request.seq)
        if ticket is None:
            return
        reservation, manifest = ticket.reservation, request.manifest
        try:
            check_manifest(manifest)
            reservation.arena.refresh()
            if manifest.weights != reservation.weights or manifest.total_bytes > reservation.arena.nbytes:
                raise ValueError(f"the slot is for {reservation.weights} and has {reservation.arena.nbytes} bytes: {manifest.weights} is not taken")
        except (ValueError, OSError) as error:  # OSError: what the trainer added cannot be mapped here
            self._send(identity, m.Refused(seq=request.seq, code="bad_request", message=str(error)))
            return
        self._ticket = None
        self._accepted = manifest.weights
        self._send(identity, m.Ok(seq=request.seq))
        self._filled(reservation, manifest)

    def discard(self, identity: bytes, request: m.Discard) -> None:
        ticket = self._granted(identity, request.ticket, request.seq)
        if ticket is not None:
            self._cache.abandon(ticket.reservation, tainted=False)
            self._ticket = None
            self._send(identity, m.Ok(seq=request.seq))

    def member_died(self, member: str) -> None:
        if self._ticket and self._ticket.member == member:
            self._revoke()
        if self._parked and self._parked.request.member == member:
            self._parked = None

    def tick(self) -> None:
        """Serve a parked trainer if a slot came free; end what is past its deadline."""
        now = time.monotonic()
        if self._ticket and self._ticket.deadline <= now:
            self._revoke()
        if self._parked is None:
            return
        request = self._parked.request
        try:
            reservation = self._cache.reserve(request.weights, request.nbytes)
        except OSError as error:
            if self._parked.deadline <= now:  # until then some may come free
                self._send(self._parked.identity, _no_memory(request.seq, request.nbytes, error))
                self._parked = None
            return
        if reservation is not None:
            self._numbers += 1
            self._ticket = _Ticket(self._numbers, request.member, reservation, now + self._copy_timeout_s)
            self._send(self._parked.identity, self._slot(request.seq, reservation))
            self._parked = None
        elif self._parked.deadline <= now:
            self._answer_parked()

    def _slot(self, seq: int, reservation: Reservation) -> m.Slot:
        return m.Slot(seq=seq, ticket=self._numbers, descriptor=reservation.arena.descriptor(), slots=self._cache.nonces())

    def _answer_parked(self) -> None:
        if self._parked:
            self._send(self._parked.identity, m.NoSlot(seq=self._parked.request.seq))
            self._parked = None

    def _revoke(self) -> None:
        if self._ticket:
            self._cache.abandon(self._ticket.reservation, tainted=True)
            self._ticket = None

    def _granted(self, identity: bytes, number: int, seq: int) -> _Ticket | None:
        if self._ticket and self._ticket.number == number:
            return self._ticket
        problem = f"ticket {number} is over (deadline, death notice or a newer request): nothing of it is served; reserve again"
        self._send(identity, m.Refused(seq=seq, code="unknown_ticket", message=problem))
        return None

    def _problem(self, weights: WeightsId, nbytes: int) -> str:
        if weights.version < 0 or not 0 <= nbytes <= MOST_BYTES:
            return f"{weights} with nbytes = {nbytes}: versions count from 0, a version takes 0..{MOST_BYTES} bytes; not taken"
        if weights.model != self._model or weights.epoch != self._epoch:
            return f"{weights} does not belong to {self._model!r}, epoch {self._epoch}: not taken; ask the controller for this model's publisher"
        if self._accepted is not None and not self._accepted < weights:
            return f"{weights} is not newer than {self._accepted}: not taken; versions only grow within an epoch"
        return ""


def _no_memory(seq: int, nbytes: int, error: OSError) -> m.Refused:
    problem = f"{nbytes} bytes of shared memory cannot be had on the publisher's host: {error}; nothing was taken. Give it more memory or fewer slots"
    return m.Refused(seq=seq, code="no_memory", message=problem)

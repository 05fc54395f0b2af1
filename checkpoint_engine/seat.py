"""A receiver's place in the broadcast group of the current epoch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from checkpoint_engine import messages as m
from checkpoint_engine.broadcast import broadcast_buffer
from checkpoint_engine.cache import HostCache
from checkpoint_engine.collective import Group, GroupError, address_towards
from checkpoint_engine.digest import DigestMismatch, Verifier
from checkpoint_engine.link import Link
from checkpoint_engine.manifest import Manifest, ManifestError, check_manifest
from checkpoint_engine.pinning import Pins, runtime_in_use
from checkpoint_engine.slot import Reservation
from checkpoint_engine.weights_id import WeightsId


class SeatLost(RuntimeError):
    """The group is over for this member; what it was bringing is pulled instead."""


@dataclass
class _Taken:
    epoch: int
    group: Group


class Seat:
    """Used by the receiver's thread."""

    def __init__(self, link: Link, member: str, cache: HostCache) -> None:
        self._link, self._member, self._cache = link, member, cache
        self._seat: _Taken | None = None
        self._pins = Pins()

    @property
    def taken(self) -> bool:
        return self._seat is not None

    def invited(self, record: m.Invite) -> None:
        """A newer epoch: the old group is over; say that this thread is free to come."""
        self.leave()
        self._link.ask(m.Accept(member=self._member, epoch=record.epoch))

    def take(self, record: m.Form) -> None:
        """Blocks until the group stands. Raises SeatLost when it does not in time, or is over before."""
        from checkpoint_engine.board_store import BoardStore

        self.leave()
        place, epoch = record.place, record.epoch

        def post(key: str, value: bytes) -> None:
            self._link.ask(m.Post(epoch=epoch, key=key, value=value))

        def fetch(key: str, timeout_s: float) -> bytes:
            seq = self._link.ask(m.Look(epoch=epoch, key=key))
            answer, _ = self._link.answer(seq, time.monotonic() + timeout_s, lambda: store.over or self._link.heard(_ends(epoch)))
            if not isinstance(answer, m.Found):
                raise GroupError(f"asked for a note, got {type(answer).__name__}")
            return answer.value

        store = BoardStore(post, fetch, place.timeout_s)
        try:
            group = Group(store, record.rank, record.world, address_towards(place.host), place.timeout_s, place.backend)
        except GroupError as error:
            raise SeatLost(str(error)) from error
        finally:
            store.end()  # the link is this thread's alone
        self._seat = _Taken(epoch, group)

    def abandoned(self, record: m.Abandon) -> None:
        if self._seat and self._seat.epoch <= record.epoch:
            self.leave()

    def receive(self, record: m.Send, is_news: Callable[[WeightsId], bool]) -> bool:
        """Take part in the broadcast of one version. True: it is in the cache, whole and verified. False: taken part for the others' sake only
        (something as new is here already, or no slot is free). Raises SeatLost, DigestMismatch; the cache is then as before. OSError: there is no
        memory for it, and the part in the broadcast was taken all the same."""
        seat, manifest = self._seat, record.manifest
        if seat is None or seat.epoch != record.epoch:
            self._tell(record, f"holds no seat in epoch {record.epoch}")
            raise SeatLost(f"{manifest.weights} is sent through epoch {record.epoch}, where {self._member} has no seat")
        try:
            check_manifest(manifest)
        except ManifestError as error:
            self._tell(record, str(error))  # the others must not wait for a member that will not come
            raise
        reservation, no_memory = None, None
        try:
            if is_news(manifest.weights):
                reservation = self._cache.reserve(manifest.weights, manifest.total_bytes)
        except OSError as error:
            no_memory = error
        if reservation is None:
            self._through_group(seat, record, None, lambda done: None)
        else:
            self._into(seat, record, reservation)
        self._tell(record, "")
        if no_memory is not None:
            raise no_memory
        return reservation is not None

    def leave(self) -> None:
        if self._seat is not None:
            self._seat.group.close()
            self._seat = None

    def close(self) -> None:
        self.leave()
        self._pins.close()

    def _into(self, seat: _Taken, record: m.Send, reservation: Reservation) -> None:
        verifier = _Late(record.manifest, reservation)
        try:
            self._through_group(seat, record, reservation, verifier.arrived)
            verifier.finish()
        except SeatLost:
            self._cache.abandon(reservation, tainted=True)  # the group's last operation may still write there
            raise
        except DigestMismatch:
            self._cache.abandon(reservation, tainted=False)
            raise
        self._cache.complete(reservation, record.manifest)

    def _through_group(self, seat: _Taken, record: m.Send, reservation: Reservation | None, arrived: Callable[[int], None]) -> None:
        self._pins.keep_only(self._cache.nonces())
        if reservation is not None and seat.group.staging is not None:
            self._pins.hold(reservation.arena, runtime_in_use())
        buffer = None if reservation is None else reservation.arena.tensor()
        try:
            broadcast_buffer(seat.group, buffer, record.manifest.total_bytes, record.bucket_bytes, lambda: self._over(seat.epoch), arrived)
        except GroupError as error:
            self._tell(record, str(error))
            self.leave()
            raise SeatLost(str(error)) from error

    def _over(self, epoch: int) -> bool:
        """Did the publisher say that this epoch is over?"""
        return self._link.peek(_ends(epoch))

    def _tell(self, record: m.Send, error: str) -> None:
        self._link.ask(m.Done(member=self._member, epoch=record.epoch, weights=record.manifest.weights, error=error))


def _ends(epoch: int) -> Callable[[m.AnyFromPublisher], bool]:
    def ends(record: m.AnyFromPublisher) -> bool:
        return (isinstance(record, m.Abandon) and record.epoch >= epoch) or (isinstance(record, m.Invite) and record.epoch > epoch)

    return ends


class _Late(Verifier):
    """Verifies while buckets travel, but speaks only at the end: a member that left at a bad tensor would make the others fail."""

    def __init__(self, manifest: Manifest, reservation: Reservation) -> None:
        super().__init__(manifest, reservation.arena.array)
        self._found: DigestMismatch | None = None

    def arrived(self, nbytes: int) -> None:
        if self._found is None:
            try:
                super().arrived(nbytes)
            except DigestMismatch as error:
                self._found = error

    def finish(self) -> None:
        if self._found is not None:
            raise self._found
        super().finish()

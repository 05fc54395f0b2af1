"""The host cache: N + 1 slots of shared memory that hold whole versions of weights.

Invariants: a slot is never overwritten under a reader; only complete versions are served, the newest first; a version only ever moves forward.
Memory that somebody may still touch (a reader past its deadline, a writer that died, a transfer that was abandoned) is *tainted*: the slot gets
fresh memory before its next use, and the old pages live until their last view is gone. A slot may also hold another cache's memory, mapped here
(a *loan*): it goes back as soon as a newer version is served and its last lease here has ended.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from checkpoint_engine.copy_out import copy_out
from checkpoint_engine.loan import Loan
from checkpoint_engine.manifest import Manifest
from checkpoint_engine.slot import Lease, Reservation, Slot, new_arena
from checkpoint_engine.weights_id import WeightsId
from shared_arena import Arena

if TYPE_CHECKING:
    import numpy as np
    import torch

Clock = Callable[[], float]
KEPT_S = 2.0
"""How long a version that is kept blocks its slot once a newer one is there: time to load that one, for what is let go by then goes on with warm
pages. From then on it keeps its memory, and whoever needs the slot writes into other one."""


class NoFreeSlot(RuntimeError):
    """Every slot is being read, written or served. The version stays pending: try again when `wait_free` says so."""


class ReservationOver(RuntimeError):
    """The writer's slot was taken back before the version was complete."""


class HostCache:
    """`spare` + 1 slots. Thread-safe. Other processes reach a slot's memory by its arena's descriptor, under a lease taken here for them.

    `spare` 0 saves a model's memory: a version is written over the one before once that was read, and nothing is served meanwhile. For who can ask
    for a version again, should that fail. (One that nobody read yet stays, or a reader slower than the versions come would never find any.) Who needs
    one then waits for it: `await_lease`.
    """

    def __init__(self, spare: int = 1, clock: Clock = time.monotonic) -> None:
        if spare < 0:
            raise ValueError(f"spare = {spare} is negative: there is no slot to write into; set spare >= 0")
        self._slots = [Slot(index) for index in range(spare + 1)]
        self._newest: Slot | None = None
        self._closed = False
        self._clock = clock
        self._changed = threading.Condition()

    @property
    def spare(self) -> int:
        """Slots beside the one that is served."""
        return len(self._slots) - 1

    def latest(self) -> WeightsId | None:
        """The newest complete version."""
        with self._changed:
            return self._newest.manifest.weights if self._newest and self._newest.manifest else None

    def reserve(self, weights: WeightsId, nbytes: int = 0) -> Reservation | None:
        """A slot to write `weights` into, with at least `nbytes`; None while there is none free (see `wait_free`)."""
        with self._changed:
            slot = self._take(lambda newest: newest.was_read)
            if slot is None:
                return None
            slot.arena.grow(nbytes)
            slot.writer = Reservation(slot, slot.arena, weights)
            return slot.writer

    def complete(self, reservation: Reservation, manifest: Manifest) -> None:
        """The bytes are whole and verified: serve them, unless a newer version is served already."""
        with self._changed:
            slot = reservation.slot
            if slot.writer is not reservation:
                raise ReservationOver(f"the slot of {reservation.weights} was taken back before it was complete: it is not served; put it again")
            slot.writer = None
            self._serve(slot, manifest)

    def adopt(self, manifest: Manifest, arena: Arena, loan: Loan) -> bool:
        """Serve a verified version from another cache's memory, mapped here. False, and nothing has changed: no slot is free, or it is closed."""
        with self._changed:
            slot = None if self._closed else self._take(lambda newest: True)  # a newer one is served at once
            if slot is None:
                return False
            slot.arena, slot.loan = arena, loan
            self._serve(slot, manifest)
            return True

    def loans(self) -> list[tuple[Loan, float]]:
        """Those still needed, and for how many seconds from now their owner must do without the memory: of the newest version and of what is read
        within its deadline, without end (inf). What is only kept: the rest of its time, 0 when that is over: the owner may take other memory then,
        and gets this one back as it was if the version is let go before. A reader past its deadline gives back at once."""
        with self._changed:
            for slot in self._slots:
                if slot.loan:
                    self._expire(slot, but_kept=True)
                    self._return_if_idle(slot)
            return [(slot.loan, self._needed_s(slot)) for slot in self._slots if slot.loan]

    def _needed_s(self, slot: Slot) -> float:
        if slot is self._newest or not all(lease.kept for lease in slot.leases):
            return math.inf
        return max([lease.deadline for lease in slot.leases]) - self._clock()

    def abandon(self, reservation: Reservation, tainted: bool) -> None:
        """Nothing came of it. `tainted`: somebody (a dead trainer's last write, a stuck transfer) may still write there."""
        with self._changed:
            if reservation.slot.writer is reservation:
                reservation.slot.writer = None
                reservation.slot.tainted |= tainted
            self._changed.notify_all()

    def put(self, weights: WeightsId, tensors: Iterable[tuple[str, torch.Tensor | np.ndarray]]) -> Manifest:
        """Copy a version in and serve it; digests stay empty. Raises NoFreeSlot without touching `tensors`."""
        reservation = self.reserve(weights)
        if reservation is None:
            raise NoFreeSlot(f"no slot of {len(self._slots)} is free for {weights}: it stays pending; put it again when a reader lets go")
        try:
            manifest = copy_out(reservation.arena, weights, tensors)
        except BaseException:  # whatever the caller's iterator raised: the slot must not stay reserved
            self.abandon(reservation, tainted=False)
            raise
        self.complete(reservation, manifest)
        return manifest

    def lease(self, holder: str, lease_s: float, weights: WeightsId | None = None) -> Lease | None:
        """Hold a complete version (None: the newest) for at most `lease_s` seconds (>= 0, else ValueError). None when the cache does not have it."""
        if not lease_s >= 0.0:  # also NaN, whose deadline would never come
            raise ValueError(f"lease_s = {lease_s} must be >= 0: the lease would never end and its slot never be free; give seconds")
        with self._changed:
            for slot in [self._newest] if weights is None else self._slots:
                if slot and slot.manifest and (weights is None or slot.manifest.weights == weights):
                    return self._leased(slot, slot.manifest, holder, self._clock() + lease_s)
            return None

    def await_lease(self, holder: str, lease_s: float, at_least: WeightsId, wait_s: float) -> Lease | None:
        """`lease` of the newest version, as soon as there is one that is not older than `at_least`. None: none came within `wait_s` seconds."""
        end = self._clock() + wait_s
        with self._changed:
            while not (self._newest and self._newest.manifest and not self._newest.manifest.weights < at_least):
                left_s = end - self._clock()
                if left_s <= 0 or self._closed:
                    return None
                self._changed.wait(left_s)
            return self._leased(self._newest, self._newest.manifest, holder, self._clock() + lease_s)

    def _leased(self, slot: Slot, manifest: Manifest, holder: str, deadline: float, kept: bool = False) -> Lease:
        lease = Lease(slot, manifest, slot.arena, holder, deadline, self, kept)
        slot.leases.add(lease)
        slot.was_read = True
        return lease

    def keep(self, lease: Lease) -> Lease | None:
        """See `Lease.keep`. Without a deadline while its version is the newest: nobody needs the slot then, unless there is no other."""
        with self._changed:
            if lease not in lease.slot.leases:
                return None
            newest = lease.slot is self._newest and len(self._slots) > 1
            return self._leased(lease.slot, lease.manifest, lease.holder, math.inf if newest else self._clock() + KEPT_S, kept=True)

    def release(self, lease: Lease, tainted: bool = False) -> bool:
        """End a lease. False: it had been revoked; what was read is intact even so. `tainted`: a stuck transfer may still read the memory."""
        with self._changed:
            held = lease in lease.slot.leases
            lease.slot.leases.discard(lease)
            lease.slot.tainted |= tainted and held
            if held:
                self._return_if_idle(lease.slot)
            if self._closed and not lease.slot.leases:
                lease.slot.arena.close()
            self._changed.notify_all()
            return held

    def extend(self, lease: Lease, lease_s: float) -> bool:
        """The lease lasts for `lease_s` seconds from now, also where that is shorter. False once it was released or revoked."""
        with self._changed:
            lease.deadline = self._clock() + lease_s
            self._changed.notify_all()  # who waits for the slot waits until then
            return lease in lease.slot.leases

    def nonces(self) -> tuple[bytes, ...]:
        """Of the memory that may be written again; what is not among it (tainted, given up) only its readers still need."""
        with self._changed:
            return tuple(slot.arena.nonce for slot in self._slots if not slot.tainted)

    def may_adopt(self) -> bool:
        """Whether a slot could be had for `adopt` now."""
        with self._changed:
            return any(self._is_free(slot, lambda newest: True) for slot in self._slots)

    def holds(self, lease: Lease) -> bool:
        """False once a lease was released or revoked."""
        with self._changed:
            return lease in lease.slot.leases

    def next_deadline(self) -> float | None:
        """When (clock of the cache) the first lease may be revoked; None without leases."""
        with self._changed:
            return min(self._deadlines(), default=None)

    def wait_free(self, timeout_s: float) -> bool:
        """Park until a slot can be reserved, at most `timeout_s` seconds; leases past their deadline are revoked on the way."""
        end = self._clock() + timeout_s
        with self._changed:
            while not any(self._is_free(slot, lambda newest: newest.was_read) for slot in self._slots):
                now = self._clock()
                if now >= end:
                    return False
                self._changed.wait(min([end, *self._deadlines()]) - now + 1e-3)
            return True

    def close(self) -> None:
        """Serve nothing any more. Memory that is leased goes with its last lease: what is read (loaded, exported) stays whole."""
        with self._changed:
            self._closed = True
            self._newest = None
            for slot in self._slots:
                slot.manifest = None
                self._return_if_idle(slot)
                if slot.tainted:
                    self._refresh(slot)  # who reads there past its deadline keeps it
                if not slot.leases:
                    slot.arena.close()
            self._changed.notify_all()  # who waits for a version need not

    def _deadlines(self) -> list[float]:
        return [lease.deadline for slot in self._slots for lease in slot.leases]

    def _is_free(self, slot: Slot, replaceable: Callable[[Slot], bool]) -> bool:
        """Free: neither written nor the newest, and no reader before its deadline. Readers past it are revoked, their memory is left to them.
        An only slot holds the newest version: `replaceable` says whether that may go."""
        if slot.writer or (slot is self._newest and (len(self._slots) > 1 or not replaceable(slot))):
            return False
        self._expire(slot)
        return not slot.leases

    def _expire(self, slot: Slot, but_kept: bool = False) -> None:
        now = self._clock()
        expired = {lease for lease in slot.leases if lease.deadline <= now and not (but_kept and lease.kept)}
        if expired:
            slot.leases -= expired
            slot.tainted = True

    def _take(self, replaceable: Callable[[Slot], bool]) -> Slot | None:
        """A free slot, empty, with memory of its own that nobody else touches."""
        slot = next((slot for slot in self._slots if self._is_free(slot, replaceable)), None)
        if slot is None:
            return None
        if slot is self._newest:
            self._newest = None
        slot.manifest, slot.was_read = None, False
        if slot.loan or slot.tainted:
            self._refresh(slot)
        return slot

    def _serve(self, slot: Slot, manifest: Manifest) -> None:
        slot.manifest, before = manifest, self._newest
        if before is None or before.manifest is None or not manifest.weights < before.manifest.weights:
            self._newest = slot
        if before is not None and before is not self._newest:
            for lease in before.leases:  # those that are kept have a deadline from now on
                lease.deadline = self._clock() + KEPT_S if lease.deadline == math.inf else lease.deadline
        if before is not None:
            self._return_if_idle(before)
        self._return_if_idle(slot)
        self._changed.notify_all()

    def _return_if_idle(self, slot: Slot) -> None:
        """A loan nobody needs any more goes back at once: its owner's trainer may be waiting for it."""
        if slot.loan and slot is not self._newest and not slot.leases:
            slot.manifest = None
            self._refresh(slot)

    def _refresh(self, slot: Slot) -> None:
        """Other memory; the old one is not closed: whoever still reads it keeps it alive."""
        if slot.loan:
            slot.loan.give_back(slot.loan, slot.tainted)
        slot.arena, slot.loan, slot.tainted = new_arena(), None, False

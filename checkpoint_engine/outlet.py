"""The publisher's side towards who pulls: leases on the newest version, and its bytes where the memory cannot be opened."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from checkpoint_engine import messages as m
from checkpoint_engine.cache import HostCache
from checkpoint_engine.deadline import clamp_s
from checkpoint_engine.slot import Lease

LEASE_S = 10.0
"""From one sign of progress to the next: a chunk that is asked for, or `Renew` by who mapped the memory."""
MOST_LEASE_S = 30.0
MOST_HELD = 16
"""Leases of one member at once: more than it has slots. The oldest is ended for one more."""

Send = Callable[..., None]  # (identity, record, *frames)


@dataclass
class _Held:
    member: str
    lease: Lease


class Outlet:
    """A lease lives by progress: a reader that hangs or dies unnoticed loses it, however large its version is and however slow its line."""

    def __init__(self, cache: HostCache, send: Send) -> None:
        self._cache, self._send = cache, send
        self._held: dict[int, _Held] = {}
        self._numbers = secrets.randbits(48)  # a receiver that outlived another publisher may still name leases of that one

    def pull(self, identity: bytes, request: m.Pull) -> None:
        while len(held := self._of(request.member)) >= MOST_HELD:
            self._cache.release(self._held.pop(held[0]).lease, tainted=True)
        lease = self._cache.lease(request.member, clamp_s(request.lease_s, MOST_LEASE_S))
        if lease is None:
            self._send(identity, m.Offer(seq=request.seq))
            return
        self._numbers += 1
        self._held[self._numbers] = _Held(request.member, lease)
        offer = m.Offer(seq=request.seq, lease=self._numbers, manifest=lease.manifest, descriptor=lease.arena.descriptor())
        self._send(identity, offer)

    def fetch(self, identity: bytes, request: m.Fetch) -> None:
        held = self._held.get(request.lease)
        if held is None or not self._cache.extend(held.lease, LEASE_S):
            problem = f"lease {request.lease} is over: no bytes are sent; pull again"
            self._send(identity, m.Refused(seq=request.seq, code="unknown_lease", message=problem))
            return
        start, stop = request.offset, request.offset + request.nbytes
        if not 0 <= start <= stop <= held.lease.manifest.total_bytes or request.nbytes > m.MOST_CHUNK_BYTES:
            problem = f"bytes {start}..{stop}: the version has {held.lease.manifest.total_bytes}, a chunk at most {m.MOST_CHUNK_BYTES}; none are sent"
            self._send(identity, m.Refused(seq=request.seq, code="bad_request", message=problem))
            return
        self._send(identity, m.Chunk(seq=request.seq, offset=start), held.lease.arena.array[start:stop].data)

    def renew(self, identity: bytes, request: m.Renew) -> None:
        held = self._held.get(request.lease)
        if held is None or not self._cache.extend(held.lease, clamp_s(request.lease_s, MOST_LEASE_S)):
            self._send(identity, m.Lapsed(lease=request.lease))

    def release(self, request: m.Release) -> None:
        held = self._held.pop(request.lease, None)
        if held is not None:
            self._cache.release(held.lease, request.tainted)

    def member_died(self, member: str) -> None:
        """Dead, or only silent and still reading: what it held is not written over."""
        for number in self._of(member):
            self._cache.release(self._held.pop(number).lease, tainted=True)

    def _of(self, member: str) -> list[int]:
        """Numbers of its leases, oldest first."""
        return [number for number, held in self._held.items() if held.member == member]

    def tick(self) -> None:
        """Let go of leases that were revoked: a member that vanished without a word would keep their memory for ever."""
        for number in [number for number, held in self._held.items() if not self._cache.holds(held.lease)]:
            del self._held[number]

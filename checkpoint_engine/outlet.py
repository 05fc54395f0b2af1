"""The publisher's side towards who pulls: leases on the newest version, and its bytes where the memory cannot be opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from checkpoint_engine import messages as m
from checkpoint_engine.cache import HostCache, Lease
from checkpoint_engine.deadline import clamp_s

MOST_LEASE_S = 30.0
SLOW_BYTES_S = 20e6
"""A lease allows for a reader this slow on top of its base, so that a large model over a thin line is not cut off."""

Send = Callable[..., None]  # (identity, record, *frames)


@dataclass
class _Held:
    member: str
    lease: Lease


class Outlet:
    """At most one lease a member: a new pull ends the one before."""

    def __init__(self, cache: HostCache, send: Send) -> None:
        self._cache, self._send = cache, send
        self._held: dict[int, _Held] = {}
        self._numbers = 0

    def pull(self, identity: bytes, request: m.Pull) -> None:
        self._end(request.member, tainted=False)  # it asks anew, so it has done with the old one
        lease = self._cache.lease(request.member, clamp_s(request.lease_s, MOST_LEASE_S))
        if lease is None:
            self._send(identity, m.Offer(seq=request.seq))
            return
        lease.deadline += lease.manifest.total_bytes / SLOW_BYTES_S
        self._numbers += 1
        self._held[self._numbers] = _Held(request.member, lease)
        offer = m.Offer(seq=request.seq, lease=self._numbers, manifest=lease.manifest, descriptor=lease.arena.descriptor())
        self._send(identity, offer)

    def fetch(self, identity: bytes, request: m.Fetch) -> None:
        held = self._held.get(request.lease)
        if held is None or not self._cache.holds(held.lease):
            problem = f"lease {request.lease} is over: no bytes are sent; pull again"
            self._send(identity, m.Refused(seq=request.seq, code="unknown_lease", message=problem))
            return
        start, stop = request.offset, request.offset + request.nbytes
        if not 0 <= start <= stop <= held.lease.manifest.total_bytes or request.nbytes > m.MOST_CHUNK_BYTES:
            problem = f"bytes {start}..{stop}: the version has {held.lease.manifest.total_bytes}, a chunk at most {m.MOST_CHUNK_BYTES}; none are sent"
            self._send(identity, m.Refused(seq=request.seq, code="bad_request", message=problem))
            return
        self._send(identity, m.Chunk(seq=request.seq, offset=start), held.lease.arena.array[start:stop].data)

    def release(self, request: m.Release) -> None:
        """One way, no answer."""
        held = self._held.pop(request.lease, None)
        if held is not None:
            self._cache.release(held.lease)

    def member_died(self, member: str) -> None:
        """Dead, or only silent and still reading: what it held is not written over."""
        self._end(member, tainted=True)

    def _end(self, member: str, tainted: bool) -> None:
        for number in [number for number, held in self._held.items() if held.member == member]:
            self._cache.release(self._held.pop(number).lease, tainted)

    def tick(self) -> None:
        """Let go of leases that were revoked: a member that vanished without a word would keep their memory for ever."""
        for number in [number for number, held in self._held.items() if not self._cache.holds(held.lease)]:
            del self._held[number]

"""Fetching the newest version from the publisher on one's own initiative.

On the publisher's host its memory is mapped, verified and served from there, under a lease that is renewed as long as it is needed; elsewhere the
bytes come in chunks, a few in flight, into the local cache. Each tensor is hashed as it lands.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol

import numpy as np

from checkpoint_engine import messages as m
from checkpoint_engine.cache import HostCache
from checkpoint_engine.digest import Verifier
from checkpoint_engine.loan import Loan
from checkpoint_engine.manifest import Manifest, check_manifest
from checkpoint_engine.weights_id import WeightsId
from shared_arena import Arena, ArenaUnreachable, Descriptor

_IN_FLIGHT = 4  # chunks asked for and not yet there
_ANSWER_S = 5.0
LEASE_S = 10.0
RENEW_S = 1.0

Path = Literal["shared", "bytes"]
GiveBack = Callable[[Loan, bool], None]


class PullFailed(RuntimeError):
    """The version did not arrive whole; the old one keeps serving and the pull is repeated."""


class Line(Protocol):
    """What a pull needs of the receiver's socket. `answer` parks for the reply to `seq`; it raises PullFailed when it is late, refused or cut off."""

    def ask(self, question: m.ToPublisher) -> int: ...

    def answer(self, seq: int, end: float) -> tuple[m.AnyFromPublisher, memoryview]: ...


def pull_newest(
    line: Line, member: str, cache: HostCache, is_news: Callable[[WeightsId], bool], give_back: GiveBack
) -> tuple[WeightsId, Path] | Literal["nothing", "no_slot"]:
    """One attempt. Returns what arrived and how; "nothing" when what the publisher has is no news, "no_slot" while the local cache is held.

    A version that came "shared" lies in the publisher's memory: its lease must be renewed until `give_back` is called for it, then released.
    Raises PullFailed, DigestMismatch; the local cache is then as before.
    """
    answer, _ = line.answer(line.ask(m.Pull(member=member, lease_s=LEASE_S)), time.monotonic() + _ANSWER_S)
    if not isinstance(answer, m.Offer):
        raise PullFailed(f"asked for a version, got {type(answer).__name__}")
    if answer.manifest is None:
        return "nothing"
    kept = False
    try:
        if not is_news(answer.manifest.weights):
            return "nothing"
        check_manifest(answer.manifest)
        if not cache.may_adopt():
            return "no_slot"
        source = _mapped(answer.descriptor)
        if source is None:
            return _by_bytes(line, answer, answer.manifest, cache)
        _verify(line, answer, answer.manifest, source)
        kept = cache.adopt(answer.manifest, source, Loan(answer.lease, give_back))
        return (answer.manifest.weights, "shared") if kept else "no_slot"
    finally:
        if not kept:
            line.ask(m.Release(lease=answer.lease))


def _mapped(descriptor: Descriptor | None) -> Arena | None:
    """The publisher's memory, read-only; None where it cannot be opened (another PID namespace or host)."""
    try:
        return None if descriptor is None else Arena.attach(descriptor)
    except ArenaUnreachable:
        return None


def _verify(line: Line, offer: m.Offer, manifest: Manifest, source: Arena) -> None:
    if source.nbytes < manifest.total_bytes:
        raise PullFailed(f"{manifest.weights} takes {manifest.total_bytes} bytes, the publisher's memory has {source.nbytes}")
    verifier = Verifier(manifest, source.array)
    renew_at = time.monotonic() + RENEW_S
    for meta in manifest.tensors:
        source.populate(meta.offset, meta.nbytes)
        verifier.arrived(meta.offset + meta.nbytes)
        if time.monotonic() >= renew_at:
            renew_at = time.monotonic() + RENEW_S
            line.ask(m.Renew(lease=offer.lease, lease_s=LEASE_S))
    verifier.finish()


def _by_bytes(line: Line, offer: m.Offer, manifest: Manifest, cache: HostCache) -> tuple[WeightsId, Path] | Literal["no_slot"]:
    reservation = cache.reserve(manifest.weights, manifest.total_bytes)
    if reservation is None:
        return "no_slot"
    verifier = Verifier(manifest, reservation.arena.array)
    try:
        _copy_bytes(line, offer.lease, manifest.total_bytes, reservation.arena.array, verifier.arrived)
        verifier.finish()
    except BaseException:  # whatever cut the transfer off: the slot must not stay reserved
        cache.abandon(reservation, tainted=False)
        raise
    cache.complete(reservation, manifest)
    return manifest.weights, "bytes"


def _copy_bytes(line: Line, lease: int, total: int, target: np.ndarray, arrived: Callable[[int], None]) -> None:
    asked: deque[tuple[int, int]] = deque()  # (seq, offset)
    offset = 0
    while offset < total or asked:
        while offset < total and len(asked) < _IN_FLIGHT:
            size = min(m.MOST_CHUNK_BYTES, total - offset)
            asked.append((line.ask(m.Fetch(lease=lease, offset=offset, nbytes=size)), offset))
            offset += size
        seq, at = asked.popleft()
        answer, data = line.answer(seq, time.monotonic() + _ANSWER_S)
        if not isinstance(answer, m.Chunk) or answer.offset != at or at + len(data) > total:
            raise PullFailed(f"asked for bytes at {at}, got {type(answer).__name__}")
        target[at : at + len(data)] = data
        arrived(at + len(data))

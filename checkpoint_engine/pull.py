"""Fetching the newest version from the publisher on one's own initiative, straight into the local cache.

On the publisher's host its memory is opened and copied; elsewhere the bytes come in chunks, a few in flight. Each tensor is hashed as it lands.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol

import numpy as np

from checkpoint_engine import messages as m
from checkpoint_engine.cache import HostCache, Reservation
from checkpoint_engine.digest import Verifier
from checkpoint_engine.manifest import Manifest, check_manifest
from checkpoint_engine.weights_id import WeightsId
from shared_arena import Arena, ArenaUnreachable

_IN_FLIGHT = 4  # chunks asked for and not yet there
_ANSWER_S = 5.0
_LEASE_S = 10.0

Path = Literal["shared", "bytes"]


class PullFailed(RuntimeError):
    """The version did not arrive whole; the old one keeps serving and the pull is repeated."""


class Line(Protocol):
    """What a pull needs of the receiver's socket. `answer` parks for the reply to `seq`; it raises PullFailed when it is late, refused or cut off."""

    def ask(self, question: m.ToPublisher) -> int: ...

    def answer(self, seq: int, end: float) -> tuple[m.AnyFromPublisher, memoryview]: ...


def pull_newest(line: Line, member: str, cache: HostCache, have: WeightsId | None) -> tuple[WeightsId, Path] | Literal["nothing", "no_slot"]:
    """One attempt. Returns what arrived and how; "nothing" when the publisher has nothing newer, "no_slot" while the local cache is held.

    Raises PullFailed, DigestMismatch; the local cache is then as before.
    """
    answer, _ = line.answer(line.ask(m.Pull(member=member, lease_s=_LEASE_S)), time.monotonic() + _ANSWER_S)
    if not isinstance(answer, m.Offer):
        raise PullFailed(f"asked for a version, got {type(answer).__name__}")
    manifest = answer.manifest
    if manifest is None:
        return "nothing"
    try:
        if have is not None and not have < manifest.weights:
            return "nothing"
        check_manifest(manifest)
        reservation = cache.reserve(manifest.weights, manifest.total_bytes)
        if reservation is None:
            return "no_slot"
        return _into(line, answer, manifest, reservation, cache)
    finally:
        line.ask(m.Release(lease=answer.lease))


def _into(line: Line, offer: m.Offer, manifest: Manifest, reservation: Reservation, cache: HostCache) -> tuple[WeightsId, Path]:
    target = reservation.arena.array
    verifier = Verifier(manifest, target)
    try:
        path = _copy(line, offer, manifest, target, verifier.arrived)
        verifier.finish()
    except BaseException:  # whatever cut the transfer off: the slot must not stay reserved
        cache.abandon(reservation, tainted=False)
        raise
    cache.complete(reservation, manifest)
    return manifest.weights, path


def _copy(line: Line, offer: m.Offer, manifest: Manifest, target: np.ndarray, arrived: Callable[[int], None]) -> Path:
    if offer.descriptor is not None:
        try:
            source = Arena.attach(offer.descriptor)
        except ArenaUnreachable:  # another PID namespace or host
            pass
        else:
            _copy_shared(source, manifest, target, arrived)
            return "shared"
    _copy_bytes(line, offer.lease, manifest.total_bytes, target, arrived)
    return "bytes"


def _copy_shared(source: Arena, manifest: Manifest, target: np.ndarray, arrived: Callable[[int], None]) -> None:
    try:
        if source.nbytes < manifest.total_bytes:
            raise PullFailed(f"{manifest.weights} takes {manifest.total_bytes} bytes, the publisher's memory has {source.nbytes}")
        for meta in manifest.tensors:
            end = meta.offset + meta.nbytes
            target[meta.offset : end] = source.array[meta.offset : end]
            arrived(end)
    finally:
        source.close()


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

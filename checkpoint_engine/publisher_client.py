"""The trainer's hand-over to its publisher: a slot is asked for, filled, committed; then the trainer trains on.

The slot is the publisher's memory, opened by descriptor on the same host; where that is impossible (another PID namespace), bytes travel instead.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import zmq
from zmq.utils.monitor import recv_monitor_message

from checkpoint_engine import messages as m
from checkpoint_engine.copy_out import copy_out
from checkpoint_engine.manifest import Manifest
from checkpoint_engine.pinning import Pins, runtime_in_use
from checkpoint_engine.weights_id import WeightsId
from checkpoint_engine.wire import Reply, Secure, close_watched, connect_dealer, decode_from_publisher, encode, watched
from shared_arena import Arena, ArenaUnreachable, Mappings

if TYPE_CHECKING:
    import numpy as np
    import torch

Tensors: TypeAlias = "Iterable[tuple[str, torch.Tensor | np.ndarray]] | Callable[[], Iterable[tuple[str, torch.Tensor | np.ndarray]]]"


MOST_SLOTS = 64  # that stay mapped; the publisher says which of them are in use


class PublisherGone(TimeoutError):
    """The publisher did not answer within the deadline."""


FOR_NOW = ("no_memory", "unknown_ticket")
"""Refusals that say nothing of the version: no memory now, or its slot was taken back (the copy took too long, a death notice was wrong)."""


class PublishRefused(RuntimeError):
    """The publisher does not take this version; the message says why. `for_now`: it may take it later."""

    def __init__(self, message: str, for_now: bool = False) -> None:
        super().__init__(message)
        self.for_now = for_now


class PublisherClient:
    """Not thread-safe. `member`: the trainer's name, the one a death notice would carry. `reply_s`: how long an answer may take."""

    def __init__(self, endpoint: str, secure: Secure | None = None, member: str = "trainer", reply_s: float = 30.0) -> None:
        self._socket = connect_dealer(endpoint, secure)
        self._monitor = watched(self._socket)
        self._closing = weakref.finalize(self, close_watched, self._socket, self._monitor)
        self._closing.atexit = False
        self._heard = False  # the connection stood once
        self._member, self._reply_s = member, reply_s
        self._seq = 0
        self._nbytes = 0  # of the last version: what the next slot is asked to hold
        self._pending: tuple[WeightsId, Tensors] | None = None
        self._mappings = Mappings(MOST_SLOTS)
        self._pins = Pins()
        self._spare = Arena(user="weights")  # bytes path only: where a version is laid out before it is sent
        self.deferred = 0  # versions that found no slot when they were published
        self.coalesced = 0  # of those, the ones that a newer one replaced before a slot was free
        self.refused = 0  # attempts that the publisher refused for now; the version stayed pending
        self.refusal = ""  # why, the last time
        self.copy_s = 0.0  # the last version's copy, of which the trainer's memory was read
        self.blocked_s = 0.0  # all the time that the last call of `publish` or `flush` took
        self.path = ""  # of the last copy: "shared" or "bytes"
        self.pinned = False  # the slot of the last copy is page-locked for the device of this process: from its next use on

    @property
    def pending(self) -> WeightsId | None:
        """The version that still has to be copied out."""
        return self._pending[0] if self._pending else None

    def publish(self, weights: WeightsId, tensors: Tensors, wait_s: float = 0.0) -> WeightsId:
        """Copy a version out if there is a slot within `wait_s` seconds; else it stays `pending`, and `flush` copies it.

        `tensors` (or what it returns) yields (Hugging Face name, tensor) and is walked only once a slot is there, so a pending version must be
        flushed before the next optimizer step changes the parameters; a newer `publish` replaces it (counted in `coalesced`). A version that is
        refused for now stays pending too (counted in `refused`), unless it was walked and cannot be again: give a callable. Returns `weights`,
        without a digest: `wait_published` tells it. Raises PublishRefused where it will never be taken, and PublisherGone.
        """
        if self._pending is not None:
            self.coalesced += 1
        self._pending = (weights, tensors)
        self.deferred += not self.flush(wait_s)
        return weights

    def flush(self, wait_s: float = 0.0) -> bool:
        """Copy the pending version out, parking for at most `wait_s` for a slot. True when nothing is pending any more."""
        if self._pending is None:
            return True
        began = time.perf_counter()
        try:
            return self._copy_pending(*self._pending, wait_s)
        finally:
            self.blocked_s = time.perf_counter() - began

    def _copy_pending(self, weights: WeightsId, tensors: Tensors, wait_s: float) -> bool:
        question = m.Reserve(seq=self._next(), member=self._member, weights=weights, nbytes=self._nbytes, wait_s=wait_s)
        again = True  # what is walked once cannot be walked another time, unless it is made anew
        try:
            answer = self._ask(question, m.FromPublisher, wait_s)
            if isinstance(answer, m.NoSlot):
                return False
            if not isinstance(answer, m.Slot):
                raise PublishRefused(f"a slot was asked for and {type(answer).__name__} came")
            again = callable(tensors)
            self._fill(answer, weights, tensors)
        except PublishRefused as error:
            if not (error.for_now and again):
                self._pending = None
                raise
            self._pending = weights, tensors
            self.refused += 1
            self.refusal = str(error)
            return False
        return True

    def wait_published(self, weights: WeightsId, timeout_s: float) -> WeightsId:
        """Park until `weights` or a newer version is published; returns its identity with digest. Copies a pending version out on the way.

        Raises PublisherGone after `timeout_s` seconds.
        """
        end = time.monotonic() + timeout_s
        while not self.flush(max(end - time.monotonic(), 0.0)) and time.monotonic() < end:
            pass  # refused for now, after a walk: each attempt takes its time
        wait_s = max(end - time.monotonic(), 0.0)
        answer = self._ask(m.AwaitPublished(seq=self._next(), weights=weights, wait_s=wait_s), m.Published, wait_s)
        if answer.weights is None or answer.weights < weights:
            refused = f"; last refused: {self.refusal}" if self.refusal and self.pending else ""
            raise PublisherGone(f"{weights} was not published within {timeout_s} s (newest: {answer.weights}, pending: {self.pending}{refused})")
        return answer.weights

    def close(self) -> None:
        self._closing()
        self._pins.close()
        self._spare.close()
        self._mappings.close()

    def _fill(self, slot: m.Slot, weights: WeightsId, tensors: Tensors) -> None:
        began = time.perf_counter()
        try:
            arena, self.path = self._mappings.attach(slot.descriptor), "shared"
        except ArenaUnreachable:
            arena, self.path = self._spare, "bytes"
        self._pins.keep_only((*slot.slots, self._spare.nonce))
        self._mappings.keep_only(slot.slots)
        try:
            walked = tensors() if callable(tensors) else tensors  # if this raises, nothing was walked, and the version is still pending
            self._pending = None
            manifest = copy_out(arena, weights, walked)
            self.copy_s = time.perf_counter() - began
            if arena is self._spare:
                self._send_bytes(slot.ticket, manifest)
            self._nbytes = manifest.total_bytes
            self._ask(m.Commit(seq=self._next(), ticket=slot.ticket, manifest=manifest), m.Ok)
        except BaseException:  # whatever it was is the caller's: here only the slot must be given back
            with contextlib.suppress(PublishRefused, PublisherGone):  # nobody holds it any more
                self._ask(m.Discard(seq=self._next(), ticket=slot.ticket), m.Ok)
            raise
        self.pinned = self._pins.hold(arena, runtime_in_use())  # last: the version is on its way meanwhile

    def _send_bytes(self, ticket: int, manifest: Manifest) -> None:
        for offset in range(0, manifest.total_bytes, m.MOST_CHUNK_BYTES):
            chunk = self._spare.array[offset : min(offset + m.MOST_CHUNK_BYTES, manifest.total_bytes)]
            self._ask(m.Write(seq=self._next(), ticket=ticket, offset=offset), m.Ok, 0.0, chunk.data)

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _ask(self, question: m.ToPublisher, expected: type[Reply], wait_s: float = 0.0, *frames: Any) -> Reply:
        """Send and park for the answer of the same `seq`; older answers are dropped. A connection that ends ends the wait: an answer that was due
        on it never comes."""
        try:
            self._socket.send_multipart([encode(question), *frames], zmq.NOBLOCK)
        except zmq.Again:
            why = "it hangs, cannot be reached, or refused our keys for good"
            raise PublisherGone(f"the publisher did not answer: {type(question).__name__} could not even be sent to it; {why}") from None
        end = time.monotonic() + wait_s + self._reply_s
        while (left := end - time.monotonic()) > 0:
            ready = zmq.zmq_poll([(self._socket, zmq.POLLIN), (self._monitor, zmq.POLLIN)], int(left * 1e3) + 1)
            if (self._socket, zmq.POLLIN) not in ready:
                if ready:
                    recv_monitor_message(self._monitor)
                    if not self._heard:
                        continue  # it is not up yet, or refuses our keys: the deadline tells
                    raise PublisherGone(f"the publisher closed the connection while {type(question).__name__} waited: it ended or was killed")
                break
            answer = decode_from_publisher(self._socket.recv_multipart()[0])
            self._heard = True
            if answer.seq != question.seq:
                continue
            if isinstance(answer, m.Refused):
                raise PublishRefused(f"{type(question).__name__} was refused ({answer.code}): {answer.message}", answer.code in FOR_NOW)
            if isinstance(answer, expected):
                return answer
        raise PublisherGone(f"the publisher did not answer {type(question).__name__} within {wait_s + self._reply_s} s: is its process alive?")

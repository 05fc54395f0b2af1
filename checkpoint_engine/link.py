"""A receiver's connection to its publisher: questions with numbers, answers to them, and announcements in between, kept in order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator

import msgspec
import zmq

from checkpoint_engine import messages as m
from checkpoint_engine.pull import PullFailed
from checkpoint_engine.wire import Secure, connect_dealer, decode_from_publisher, encode

_SLICE_MS = 100  # how late `cut` may be noticed


class Link:
    """Used by one thread. `cut()` True ends every wait."""

    def __init__(self, endpoint: str, secure: Secure | None, cut: Callable[[], bool]) -> None:
        self.socket = connect_dealer(endpoint, secure)
        self._cut = cut
        self._seq = 0
        self._later: deque[m.AnyFromPublisher] = deque()  # announcements that came while an answer was awaited

    @property
    def waiting(self) -> bool:
        """Announcements were set aside and want to be handled before the socket is waited for."""
        return bool(self._later)

    def ask(self, question: m.ToPublisher) -> int:
        """Send; returns the number its answer will carry. A full pipe drops the question: its deadline repeats it."""
        self._seq += 1
        question.seq = self._seq
        try:
            self.socket.send(encode(question), zmq.NOBLOCK)
        except zmq.Again:
            return self._seq
        return self._seq

    def answer(self, seq: int, end: float, over: Callable[[], bool] = lambda: False) -> tuple[m.AnyFromPublisher, memoryview]:
        """Park for the answer to `seq` until `end` (monotonic). Raises PullFailed when it is late or refused, the link is cut, or `over` says so."""
        while not self._cut() and not over():
            left = end - time.monotonic()
            if left <= 0:
                raise PullFailed("the publisher did not answer in time")
            if not self.socket.poll(min(int(left * 1e3) + 1, _SLICE_MS)):
                continue
            received = self._receive()
            if received is None:
                continue
            record, data = received
            if record.seq == 0 or isinstance(record, m.Available):
                self._later.append(record)
            elif record.seq == seq:
                if isinstance(record, m.Refused):
                    raise PullFailed(f"the publisher refused ({record.code}): {record.message}")
                return record, data
        raise PullFailed("the wait was ended: closing, or what was awaited is over")

    def announcements(self) -> Iterator[m.AnyFromPublisher]:
        """What came without being awaited, oldest first, without waiting. Late answers to given-up questions are dropped."""
        while True:
            if self._later:
                yield self._later.popleft()
            elif not self._fetch():
                return

    def peek(self, of_interest: Callable[[m.AnyFromPublisher], bool]) -> bool:
        """True when an announcement that matters is there (or the link is cut); all stay to be handled later."""
        while self._fetch():
            pass
        return self._cut() or self.heard(of_interest)

    def heard(self, of_interest: Callable[[m.AnyFromPublisher], bool]) -> bool:
        """Like `peek`, among what was set aside already: for use while an answer is awaited, which `peek` would drop."""
        return any(of_interest(record) for record in self._later)

    def close(self) -> None:
        self.socket.close(linger=200)  # a Leave may still go out

    def _fetch(self) -> bool:
        received = self._receive()
        if received is None:
            return False
        record, _ = received
        if record.seq == 0 or isinstance(record, m.Available):
            self._later.append(record)
        return True

    def _receive(self) -> tuple[m.AnyFromPublisher, memoryview] | None:
        try:
            frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        try:
            record = decode_from_publisher(frames[0].buffer)
        except msgspec.DecodeError as error:
            record = m.Refused(code="malformed", message=f"the publisher sent what is no record: {error}")
        return record, frames[1].buffer if len(frames) > 1 else memoryview(b"")

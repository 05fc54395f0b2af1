"""What a worker has made, on its way into the queue in a thread of its own: its loop goes on, and hears of an error by the next call here."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from asyncflow.workers.context import WorkerContext

T = TypeVar("T")

PUT_S = 30.0  # deadline of one transfer, and of every wait for one


class Outbox(ABC, Generic[T]):
    """Bounded: at most `bound` things wait here, then `add` blocks. They leave in the order in which they came, at most `together` at once."""

    def __init__(self, context: WorkerContext, name: str, bound: int, together: int) -> None:
        """`name`: of the thread."""
        self._client, self._topic = context.client.attach(), context.topic.name
        self._wake, self._clock = context.wake, context.clock
        self._name, self._bound, self._together = name, bound, together
        self._waiting: deque[T] = deque()
        self._changed = threading.Condition()
        self._sending = self._closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @abstractmethod
    def _send(self, things: list[T]) -> None:
        """In the thread."""

    def add(self, things: Iterable[T]) -> None:
        with self._changed:
            self._wait(lambda: len(self._waiting) < self._bound)
            self._waiting.extend(things)
            self._changed.notify_all()

    def drain(self) -> None:
        """Return when everything given so far is in the queue."""
        with self._changed:
            self._wait(lambda: not (self._waiting or self._sending))

    def check(self) -> None:
        """Raises what ended the thread."""
        with self._changed:
            self._raise()

    def close(self) -> None:
        """Returns when everything is written, or cannot be."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout=PUT_S)
        self._client.close()

    def _wait(self, condition: Callable[[], bool]) -> None:
        if not self._changed.wait_for(lambda: condition() or self._error is not None, timeout=PUT_S):
            late = f"{self._name}: {len(self._waiting)} waiting, nothing written for {PUT_S:g} s"
            raise TimeoutError(f"topic {self._topic!r}: {late}, so this worker ends. Is a shard or the controller stuck? See their logs")
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while things := self._next():
                with self._clock.during("busy", "put", "writer"):
                    self._send(things)
                with self._changed:
                    self._sending = False
                    self._changed.notify_all()
        except Exception as error:  # carried to the worker's loop, which raises it under its own name
            with self._changed:
                self._error = error
                self._changed.notify_all()
            self._wake.set()

    def _next(self) -> list[T]:
        """Empty: closed, and everything has left."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._closing)  # ends with `close`, which every exit path calls
            things = [self._waiting.popleft() for _ in range(min(self._together, len(self._waiting)))]
            self._sending = bool(things)
            self._changed.notify_all()
        return things

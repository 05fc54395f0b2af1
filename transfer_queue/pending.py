"""A reply that is on its way."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Generic, Protocol, TypeVar

import msgspec

T = TypeVar("T")


class Pump(Protocol):
    """What a pending reply needs of its client."""

    def wait(self, pending: Pending[T], timeout_s: float) -> None: ...

    def cancel(self, pending: Pending[T]) -> None: ...


class Pending(Generic[T]):
    """Exactly one reply, or one error, comes to every request; until then this stands for it. Not thread-safe, as its client is not."""

    def __init__(self, pump: Pump, id: int, what: str, peer: object, request: msgspec.Struct | None = None) -> None:
        self._pump = pump
        self.id = id
        self.what = what  # name of the request, for messages
        self.peer = peer  # str() says which server, and whether it was ever reached
        self.request = request  # where it is sent again after a lost connection
        self.cancelled = False  # its reply is wanted now, which is said once more when a lost connection comes back
        self.silent = False  # nobody waits for it: `poll` does not tell of it
        self.late: Callable[[T], None] | None = None  # takes the reply of a call that was given up, so that what it grants is given back
        self._reply: T | None = None
        self._error: Exception | None = None

    def done(self) -> bool:
        """True when `result` returns (or raises) at once. Does not look at the socket: `QueueClient.poll` does."""
        return self._reply is not None or self._error is not None

    def result(self, timeout_s: float) -> T:
        """The reply. Raises QueueError (refused), QueueGone (peer ended), QueueTimeout (nothing yet: may be called again)."""
        if not self.done():
            self._pump.wait(self, timeout_s)
        if self._error is not None:
            raise copy(self._error)  # one that was raised keeps the frames it went through, and they keep us
        assert self._reply is not None  # wait returns only when done
        return self._reply

    def cancel(self) -> None:
        """Ask for the reply now, with what there is. It still comes through `result`: a grant that was under way is not lost."""
        if not self.done():
            self.cancelled = True
            self._pump.cancel(self)

    def settle(self, reply: T | None, error: Exception | None = None) -> None:
        """For the connection: the reply or the error came."""
        self._reply, self._error = reply, error
        if self.late is not None and reply is not None:
            self.late(reply)

"""What the controller was asked, what it refused, and what that took. Kinds and codes are words of ours: neither table grows with what comes."""

from __future__ import annotations

from collections.abc import Callable

from transfer_queue.messages import Request, TrafficStatus


class Traffic:
    """On the way of every request: plain dicts, one look-up each."""

    def __init__(self) -> None:
        self._requests: dict[type[Request], int] = {}
        self._refused: dict[str, int] = {}
        self.cpu_s: Callable[[], float] | None = None  # processor time of the thread that serves; the state machine knows no clock of its own

    def asked(self, request: Request) -> None:
        kind = type(request)
        self._requests[kind] = self._requests.get(kind, 0) + 1

    def refused(self, code: str) -> None:
        self._refused[code] = self._refused.get(code, 0) + 1

    def status(self) -> TrafficStatus:
        requests = {kind.__name__: count for kind, count in self._requests.items()}
        return TrafficStatus(requests, dict(self._refused), None if self.cpu_s is None else self.cpu_s())

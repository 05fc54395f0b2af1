"""The board of notes as torch's groups see it: a file of its own, because its base class is torch's and who only pulls needs no torch.

Device backends use it from threads of their own: the one that connects, which may be left behind, and watchdogs, which write of failures and, with
TORCH_DISTRIBUTED_DEBUG=DETAIL, of every operation. So it is over once the group stands or was given up: nothing leads to the board any more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from checkpoint_engine.collective import Abandoned


class BoardStore(dist.Store):
    """What torch's groups take for a store. `post(key, value)` and `fetch(key, timeout_s)` lead to the board; only one of them runs at a time, and a
    fetch ends soon after `over` is true."""

    def __init__(self, post: Callable[[str, bytes], None], fetch: Callable[[str, float], bytes], timeout_s: float) -> None:
        super().__init__()
        self._post, self._fetch, self._timeout_s = post, fetch, timeout_s
        self._used = threading.Lock()
        self.over = False

    def end(self) -> None:
        """From the return on, neither `post` nor `fetch` runs, on any thread. Idempotent."""
        self.over = True
        with self._used:
            pass  # whoever was in there has left

    def set(self, key: str, value: bytes | str) -> None:
        """Afterwards nobody looks for it: dropped."""
        with self._used:
            if not self.over:
                self._post(key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        return self._found(key, self._timeout_s)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        end = time.monotonic() + (self._timeout_s if timeout is None else timeout.total_seconds())
        for key in keys:
            self._found(key, end - time.monotonic())

    def _found(self, key: str, timeout_s: float) -> bytes:
        with self._used:
            if self.over:
                raise Abandoned(f"{key!r} is looked for after the group was formed or given up")
            return self._fetch(key, timeout_s)

    def check(self, keys: list[str]) -> bool:
        """Asked by watchdogs of device backends, from their own threads: no note they look for is ever written here."""
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()

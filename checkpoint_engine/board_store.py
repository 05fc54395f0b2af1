"""The board of notes as torch's groups see it: a file of its own, because its base class is torch's and who only pulls needs no torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist


class BoardStore(dist.Store):
    """What torch's groups take for a store. `post(key, value)` and `fetch(key, timeout_s)` lead to the board."""

    def __init__(self, post: Callable[[str, bytes], None], fetch: Callable[[str, float], bytes], timeout_s: float) -> None:
        super().__init__()
        self._post, self._fetch, self._timeout_s = post, fetch, timeout_s

    def set(self, key: str, value: bytes | str) -> None:
        self._post(key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        return self._fetch(key, self._timeout_s)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        end = time.monotonic() + (self._timeout_s if timeout is None else timeout.total_seconds())
        for key in keys:
            self._fetch(key, end - time.monotonic())

    def check(self, keys: list[str]) -> bool:
        """Asked by watchdogs of device backends, from their own threads: no note they look for is ever written here."""
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()

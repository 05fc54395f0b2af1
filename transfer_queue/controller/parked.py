"""Requests that cannot be met yet. Each has a deadline; each is answered exactly once, or forgotten with its connection."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from transfer_queue.controller.errors import bad
from transfer_queue.controller.runtime import Key
from transfer_queue.controller.timers import Timer, Timers

MAX_WAIT_S = 600.0
MAX_PARKED = 1000  # a member
K = TypeVar("K")
Address = tuple[bytes, int]  # connection, request id


@dataclass(slots=True, eq=False)
class Waiter:
    address: Address
    request: Any  # a request with `wait_s`
    owner: str  # "name#incarnation"
    key: Key
    timer: Timer
    since: float  # seconds of the controller's clock


def clamp_wait(wait_s: float) -> float:
    """Every wait has a deadline: at most ten minutes; what is no time at all is not waited for."""
    return 0.0 if math.isnan(wait_s) else min(max(wait_s, 0.0), MAX_WAIT_S)


class Parked:
    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._by_address: dict[Address, Waiter] = {}
        self._by_key: dict[Key, dict[Address, Waiter]] = {}
        self._by_owner: dict[str, dict[Address, Waiter]] = {}
        self._by_connection: dict[bytes, dict[Address, Waiter]] = {}
        self.orphans: list[Waiter] = []  # of members that ended, to be answered; drained by the core

    def __contains__(self, address: Address) -> bool:
        return address in self._by_address

    def add(
        self, address: Address, request: Any, owner: str, key: Key, now: float, wait_s: float, expired: Callable[[Waiter], None]
    ) -> None:
        """`expired` is called after `wait_s` unless the waiter was removed before. Raises RequestError for one too many."""
        if len(self._by_owner.get(owner, ())) >= MAX_PARKED:
            raise bad(
                f"{owner} has {MAX_PARKED} parked requests, the most a member may have: this one was not parked; wait for replies before asking more"
            )

        def check() -> None:
            expired(waiter)

        waiter = Waiter(address, request, owner, key, self._timers.at(now + wait_s, check), now)
        self._by_address[address] = waiter
        self._by_key.setdefault(key, {})[address] = waiter
        self._by_owner.setdefault(owner, {})[address] = waiter
        self._by_connection.setdefault(address[0], {})[address] = waiter

    def find(self, address: Address) -> Waiter | None:
        return self._by_address.get(address)

    def of(self, key: Key) -> list[Waiter]:
        """In the order in which they came."""
        return list(self._by_key.get(key, {}).values())

    def of_owner(self, owner: str) -> list[Waiter]:
        return list(self._by_owner.get(owner, {}).values())

    def all(self) -> list[Waiter]:
        return list(self._by_address.values())

    def remove(self, waiter: Waiter) -> None:
        self._timers.cancel(waiter.timer)
        del self._by_address[waiter.address]
        _discard(self._by_key, waiter.key, waiter.address)
        _discard(self._by_owner, waiter.owner, waiter.address)
        _discard(self._by_connection, waiter.address[0], waiter.address)

    def disown(self, owner: str) -> None:
        """A dead member's requests compete with nobody. They are left in `orphans`: it may be alive and wait for their replies."""
        for waiter in list(self._by_owner.get(owner, {}).values()):
            self.remove(waiter)
            self.orphans.append(waiter)

    def forget_connection(self, connection: bytes) -> list[Waiter]:
        """Nobody is there to be answered. Returns what was parked."""
        forgotten = list(self._by_connection.get(connection, {}).values())
        for waiter in forgotten:
            self.remove(waiter)
        return forgotten


def _discard(index: dict[K, dict[Address, Waiter]], key: K, address: Address) -> None:
    del index[key][address]
    if not index[key]:
        del index[key]

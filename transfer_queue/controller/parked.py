"""Requests that cannot be met yet. Each has a deadline; each is answered exactly once, or forgotten with its connection."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from transfer_queue.controller.errors import bad
from transfer_queue.controller.runtime import Key
from transfer_queue.controller.timers import Due, Timer, Timers
from transfer_queue.messages import AnyRequest, Record

MAX_WAIT_S = 600.0
MAX_PARKED = 1000  # a member
K = TypeVar("K")
Address = tuple[bytes, int]  # connection, request id
Expired = Callable[["Waiter"], None]


class FrozenWaiter(Record, frozen=True):
    """What a snapshot keeps."""

    address: Address
    request: AnyRequest
    owner: str
    key: Key
    since: float
    due: Due


@dataclass(slots=True, eq=False)
class Waiter:
    address: Address
    request: Any  # a request with `wait_s`
    owner: str  # "name#incarnation"
    key: Key
    since: float  # seconds of the controller's clock
    number: int  # counts up: the order in which they came
    timer: Timer = field(init=False)  # asks at its deadline


def clamp_wait(wait_s: float) -> float:
    """Every wait has a deadline: at most ten minutes; what is no time at all is not waited for."""
    return 0.0 if math.isnan(wait_s) else min(max(wait_s, 0.0), MAX_WAIT_S)


class Parked:
    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._numbers = itertools.count()
        self._all: dict[int, Waiter] = {}  # by number
        self._by_address: dict[Address, Waiter] = {}
        self._by_key: dict[Key, dict[int, Waiter]] = {}
        self._by_owner: dict[str, dict[int, Waiter]] = {}
        self._by_connection: dict[bytes, dict[int, Waiter]] = {}
        self.orphans: list[Waiter] = []  # of members that ended, to be answered; drained by the core

    def __contains__(self, address: Address) -> bool:
        return address in self._by_address

    def add(self, address: Address, request: Any, owner: str, key: Key, now: float, wait_s: float, expired: Expired) -> None:
        """`expired` is called after `wait_s` unless the waiter was removed before. Raises RequestError for one too many."""
        if len(self._by_owner.get(owner, ())) >= MAX_PARKED:
            raise bad(
                f"{owner} has {MAX_PARKED} parked requests, the most a member may have: this one was not parked; wait for replies before asking more"
            )
        waiter = Waiter(address, request, owner, key, now, next(self._numbers))
        waiter.timer = self._timers.at(now + wait_s, partial(expired, waiter))
        self._keep(waiter)

    def _keep(self, waiter: Waiter) -> None:
        number = waiter.number
        self._all[number] = self._by_address[waiter.address] = waiter
        self._by_key.setdefault(waiter.key, {})[number] = waiter
        self._by_owner.setdefault(waiter.owner, {})[number] = waiter
        self._by_connection.setdefault(waiter.address[0], {})[number] = waiter

    def move(self, waiter: Waiter, connection: bytes) -> None:
        """Its member waits for the reply on another connection now; its turn stays what it is."""
        self._unplace(waiter)
        waiter.address = connection, waiter.address[1]
        self._by_address[waiter.address] = waiter
        self._by_connection.setdefault(connection, {})[waiter.number] = waiter

    def freeze(self) -> list[FrozenWaiter]:
        """In the order in which they came."""
        return [FrozenWaiter(each.address, each.request, each.owner, each.key, each.since, each.timer.due) for each in self.all()]

    def thaw(self, frozen: list[FrozenWaiter], expired: Expired) -> None:
        for old in frozen:
            waiter = Waiter(old.address, old.request, old.owner, old.key, old.since, next(self._numbers))
            waiter.timer = self._timers.restore(partial(expired, waiter), old.due)
            self._keep(waiter)

    def find(self, address: Address) -> Waiter | None:
        return self._by_address.get(address)

    def of(self, key: Key) -> list[Waiter]:
        """In the order in which they came."""
        waiters = self._by_key.get(key)
        return [] if waiters is None else list(waiters.values())

    def of_owner(self, owner: str) -> list[Waiter]:
        return list(self._by_owner.get(owner, {}).values())

    def all(self) -> list[Waiter]:
        return list(self._all.values())

    def remove(self, waiter: Waiter) -> None:
        self._timers.cancel(waiter.timer)
        del self._all[waiter.number]
        _discard(self._by_key, waiter.key, waiter.number)
        _discard(self._by_owner, waiter.owner, waiter.number)
        self._unplace(waiter)

    def _unplace(self, waiter: Waiter) -> None:
        del self._by_address[waiter.address]
        _discard(self._by_connection, waiter.address[0], waiter.number)

    def disown(self, owner: str) -> None:
        """A dead member's requests compete with nobody. They are left in `orphans`: it may be alive and wait for their replies."""
        for waiter in list(self._by_owner.get(owner, {}).values()):
            self.remove(waiter)
            self.orphans.append(waiter)

    def forget_connection(self, connection: bytes) -> list[Waiter]:
        """Nobody is there to be answered. Returns what was parked."""
        mine = self._by_connection.get(connection, {})
        forgotten = [mine[number] for number in sorted(mine)]
        for waiter in forgotten:
            self.remove(waiter)
        return forgotten


def _discard(index: dict[K, dict[int, Waiter]], key: K, number: int) -> None:
    del index[key][number]
    if not index[key]:
        del index[key]

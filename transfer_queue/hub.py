"""One wait for everything a member waits for: replies of all servers, and whatever wakes it besides."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import zmq

from transfer_queue.errors import QueueTimeout
from transfer_queue.link import Link
from transfer_queue.pending import Pending


class Hub:
    """Links of one thread. Invariant: a settled request is told by `poll` once, unless it was awaited before."""

    def __init__(self) -> None:
        self._links: list[Link] = []
        self._watched: list[tuple[Any, int]] = []  # the sockets of all links, as a poll takes them
        self._chores: dict[Link, Callable[[], None]] = {}
        self._fresh: set[Pending[Any]] = set()  # settled, neither told nor awaited yet
        self._process, self._waits = os.getpid(), 0  # who made it; the thread that looks at the sockets now, 0: none does
        self._look_s = math.inf  # longest single look at the sockets, for chores that are due though nothing comes

    def add(self, link: Link, chore: Callable[[], None] | None = None) -> Link:
        """`chore` is called before every look at the sockets: what is to be said on `link` by its own thread only. It must neither wait nor raise."""
        self._links.append(link)
        self._watch()
        if chore is not None:
            self._chores[link] = chore
        return link

    def remove(self, link: Link) -> None:
        """`link` is closed by somebody else."""
        self._links.remove(link)
        self._chores.pop(link, None)
        self._watch()

    def _watch(self) -> None:
        self._watched = [(socket, zmq.POLLIN) for link in self._links for socket in (link.socket, link.monitor)]

    def poll(self, timeout_s: float, *extra: Any) -> set[Any]:
        """Wait until a reply comes or one of `extra` (zmq sockets, descriptors, objects with `fileno`) is readable, at most `timeout_s`.

        Returns the ready members of `extra` and every Pending that was settled since the last poll and not awaited; empty past the deadline.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            ready = self._step(0.0 if self._fresh else deadline - time.monotonic(), extra)
            if ready or self._fresh or time.monotonic() >= deadline:
                settled, self._fresh = self._fresh, set()
                return ready | settled

    def wait(self, pending: Pending[Any], timeout_s: float) -> None:
        """For `Pending.result`: until it is settled, else QueueTimeout."""
        if not self.settles(pending, timeout_s):
            raise QueueTimeout(f"{pending.what} to {pending.peer}: no reply within {timeout_s:g} s. It is safe to ask again")
        self._fresh.discard(pending)

    def settles(self, pending: Pending[Any], within_s: float) -> bool:
        """Whether the reply or the error comes in time."""
        deadline = time.monotonic() + within_s
        while not pending.done():
            self._step(deadline - time.monotonic(), ())
            if time.monotonic() >= deadline:
                break
        return pending.done()

    def reaches(self, link: Link, until: float) -> bool:
        """Whether `link`, one of ours, is reached; waits for that until then (time.monotonic)."""
        while not link.is_reached and time.monotonic() < until:
            self._step(until - time.monotonic(), ())
        return link.is_reached

    def _step(self, timeout_s: float, extra: Sequence[Any]) -> set[Any]:
        """One look at every socket: settles what came, returns the ready members of `extra`."""
        self.check_alone()
        for chore in self._chores.values():
            chore()
        lost = [deadline for link in self._links if (deadline := link.deadline()) is not None]
        if lost:
            timeout_s = min(timeout_s, min(lost) - time.monotonic())
        timeout_s = min(timeout_s, self._look_s)
        named = {item if isinstance(item, zmq.Socket | int) else item.fileno(): item for item in extra} if extra else {}
        watched = [*self._watched, *((item, zmq.POLLIN) for item in named)] if named else self._watched
        self._waits = threading.get_ident()
        try:
            events = zmq.zmq_poll(watched, max(0, math.ceil(timeout_s * 1000)))
        finally:
            self._waits = 0
        readable = {item for item, _ in events}
        for link in self._links:
            comes, changes = link.socket in readable, link.monitor in readable
            if comes or changes or link.deadline() is not None:
                self._fresh.update(pending for pending in link.pump(comes, changes) if not pending.silent)
        return {named[item] for item in readable if item in named} if named else set()

    def check_alone(self) -> None:
        """Raises RuntimeError in a forked child, where the sockets are the parent's and nothing would ever be answered, and where another thread
        waits with this client at this moment: sockets serve one thread at a time."""
        if self._waits and self._waits != threading.get_ident():
            raise RuntimeError(
                "another thread waits with this client: its sockets serve one thread at a time, and replies would be lost; give each thread a "
                "connection of its own, by `client.attach()`"
            )
        if os.getpid() != self._process:
            raise RuntimeError(
                f"this client was connected by process {self._process}, of which this one ({os.getpid()}) is a fork: it has none of the threads that "
                "move its messages, so nothing would be answered; connect again here, under a name of its own"
            )

    def close(self) -> None:
        """Close the sockets; says nothing to the controller (`leave` does)."""
        for link in self._links:
            link.close()
        self._links.clear()
        self._watch()
        self._chores.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

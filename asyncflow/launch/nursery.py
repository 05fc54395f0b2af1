"""The launcher's processes, here or on other machines: started, watched by their sentinels, restarted within limits, all of them ended at the end."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Protocol

from asyncflow.launch.child import ChildSpec
from asyncflow.launch.restarts import RestartLimit

KILL_AFTER_S = 3.0  # between SIGTERM and SIGKILL


class Process(Protocol):
    """A started `ChildSpec`: of this machine (`child.Child`), or behind an agent (`launch.ray.remote.RemoteChild`)."""

    spec: ChildSpec

    @property
    def sentinel(self) -> int:
        """A descriptor of this process of ours, readable when that one has ended."""
        ...

    @property
    def pid(self) -> int | None:
        """On its own machine; None where it is not known, yet or any more."""
        ...

    @property
    def exit_code(self) -> int | None:
        """None while it runs, negative when a signal killed it, or its machine was lost."""
        ...

    @property
    def cause(self) -> str:
        """Of its end, in words; once `exit_code` is known."""
        ...

    def send(self, number: signal.Signals) -> None:
        """A signal to this process only, and only while it runs."""
        ...

    def close(self) -> None:
        """Free what is held for an ended process."""
        ...

    def tail(self) -> str:
        """The end of its log."""
        ...


Begin = Callable[[ChildSpec], Process]  # starts it
Revive = Callable[[Process, int], bool]  # (ended child, exit code) → whether something was started in its place


class Nursery:
    """Children by name. Signals go to these processes only, and only while they are not reaped."""

    def __init__(self, begin: Begin, restarts: int, window_s: float, revive: Revive = lambda child, code: False) -> None:
        """`revive`: for children whose end nobody else is to hear of; asked once for each that ended without having been told to."""
        self._begin, self._revive = begin, revive
        self._gone: list[tuple[Process, int]] = []  # ended, and not told yet
        self._limit: Callable[[], RestartLimit] = lambda: RestartLimit(restarts, window_s)
        self._limits: dict[str, RestartLimit] = {}
        self.children: dict[str, Process] = {}
        self.restarts: dict[str, int] = {}  # how often each was restarted
        self.unwilling: set[str] = set()  # those that did not end by themselves

    def start(self, spec: ChildSpec) -> Process:
        child = self._begin(spec)
        self.children[spec.name] = child
        return child

    def sentinels(self) -> list[int]:
        return [child.sentinel for child in self.children.values()]

    def look(self) -> None:
        """Revive who is to be revived; the ends of others are kept for `ended`."""
        for name, child in list(self.children.items()):
            code = child.exit_code
            if code is not None:
                del self.children[name]
                child.close()
                if name in self.unwilling or not self._revive(child, code):
                    self._gone.append((child, code))

    def ended(self) -> list[tuple[Process, int]]:
        """Children that ended since the last call, with their exit codes; they are forgotten here."""
        self.look()
        gone, self._gone = self._gone, []
        return gone

    def restart(self, child: Process, spec: ChildSpec | None = None) -> bool:
        """Start an ended child again under its name, as `spec` where one is given. False: the limit is reached, it was not started."""
        name = child.spec.name
        if not self._limits.setdefault(name, self._limit()).allow():
            return False
        self.restarts[name] = self.restarts.get(name, 0) + 1
        self.start(child.spec if spec is None else spec)
        return True

    def end(self, deadline_s: float, chosen: Callable[[ChildSpec], bool] = lambda spec: True) -> dict[str, int]:
        """Wait until the chosen ones have ended; past `deadline_s` (seconds from now) terminate, then kill. Returns exit codes by name.

        `unwilling` then names those that had to be signalled.
        """
        codes = self._collect(deadline_s, chosen)
        for number, patience_s in ((signal.SIGTERM, KILL_AFTER_S), (signal.SIGKILL, KILL_AFTER_S)):
            for child in self._of(chosen):
                self.unwilling.add(child.spec.name)
                child.send(number)
            codes |= self._collect(patience_s, chosen)
        return codes

    def _of(self, chosen: Callable[[ChildSpec], bool]) -> list[Process]:
        return [child for child in self.children.values() if chosen(child.spec)]

    def _collect(self, timeout_s: float, chosen: Callable[[ChildSpec], bool]) -> dict[str, int]:
        codes = {child.spec.name: code for child, code in self.ended()}  # `look` may have seen the last of them, and then nobody is waited for
        deadline = time.monotonic() + timeout_s
        while children := self._of(chosen):
            left_s = deadline - time.monotonic()
            wait([child.sentinel for child in children], max(0.0, left_s))
            codes |= {child.spec.name: code for child, code in self.ended()}
            if left_s <= 0:
                break
        return codes

"""The launcher's own place in the run: it is a member, so that it sees the desired state, and it tells of deaths.

Whatever it waits for, it looks after the controller's process meanwhile: nobody else would start it again, and the answer would never come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from transfer_queue.client import Pending, QueueClient
from transfer_queue.errors import QueueError, QueueGone, QueueRefused, QueueTimeout
from transfer_queue.messages import Directive, OkDirective, OkEmpty
from transfer_queue.security import Security

NAME = "launcher"
WATCH_S = 1.0  # a heartbeat at least this often; changes arrive at once
ANSWER_S = 5.0  # deadline of notices, which a healthy controller answers at once
SILENT_S = 15.0  # a directive that is overdue by this long will not come: the controller hangs
T = TypeVar("T")
LOST = (QueueError, QueueGone, QueueRefused, QueueTimeout)


class Tended(Protocol):
    """The launcher's processes, the controller among them."""

    def sentinels(self) -> list[int]:
        """Readable when one of them has ended."""
        ...

    def look(self) -> None:
        """Start the controller again if it ended and may be."""
        ...


class ControllerLink:
    """Directive in, notices out. A controller that is gone or hangs is no error here: `lost` says so and why, and `directive` stays as it was."""

    def __init__(self, url: str, key: str | None, timeout_s: float, processes: Tended, is_there: Callable[[], bool]) -> None:
        """Registers. `is_there`: whether the controller has a process. Raises what `QueueClient.connect` raises."""
        security = Security.load(Path(key)) if key is not None else None
        self._client = QueueClient.connect(url, name=NAME, role=NAME, security=security, timeout_s=timeout_s)
        self._processes, self._is_there = processes, is_there
        self._patient_until_s = 0.0  # it was started again and has so long to be back
        self.directive = Directive(revision=-1, state="run")
        self.lost: str | None = None  # why nothing comes from the controller any more
        self._pending: Pending[OkDirective] | None = None
        self._asked_s = 0.0

    def poll(self, timeout_s: float, *extra: Any) -> set[Any]:
        """Wait for a new directive, or for one of `extra` (descriptors) to become readable; returns the ready ones of `extra`."""
        if self._pending is None and self.lost is None:
            self._watch(WATCH_S)
        came = self._pending is not None and self._pending.done()  # while a notice was answered, and no poll tells of it again
        ready = self._client.poll(0.0 if came else timeout_s, *extra)
        overdue_s = max(self._asked_s + WATCH_S + SILENT_S, self._patient_until_s)
        if self._pending is not None and (self._pending.done() or time.monotonic() > overdue_s):
            self._take()
        return {item for item in ready if not isinstance(item, Pending)}

    def refresh(self) -> None:
        """The directive as it is now."""
        if self.lost is not None:
            return
        if self._pending is None:
            self._watch(0.0)
        else:
            self._pending.cancel()
        self._take()

    def dead(self, name: str, cause: str, fatal: bool) -> None:
        """Tell that a process ended. `fatal` ends the run."""
        self._notice(lambda: self._client.member_dead(name, cause, fatal=fatal))

    def stop(self, reason: str) -> None:
        """Ask for the end of the run."""
        self._notice(lambda: self._client.stop(reason))

    def close(self) -> None:
        """Leave, so that the controller may end."""
        self._notice(self._client.leave)
        self._client.close()

    def _notice(self, send: Callable[[], Pending[OkEmpty]]) -> None:
        """Once lost, nothing is waited for any more: the end of a run has many notices."""
        if self.lost is None:
            try:
                self._await(send())
            except LOST as error:
                self.lost = str(error)

    def be_patient(self, seconds: float) -> None:
        """The controller was started again and is back within this time."""
        self._patient_until_s = time.monotonic() + seconds

    def _await(self, pending: Pending[T]) -> T:
        begun_s = time.monotonic()
        while not pending.done() and self._is_there():
            left_s = max(begun_s + ANSWER_S, self._patient_until_s) - time.monotonic()
            if left_s <= 0:
                break
            self._client.poll(left_s, *self._processes.sentinels())
            self._processes.look()
        return pending.result(0.0)

    def members(self) -> set[str]:
        """Names of those that are registered now."""
        return {entry.rpartition("#")[0] for entry in self.directive.alive}

    def alive(self, names: Iterable[str]) -> bool:
        """Whether all of these members are registered now."""
        return self.members().issuperset(names)

    def _watch(self, wait_s: float) -> None:
        self._asked_s = time.monotonic()
        try:
            self._pending = self._client.watch(seen=self.directive.revision, wait_s=wait_s)
        except LOST as error:
            self.lost = str(error)

    def _take(self) -> None:
        if self._pending is None:
            return
        try:
            self.directive = self._await(self._pending).directive
        except LOST as error:
            self.lost = str(error)
        self._pending = None

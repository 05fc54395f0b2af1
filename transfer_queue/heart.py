"""Heartbeats from a thread of their own: a member that computes says nothing, and would be taken for dead."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from transfer_queue import messages as m
from transfer_queue.errors import QueueError, QueueGone
from transfer_queue.messages import Directive

if TYPE_CHECKING:
    from transfer_queue.connection import Connection

BEAT_S = 1.0  # a heartbeat at least this often; changes of the directive arrive at once
END_S = 5.0  # deadline of leaving: past it the controller notices by itself that no heartbeat comes


class Heart:
    """The thread and what it hears."""

    def __init__(self, client: Connection, ends: Callable[[], list[int]] = list) -> None:
        """`client` is the thread's own from now on. `ends` opens descriptors; when one is readable nobody is left to work for, and it leaves."""
        self.directive: Directive | None = None  # the newest
        self._client, self._ends = client, ends
        self._error: Exception | None = None
        self._changed = threading.Condition()
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="queue-heartbeat", daemon=True)
        self._thread.start()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def wait(self, wanted: Callable[[Directive], bool]) -> None:
        """Until a directive is as wanted."""
        with self._changed:
            while self.directive is None or not wanted(self.directive):
                self.check()
                self._changed.wait(BEAT_S + self._client.timeout_s)  # the thread sets one of the two within it, or has ended with an error

    def stop(self) -> None:
        """Returns when the thread has ended, which takes no longer than a look at its sockets."""
        os.write(self._stop_write, b"\0")
        self._thread.join(END_S)
        os.close(self._stop_write)
        os.close(self._stop_read)

    def _run(self) -> None:
        parent = self._ends()
        error: Exception = QueueGone(f"{self._client.owner} has left: it was closed, or the process that it works for has ended")
        try:
            with self._client:
                while self._beat([self._stop_read, *parent]):
                    pass
        except (QueueError, OSError) as raised:  # the member meets it at its next `check` or `wait`
            error = raised
        finally:
            for descriptor in parent:
                os.close(descriptor)
            self._tell(None, error)

    def _beat(self, ends: list[int]) -> bool:
        """One heartbeat; False when it was the last. An end is seen at once, whatever the heartbeat waits for."""
        pending = self._client.submit(
            m.Watch(member="", incarnation=0, seen=-1 if self.directive is None else self.directive.revision, wait_s=BEAT_S)
        )
        deadline = time.monotonic() + BEAT_S + self._client.timeout_s
        ready = self._client.poll(deadline - time.monotonic(), *ends)
        if ready & set(ends):
            if self._stop_read not in ready:  # nobody is left to work for
                self._client.leave().result(END_S)
            return False
        self._tell(pending.result(deadline - time.monotonic()).directive, None)
        return True

    def _tell(self, directive: Directive | None, error: Exception | None) -> None:
        with self._changed:
            self.directive = directive or self.directive
            self._error = error
            self._changed.notify_all()

"""The controller's status, asked for at most twice a second and never waited for: a view must not slow the run it shows."""

from __future__ import annotations

import time
from pathlib import Path

from asyncflow.observe.records import CONTROLLER_URL
from transfer_queue.client import Pending, QueueClient
from transfer_queue.errors import QueueError, QueueGone, QueueRefused, QueueTimeout
from transfer_queue.messages import OkStatus, StatusRecord
from transfer_queue.security import Security

EVERY_S = 0.5  # between two questions
DEADLINE_S = 5.0  # past it a question counts as unanswered
AGAIN_S = 5.0  # after a failure


class StatusPoll:
    """Belongs to one thread. `advance` costs a look at a socket."""

    def __init__(self, run_dir: Path, key: str | None) -> None:
        self.latest: StatusRecord | None = None
        self.problem: str | None = None  # why there is nothing newer
        self._url_file, self._key = run_dir / CONTROLLER_URL, key
        self._client: QueueClient | None = None
        self._pending: Pending[OkStatus] | None = None
        self._asked_s = self._answered_s = 0.0
        self._not_before_s = 0.0

    def age_s(self) -> float | None:
        """How old `latest` is; None without one."""
        return None if self.latest is None else time.monotonic() - self._answered_s

    def advance(self) -> None:
        """Take an answer that came, and ask again when it is time."""
        now_s = time.monotonic()
        if self._pending is not None:
            self._take(self._pending, now_s)
        if self._pending is None and now_s >= max(self._not_before_s, self._asked_s + EVERY_S):
            self._ask(now_s)

    def wait(self, timeout_s: float) -> None:
        """Ask once and wait for the answer, for a view that is shown only once."""
        self.advance()
        if self._client is not None and self._pending is not None:
            self._client.poll(timeout_s)
            self.advance()
            if self.latest is None and self.problem is None:
                self.problem = f"no answer within {timeout_s:g} s"

    def _take(self, pending: Pending[OkStatus], now_s: float) -> None:
        assert self._client is not None
        try:
            self._client.poll(0.0)
            if pending.done():
                self.latest, self.problem = pending.result(0.0).status, None
                self._answered_s, self._pending = now_s, None
            elif now_s > self._asked_s + DEADLINE_S:
                self._fail(f"no answer within {DEADLINE_S:g} s", now_s)
        except (QueueError, QueueGone, QueueRefused, QueueTimeout) as error:
            self._fail(str(error), now_s)

    def _ask(self, now_s: float) -> None:
        try:
            if self._client is None:
                self._client = QueueClient.outsider(self._url_file.read_text().strip(), security=self._security())
            self._asked_s = now_s
            self._pending = self._client.status()
        except FileNotFoundError:
            self._not_before_s = now_s + EVERY_S  # the controller is not up yet
        except (QueueError, QueueGone, QueueRefused, OSError, ValueError) as error:  # the last two: of the key file
            self._fail(str(error), now_s)

    def _security(self) -> Security | None:
        return Security.load(self._key).worker() if self._key is not None else None

    def _fail(self, problem: str, now_s: float) -> None:
        """Start over with a new connection, a while later."""
        self.problem = problem
        self._not_before_s = now_s + AGAIN_S
        self.close()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = self._pending = None

"""Where the ranks of a group find each other: a board of notes that travel over the publisher's own socket.

A TCPStore would open one more port, without authentication; torch asks the DNS for a name on every connection to one (5 s whenever a query is
lost, measured); and a wait on it cannot be cut short by a death notice. So the publisher keeps the notes, members post and look over their link.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from checkpoint_engine.collective import Abandoned, GroupError

MOST_NOTE_BYTES = 1 << 16
MOST_NOTES = 1 << 14


class Board:
    """The notes of one epoch. Any thread."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._notes: dict[str, bytes] = {}
        self._over = False
        self._lock = threading.Condition()
        self._changed = changed

    def post(self, key: str, value: bytes) -> None:
        """Raises GroupError for a note that no group would write."""
        if len(value) > MOST_NOTE_BYTES or len(self._notes) >= MOST_NOTES:
            raise GroupError(f"note {key!r} of {len(value)} bytes is beyond {MOST_NOTE_BYTES} bytes or {MOST_NOTES} notes: the group is not formed")
        with self._lock:
            self._notes[key] = value
            self._lock.notify_all()
        self._changed()

    def look(self, key: str) -> bytes | None:
        with self._lock:
            return self._notes.get(key)

    def drop(self, key: str) -> None:
        """Nobody looks for it any more. Fine where there is none."""
        with self._lock:
            self._notes.pop(key, None)

    def await_note(self, key: str, timeout_s: float) -> bytes:
        """Park for a note. Raises Abandoned, or GroupError after `timeout_s` seconds."""
        end = time.monotonic() + timeout_s
        with self._lock:
            while key not in self._notes:
                left = end - time.monotonic()
                if self._over:
                    raise Abandoned(f"the group was abandoned while {key!r} was awaited")
                if left <= 0:
                    raise GroupError(f"{key!r} did not come within {timeout_s} s: a member is missing")
                self._lock.wait(left)
            return self._notes[key]

    def abandon(self) -> None:
        """End every wait."""
        with self._lock:
            self._over = True
            self._lock.notify_all()

"""No process outlives the one that started it and watches it, even one that was killed with -9 and could tell nobody."""

from __future__ import annotations

import os
import signal
import sys
import threading
from multiprocessing.connection import wait
from typing import Any

ORPHANED = 87  # exit code of a process that had to end itself
GRACE_S = 5.0  # between the polite end and the hard one


def end_when_gone(sentinel: Any) -> None:
    """Watch `sentinel` in a thread (a descriptor, or what has one, that is readable once the parent is gone); then end: SIGTERM to self, after a
    grace `os._exit`."""
    threading.Thread(target=_watch, args=(sentinel,), name="parent watch", daemon=True).start()


def end_with_stdin() -> None:
    """The same for whoever holds the other end of our standard input, and writes nothing there."""
    end_when_gone(sys.stdin.fileno())


def _watch(sentinel: Any) -> None:
    wait([sentinel])  # no deadline: the parent's life is the deadline
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_S)
    os._exit(ORPHANED)

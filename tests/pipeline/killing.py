"""kill -9 for one worker of a running pipeline, by its pid, at a moment that a test chooses."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

from asyncflow.config import POLICY
from asyncflow.launch.launcher import Launcher

PATIENCE_S = 60.0
STEP_S = 0.002  # between two looks at a run from outside


def wait_until(condition: Callable[[], bool], over: threading.Event, what: str) -> bool:
    """False when the run ended first; raises past the deadline."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if over.wait(STEP_S):
            return False
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_S:g} s"
    return True


def version(launcher: Launcher) -> int:
    return -1 if launcher.link is None else launcher.link.directive.versions.get(POLICY, -1)


def registered(launcher: Launcher, name: str) -> bool:
    return launcher.link is not None and launcher.link.alive([name])


def pid_of(launcher: Launcher, name: str) -> int | None:
    child = launcher.nursery.children.get(name)
    try:
        return child.pid if child is not None else None
    except ValueError:  # closed meanwhile: it has ended
        return None


def kill(launcher: Launcher, name: str) -> bool:
    pid = pid_of(launcher, name)
    if pid is None:
        return False
    os.kill(pid, signal.SIGKILL)
    return True

"""kill -9 inside a chosen phase: a process is stopped first, its phase marks are read while it cannot move, and only then it is killed."""

from __future__ import annotations

import os
import signal
import threading
from random import Random
from typing import Literal

import msgspec

from asyncflow.launch.local import LocalLauncher
from asyncflow.workers.phase import read_phases
from tests.pipeline.killing import pid_of, registered, version, wait_until

Moment = Literal["any", "put", "load", "receive", "commit of another"]
LOOKS = 200_000  # at most so many looks for one moment, then any moment will do
LOOK_S = 0.0002


class Kill(msgspec.Struct):
    """One kill, as the log shows it."""

    name: str
    wanted: Moment
    hit: bool  # the process was inside the wanted phase when it died
    phases: dict[str, str]  # of its threads at its death
    version: int


class Hunter:
    """Kills one worker again and again. Moments come in turn, so that each gets its share."""

    def __init__(self, launcher: LocalLauncher, name: str, moments: list[Moment], seed: int) -> None:
        self._launcher, self._name, self._moments, self._random = launcher, name, moments, Random(seed)
        self.kills: list[Kill] = []

    def hunt(self, count: int, over: threading.Event) -> None:
        while len(self.kills) < count:
            alive = wait_until(lambda: version(self._launcher) >= 0 and registered(self._launcher, self._name), over, f"{self._name} registered")
            pid = pid_of(self._launcher, self._name)
            if not alive:
                return
            if pid is not None and (kill := self._kill(pid, self._moments[len(self.kills) % len(self._moments)], over)) is not None:
                self.kills.append(kill)
                if not wait_until(lambda: pid_of(self._launcher, self._name) != pid, over, f"{self._name} noticed"):  # noqa: B023
                    return

    def _kill(self, pid: int, moment: Moment, over: threading.Event) -> Kill | None:
        over.wait(self._random.uniform(0.0, 0.15))
        if moment == "any":
            return self._strike(pid, moment, over)
        for _ in range(LOOKS):
            if over.wait(LOOK_S) or pid_of(self._launcher, self._name) != pid:
                return None
            watched = self._name if moment != "commit of another" else "trainer-0"
            if self._inside(watched, moment) and (kill := self._strike(pid, moment, over)) is not None:
                return kill
        return None

    def _strike(self, pid: int, moment: Moment, over: threading.Event) -> Kill | None:
        """Stop, look, kill. None when the moment had passed before the stop."""
        stopped = [pid]
        if moment == "commit of another":
            trainer = pid_of(self._launcher, "trainer-0")
            if trainer is None or over.is_set():
                return None
            stopped.append(trainer)
        try:
            for process in stopped:
                os.kill(process, signal.SIGSTOP)
            hit = moment != "any" and self._inside("trainer-0" if moment == "commit of another" else self._name, moment)
            if moment != "any" and not hit:
                return None
            kill = Kill(self._name, moment, hit, dict(read_phases(self._launcher.config.run_dir, self._name)), version(self._launcher))
            os.kill(pid, signal.SIGKILL)
            return kill
        except ProcessLookupError:
            return None
        finally:
            for process in stopped:
                resume(process)

    def _inside(self, name: str, moment: Moment) -> bool:
        phases = read_phases(self._launcher.config.run_dir, name).values()
        return ("commit" if moment == "commit of another" else moment) in phases


def resume(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return

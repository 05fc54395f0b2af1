"""`RemoteChild`: a worker behind its agent, seen from the launcher as a process like any other."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from asyncflow.launch.child import ChildSpec, cause_of, tail_of
from asyncflow.launch.ray.agent import Order

LOST = -signal.SIGKILL  # exit code of a worker whose agent is gone: it died with it
UNPLACED = os.EX_UNAVAILABLE  # its agent was not there in time


class RemoteChild:
    """Replies of the agent come in threads of Ray's; the first that tells of an end makes `sentinel` readable."""

    def __init__(self, spec: ChildSpec, agent: Any, order: Order, devices: Any, place_s: float, on_lost: Callable[[bool], None]) -> None:
        """`agent`: handle of the actor; `devices`: reference to the ids that the worker sees; `place_s`: the agent must be up within this;
        `on_lost` is called when it died, or (with True) is not wanted any more."""
        self.spec = spec
        self._agent, self._place_s, self._on_lost = agent, place_s, on_lost
        self._read, self._write = os.pipe()
        self._lock = threading.Lock()  # between threads of Ray, the timer's and the launcher's
        self._pid: int | None = None
        self._code: int | None = None
        self._cause = ""
        self._late = threading.Timer(place_s, self._not_placed)
        self._late.daemon = True
        self._late.start()
        self._started = agent.start.remote(order, devices)  # what is asked with this as an argument is asked once the worker is there
        self._started.future().add_done_callback(self._on_start)
        agent.wait.remote(self._started).future().add_done_callback(self._on_end)

    @property
    def sentinel(self) -> int:
        return self._read

    @property
    def pid(self) -> int | None:
        """On its node."""
        return self._pid if self._code is None else None

    @property
    def exit_code(self) -> int | None:
        return self._code

    @property
    def cause(self) -> str:
        return self._cause

    def send(self, number: signal.Signals) -> None:
        """Whether it arrives is told by the worker's end only. A worker that was not started yet gets it when it is."""
        if self._code is None:
            self._agent.send.remote(int(number), self._started)

    def close(self) -> None:
        self._late.cancel()
        with self._lock:
            if self._write >= 0:
                os.close(self._write)
                os.close(self._read)
                self._write = -1

    def tail(self, lines: int = 25) -> str:
        return tail_of(self.spec.log, lines)

    # ------------------------------------------------------------ in other threads

    def _on_start(self, started: Future[int]) -> None:
        self._late.cancel()
        if started.exception() is None:  # else `_on_end` hears of it too
            self._pid = started.result()

    def _on_end(self, ended: Future[int]) -> None:
        error = ended.exception()
        if error is None:
            self._end(ended.result(), cause_of(ended.result()))
        elif _is_gone(error):
            self._on_lost(False)
            self._end(LOST, "its node or its agent is gone")
        else:
            self._end(1, f"it could not be started: {getattr(error, 'cause', error)}")

    def _not_placed(self) -> None:
        self._on_lost(True)
        self._end(UNPLACED, f"no node had room for it within limits.place_s = {self._place_s:g} s")

    def _end(self, code: int, cause: str) -> None:
        with self._lock:
            if self._code is None:
                self._code, self._cause = code, cause
                if self._write >= 0:
                    os.write(self._write, b"x")


def _is_gone(error: BaseException) -> bool:
    """Whether this agent died, or that of the worker beside which this one runs."""
    from ray.exceptions import RayActorError

    return isinstance(error, RayActorError) or isinstance(getattr(error, "cause", None), RayActorError)

"""Whatever a sampler of somebody's own does, the take is served: what it may return is checked, and in order is served where it is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from transfer_queue.messages import packed, unpacked
from transfer_queue.samplers.candidates import Candidates, Choose
from transfer_queue.samplers.choice import Choice, Choices, asked

SLOW_S = 0.05  # a call that takes longer is slow: the controller serves nobody meanwhile
REST = 100  # times as long as it took a slow sampler is not asked: it gets at most a hundredth of the controller's time


class Guard:
    """One consumer's sampler. An endless loop in it cannot be ended from here: it runs on the controller's only thread."""

    def __init__(
        self,
        choose: Choose,
        tell: Callable[[str, int], None],
        clock: Callable[[], float] = time.perf_counter,
        choices: Choices = asked,
    ) -> None:
        """`tell`: (what was wrong, how many takes fell back so far); called at the first, second, fourth, eighth, … such take. `clock`: seconds.
        `choices` gets what comes of each take: nothing but that may change what is served."""
        self._choose, self._tell, self._clock, self._choices = choose, tell, clock, choices
        self._rests_until = -float("inf")  # of this process: a controller that comes back asks anew
        self.fallbacks = 0  # takes that were served in order instead
        self.fault = ""  # of the last one
        self.slowest_s = 0.0  # of this process

    def pick(self, ready: Candidates, limit: int, at_least: int) -> np.ndarray:
        """Places in `ready`, each once: between min(at_least, N) and `limit`."""
        count = len(ready)  # before somebody else's code has it
        choice = self._choices(lambda: self._ask(ready, count, limit, at_least))
        if choice.fault:
            self._fell_back(choice.fault)
            return np.arange(min(limit, count))
        return unpacked(choice.places)

    def _ask(self, ready: Candidates, count: int, limit: int, at_least: int) -> Choice:
        began = self._clock()
        if began < self._rests_until:
            return Choice(fault=f"it is not asked for {REST} times as long as its last, slow call took")
        try:
            found, fault = _checked(self._choose(ready, limit), count, limit, min(at_least, limit, count))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # others' code, SystemExit included: nothing that it raises may end the controller's loop
            found, fault = np.zeros(0, dtype=np.int64), f"it raised {_said(error)}"
        took = self._clock() - began
        self.slowest_s = max(self.slowest_s, took)
        if took > SLOW_S:
            self._rests_until = began + took * (REST + 1)
            fault = fault or f"a call took {took:.3f} s, more than {SLOW_S} s"
        return Choice(fault=fault) if fault else Choice(packed(found))

    def _fell_back(self, fault: str) -> None:
        self.fallbacks += 1
        self.fault = fault
        if self.fallbacks & (self.fallbacks - 1) == 0:
            self._tell(fault, self.fallbacks)


def _said(error: BaseException) -> str:
    """An error's text is others' code too, and may be none that can be sent."""
    try:
        return str.encode(repr(error), "utf-8", "backslashreplace")[:200].decode("utf-8", "ignore")
    except BaseException:  # others' code once more
        return type(error).__name__


def _checked(returned: Any, count: int, limit: int, least: int) -> tuple[np.ndarray, str]:
    """(places, what is wrong with them or "")."""
    nothing = np.zeros(0, dtype=np.int64)
    if not isinstance(returned, np.ndarray | list | tuple):
        return nothing, f"it returned a {type(returned).__name__}, not an array or list of places"
    if not least <= len(returned) <= limit:  # before all of it is copied
        return nothing, f"it returned {len(returned)} places, not between {least} and {limit}"
    found = np.array(returned)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        return nothing, f"it returned {found.dtype} of shape {found.shape}, not whole numbers [n]"
    if not least <= len(found) <= limit:  # its own word may have been another
        return nothing, f"it returned {len(found)} places, not between {least} and {limit}"
    if (found < 0).any() or (found >= count).any():
        return nothing, f"it returned places outside [0, {count})"
    places = found.astype(np.int64)
    if len(np.unique(places)) < len(places):
        return nothing, "it returned a place twice"
    return places, ""

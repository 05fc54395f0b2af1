"""One replica's decoding as arithmetic: progress is linear between two events, so only the next finish has to be known, never single steps.

All running requests decode in step, so one number, `progress` (tokens that a request running since the start would have), serves all of them: who
joined at progress p and makes n tokens is finished at p + n. A step of n running requests takes `step_s + per_running_s · n`; prefill and pauses
hold everybody. Modelled seconds; no clock is read here.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from asyncflow.contracts.rollout import Work
from asyncflow.sizing.costs import Decode

OnWork = Callable[[Work, float, float], None]
WHOLE = 1e-6  # tokens: progress this close to a whole token has reached it (sums of floats)


class Running(msgspec.Struct):
    id: str
    tokens: int  # still to make, at the start
    prompt: int  # tokens to prefill
    start: float = 0.0  # progress when it joined

    def made(self, progress: float) -> int:
        """Tokens at that progress."""
        return min(self.tokens, max(0, math.floor(progress - self.start + WHOLE)))


class Replica:
    """Requests in, finished requests out, in the order and at the moments of the model."""

    def __init__(self, costs: Decode, on_work: OnWork = lambda work, size, seconds: None) -> None:
        """`on_work`: what one step or one prefill of that size took, once for each stretch of equal steps."""
        self._costs, self._on_work = costs, on_work
        self.progress = 0.0
        self.at_s = 0.0  # everything up to here has happened
        self._held_until_s = 0.0  # nobody decodes before: prefill, a pause
        self._running: dict[str, Running] = {}
        self._finishes: list[tuple[float, str]] = []  # heap of (progress at the finish, id); aborted ones stay until they surface
        self._queued: deque[Running] = deque()  # for a slot
        self._prefills: deque[float] = deque()  # when those in slots whose prompt waited for others' begin to prefill, ascending

    @property
    def running(self) -> int:
        """Requests in slots whose prefill has begun."""
        return len(self._running) - self._waiting()

    @property
    def queued(self) -> int:
        """Requests that wait for a slot, or in one for others' prefill."""
        return len(self._queued) + self._waiting()

    def _waiting(self) -> int:
        while self._prefills and self._prefills[0] <= self.at_s:
            self._prefills.popleft()
        return len(self._prefills)

    @property
    def prefilling_s(self) -> float:
        """When the last prompt that waits for others' prefill begins its own; infinity when none waits."""
        return self._prefills[-1] if self._waiting() else math.inf

    def running_requests(self) -> Iterable[Running]:
        """Those in slots, in the order in which they joined."""
        return self._running.values()

    def add(self, request: Running, now_s: float) -> None:
        """Start it now if a slot is free, else when one is. Call `advance(now_s)` first."""
        self._queued.append(request)
        self._fill(now_s)

    def remove(self, id_: str) -> Running | None:
        """Take an unfinished request out, wherever it is. Call `advance` first."""
        if (found := self._running.pop(id_, None)) is not None:
            return found
        found = next((request for request in self._queued if request.id == id_), None)
        if found is not None:
            self._queued.remove(found)
        return found

    def hold(self, now_s: float, seconds: float) -> float:
        """Nobody decodes for so long, after what already holds them. Returns until when."""
        self._held_until_s = max(self._held_until_s, now_s) + seconds
        return self._held_until_s

    def next_finish_s(self) -> float:
        """When the next request finishes if nothing else happens; infinity when none runs."""
        self._drop_removed()
        if not self._finishes:
            return math.inf
        return max(self.at_s, self._held_until_s) + (self._finishes[0][0] - self.progress) * self._step_s()

    def advance(self, now_s: float) -> list[Running]:
        """Let the model reach `now_s`; returns who finished meanwhile, in order."""
        finished: list[Running] = []
        while (next_s := self.next_finish_s()) <= now_s:
            self.progress, id_ = heapq.heappop(self._finishes)
            self.at_s = max(self.at_s, next_s)
            self._on_work("decode", len(self._running), self._step_s())
            finished.append(self._running.pop(id_))
            self._fill(self.at_s)
        start_s = max(self.at_s, self._held_until_s)
        if self._running and now_s > start_s:
            self.progress += (now_s - start_s) / self._step_s()
        self.at_s = max(self.at_s, now_s)
        return finished

    def _step_s(self) -> float:
        return self._costs.step_s + self._costs.per_running_s * len(self._running)

    def _fill(self, now_s: float) -> None:
        while self._queued and len(self._running) < self._costs.max_running:
            request = self._queued.popleft()
            self._prefills.append(max(self._held_until_s, now_s))
            self.hold(now_s, request.prompt * self._costs.prefill_s)
            self._on_work("prefill", request.prompt, request.prompt * self._costs.prefill_s)
            request.start = self.progress
            self._running[request.id] = request
            heapq.heappush(self._finishes, (request.start + request.tokens, request.id))

    def _drop_removed(self) -> None:
        while self._finishes and self._finishes[0][1] not in self._running:
            heapq.heappop(self._finishes)

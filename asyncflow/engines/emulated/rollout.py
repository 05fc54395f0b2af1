"""The emulated rollout engine: real requests in, real columns out, at the moments at which the modelled replica would have made them.

A token's version is that of the weights which were loaded when it was made, so the staleness that the trainer measures is real.
"""

from __future__ import annotations

import math
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncflow.contracts.rollout import Capacity, Chunk, PauseMode, Request, Work
from asyncflow.contracts.weights import WeightsId
from asyncflow.engines.emulated.clock import ModelClock
from asyncflow.engines.emulated.replica import Replica, Running
from asyncflow.engines.emulated.settings import Emulation, emulation_of
from asyncflow.sizing.lengths import response_lengths

if TYPE_CHECKING:
    from asyncflow.config import RunConfig

TOKENS = 1 << 15  # made-up token ids lie below
STOP_TOKEN = 0


class EmulatedRolloutEngine:
    """Request ids are those of `workers.groups.GroupBook`, "gid/row/fence/made": the length of a response belongs to its gid and row.

    `next_chunk_s` says until when there is nothing to fetch; chunks come when a request finishes, one for each version that made some of its tokens.
    """

    def __init__(self, emulation: Emulation, clock: ModelClock | None = None) -> None:
        costs = emulation.costs
        self._slots, self._cap = costs.decode.max_running, costs.lengths.cap
        self._pause_s = costs.pause.seconds if "rollout" in costs.pause.who else 0.0
        self._lengths = response_lengths(costs)
        self._clock = clock or ModelClock(emulation.time_scale)
        self._replica = Replica(costs.decode, lambda work, size, seconds: self._work.append((work, size, seconds / self._clock.scale)))
        self._work: list[tuple[Work, float, float]] = []  # not told yet
        self._tell: Callable[[Work, float, float], None] | None = None
        self._known: set[str] = set()  # requests that have not ended
        self._chunks: list[Chunk] = []  # made, not fetched yet
        self._versions: deque[tuple[float, int]] = deque()  # (progress at the load, version), ascending: who made the tokens from there on
        self.loaded: WeightsId | None = None

    def start(self) -> None:
        """Nothing is allocated."""

    def generate(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._check(request)
        self._catch_up()
        for request in requests:
            self._known.add(request.id)
            self._replica.add(Running(request.id, self._tokens_of(request), len(request.token_ids)), self._clock.now_s())

    def _check(self, request: Request) -> None:
        if request.id in self._known or not request.token_ids or request.budget_left < 1:
            problem = "is known already" if request.id in self._known else f"has {len(request.token_ids)} tokens and budget {request.budget_left}"
            raise ValueError(f"request {request.id!r} {problem}: ids are unique, prompts and budgets at least 1; nothing was queued")
        if self.loaded is None or request.min_version > self.loaded.version:
            raise ValueError(f"request {request.id!r} needs weights of version {request.min_version}, loaded is {self.loaded}; nothing was queued")

    def _tokens_of(self, request: Request) -> int:
        """What the trace says, less what an earlier attempt made and kept."""
        gid, row, _, made = map(int, request.id.split("/"))
        return max(1, min(self._lengths.length_of(gid, row), self._cap) - made)

    def next_chunk_s(self) -> float:
        """Seconds (real) until `chunks` has something; infinity when nothing runs."""
        if self._chunks:
            return 0.0
        finish_s = self._replica.next_finish_s()
        return math.inf if finish_s == math.inf else self._clock.until_s(finish_s)

    def chunks(self, wait_s: float = 0.0) -> list[Chunk]:
        """What finished up to now, after a wait of at most `wait_s` for the first."""
        if wait_s > 0:
            self._clock.sleep_until(self._clock.now_s() + min(wait_s, self.next_chunk_s()) * self._clock.scale)
        self._catch_up()
        work, self._work = self._work, []
        if self._tell is not None:
            for entry in work:
                self._tell(*entry)
        chunks, self._chunks = self._chunks, []
        return chunks

    def meter(self, add: Callable[[Work, float, float], None]) -> None:
        """See `contracts.rollout.Metered`; in this machine's seconds, for that is what the run's other costs are in."""
        self._tell = add

    def _catch_up(self) -> None:
        for request in self._replica.advance(self._clock.now_s()):
            self._known.discard(request.id)
            self._chunks += self._made(request)

    def _made(self, request: Running) -> list[Chunk]:
        """A finished request's tokens, cut where weights were loaded. Every token has the same made-up id but the last, which ends the response."""
        token = 1 + zlib.crc32(request.id.encode()) % (TOKENS - 1)
        bounds = [*[request.made(progress) for progress, _ in self._versions][1:], request.tokens]
        chunks, begin = [], 0
        for (_, version), end in zip(self._versions, bounds, strict=True):
            if (count := end - begin) > 0:
                chunks.append(Chunk(request.id, [token] * count, [-1.0] * count, version))
            begin = end
        last = chunks.pop()
        return [*chunks, Chunk(last.id, [*last.token_ids[:-1], STOP_TOKEN], last.logprobs, last.version, finish="stop")]

    def abort(self, ids: Sequence[str]) -> None:
        self._catch_up()
        for id_ in ids:
            if self._replica.remove(id_) is not None:
                self._known.discard(id_)
                assert self.loaded is not None, "requests need weights"
                self._chunks.append(Chunk(id_, [], [], self.loaded.version, finish="aborted"))

    def pause(self, mode: PauseMode = "keep") -> None:
        """Requests stay and go on afterwards; the other modes are not emulated."""
        if mode != "keep":
            raise ValueError(f"rollout.pause_mode = {mode!r}: emulated replicas keep their requests over a load; set it to 'keep'")
        self._catch_up()

    def load_weights(self, weights: WeightsId, tensors: Iterable[tuple[str, Any]]) -> None:
        """Blocks for the modelled pause, and nobody decodes meanwhile. The bytes were verified by the receiver; there is nowhere to copy them to."""
        self._catch_up()
        if self.loaded is not None:
            self._clock.sleep_until(self._replica.hold(self._clock.now_s(), self._pause_s))
        self._versions.append((self._replica.progress, weights.version))
        while len(self._versions) > 1 and self._versions[1][0] <= self._replica.oldest_start:
            self._versions.popleft()  # nobody who runs has tokens of it
        self.loaded = weights

    def resume(self) -> None:
        """`load_weights` held the replica for exactly the modelled time."""

    def capacity(self) -> Capacity:
        running, queued = self._replica.running, self._replica.queued
        return Capacity(self._slots, max(0, self._slots - running - queued), running, queued)

    def release_memory(self) -> None:
        """Holds none."""

    def restore_memory(self) -> None:
        """Holds none."""

    def close(self) -> None:
        """Holds nothing."""


def make_rollout(config: RunConfig, model_dir: Path, worker: str) -> EmulatedRolloutEngine:
    """For `rollout.engine`."""
    return EmulatedRolloutEngine(emulation_of(config))

"""The emulated rollout engine: real requests in, real columns out, at the moments at which the modelled replica would have made them.

A token's version is that of the weights which were loaded when it was made, so the staleness that the trainer measures is real.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncflow.contracts.rollout import Capacity, Chunk, Finish, PauseMode, Request, Work
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

    `next_chunk_s` says until when there is nothing to fetch; chunks come when a request finishes, and with what old weights made when new ones come.
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
        self._told: dict[str, int] = {}  # requests that have not ended → tokens that were in chunks
        self._chunks: list[Chunk] = []  # made, not fetched yet
        self.loaded: WeightsId | None = None

    def start(self) -> None:
        """Nothing is allocated."""

    def generate(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._check(request)
        self._catch_up()
        for request in requests:
            self._told[request.id] = 0
            self._replica.add(Running(request.id, self._tokens_of(request), len(request.token_ids)), self._clock.now_s())

    def _check(self, request: Request) -> None:
        if request.id in self._told or not request.token_ids or request.budget_left < 1:
            problem = "is known already" if request.id in self._told else f"has {len(request.token_ids)} tokens and budget {request.budget_left}"
            raise ValueError(f"request {request.id!r} {problem}: ids are unique, prompts and budgets at least 1; nothing was queued")
        if self.loaded is None or (request.min_epoch, request.min_version) > (self.loaded.epoch, self.loaded.version):
            raise ValueError(f"request {request.id!r} needs weights of version {request.min_version}, loaded is {self.loaded}; nothing was queued")

    def _tokens_of(self, request: Request) -> int:
        """What the trace says, less what an earlier attempt made and kept."""
        gid, row, _, made = map(int, request.id.split("/"))
        return max(1, min(self._lengths.length_of(gid, row), self._cap) - made)

    def next_chunk_s(self) -> float:
        """Seconds (real) until `chunks` has something or the last prompt is prefilled; infinity when nothing runs."""
        if self._chunks:
            return 0.0
        next_s = min(self._replica.next_finish_s(), self._replica.prefilling_s)
        return math.inf if next_s == math.inf else self._clock.until_s(next_s)

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
            self._chunks.append(self._chunk(request.id, request.tokens - self._told.pop(request.id), finish="stop"))

    def _tell_running(self) -> None:
        """What every running request has by now was made by the weights that are loaded."""
        for request in self._replica.running_requests():
            made = min(request.made(self._replica.progress), request.tokens - 1)  # the last one ends it
            if (count := made - self._told[request.id]) > 0:
                self._told[request.id] = made
                self._chunks.append(self._chunk(request.id, count))

    def _chunk(self, id_: str, count: int, finish: Finish | None = None) -> Chunk:
        """Every token of a response has the same made-up id but the last, which ends it."""
        assert self.loaded is not None, "requests need weights"
        ids = [1 + zlib.crc32(id_.encode()) % (TOKENS - 1)] * count
        if finish == "stop":
            ids[-1] = STOP_TOKEN
        return Chunk(id_, ids, [-1.0] * count, self.loaded.version, finish, self.loaded.epoch)

    def abort(self, ids: Sequence[str]) -> None:
        self._catch_up()
        for id_ in ids:
            if self._replica.remove(id_) is not None:
                del self._told[id_]
                self._chunks.append(self._chunk(id_, 0, finish="aborted"))

    def pause(self, mode: PauseMode = "keep") -> None:
        """Requests stay and go on afterwards; the other modes are not emulated."""
        if mode != "keep":
            raise ValueError(f"rollout.pause_mode = {mode!r}: emulated replicas keep their requests over a load; set it to 'keep'")
        self._catch_up()

    def load_weights(self, weights: WeightsId, tensors: Iterable[tuple[str, Any]]) -> None:
        """Blocks for the modelled pause, and nobody decodes meanwhile. The bytes were verified by the receiver; there is nowhere to copy them to."""
        self._catch_up()
        if self.loaded is not None:
            self._tell_running()
            self._clock.sleep_until(self._replica.hold(self._clock.now_s(), self._pause_s))
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

"""The requests that have not ended: what each has made, under which attempt it runs, and the chunks that nobody fetched yet.

A request outlives its attempts: one that is started again (new weights before its first token, a dead engine) goes on as another attempt with what
it has made, and what an earlier attempt still says is not heard. So every request ends exactly once.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec
import xxhash

from asyncflow.contracts.rollout import Chunk, Finish, Request
from asyncflow.contracts.weights import WeightsId

FINISHES: dict[str, Finish] = {"stop": "stop", "length": "length", "abort": "aborted"}  # vLLM's words
MOST_SEED = (1 << 63) - 1
FIRST_GAP_S = 0.02  # guess of a decode step before there was one


class Attempt(msgspec.Struct, frozen=True):
    """What is sent to vLLM for a request: all of its tokens so far as the prompt, and what is left of its budget."""

    key: str  # unique among all attempts
    request: Request
    weights: WeightsId  # that it starts with

    @property
    def salt(self) -> str:
        """Keys and values are shared with attempts of the same salt only. All of the id: versions come again in a later epoch."""
        return f"{self.weights.epoch}.{self.weights.version}:{self.weights.digest}"

    @property
    def seed(self) -> int:
        """vLLM draws a request's numbers in sequence from one generator, so one that goes on must not draw its first numbers again."""
        return xxhash.xxh3_64_intdigest(f"{self.request.seed}/{len(self.request.token_ids)}".encode()) & MOST_SEED


class Delta(msgspec.Struct, frozen=True):
    """Some more tokens of an attempt."""

    token_ids: list[int]
    logprobs: list[float]
    starts: list[tuple[int, int, int]]  # (epoch, version, index of its first token in the attempt), ascending; covers all tokens so far
    finish: Finish | None


class _Entry:
    def __init__(self, request: Request) -> None:
        self.request = request
        self.made: list[int] = []
        self.attempt: Attempt | None = None
        self.attempt_made = 0  # tokens of the attempt

    def rest(self) -> Request:
        """What is left to generate, as a request of its own; the caller's record stays as it is."""
        if not self.made:
            return self.request
        tokens = (*self.request.token_ids, *self.made)
        return msgspec.structs.replace(self.request, token_ids=tokens, budget_left=self.request.budget_left - len(self.made))


class RequestTable:
    """Any thread: the worker adds and takes, vLLM's event loop absorbs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._entries: dict[str, _Entry] = {}  # first in, first out
        self._running: set[str] = set()  # those that have a token of their current attempt
        self._chunks: list[Chunk] = []
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._clock = clock
        self._heard_s = clock()
        self._gap_s = FIRST_GAP_S
        self._stepped = True  # nothing was loaded yet

    # ---------------------------------------------------------------- the worker's side

    def add(self, requests: Iterable[Request], weights: WeightsId) -> list[Attempt]:
        with self._changed:
            if not self._entries:
                self._heard_s = self._clock()
            for request in requests:
                self._entries[request.id] = _Entry(request)
            return self._start([request.id for request in requests], weights)

    def again(self, ids: Sequence[str], weights: WeightsId) -> list[Attempt]:
        """Another attempt for these; what their earlier ones still say is dropped."""
        with self._changed:
            return self._start(ids, weights)

    def _start(self, ids: Iterable[str], weights: WeightsId) -> list[Attempt]:
        attempts = []
        for id_ in ids:
            entry = self._entries.get(id_)
            if entry is not None:  # else it ended meanwhile
                entry.attempt = Attempt(f"{id_}#{next(self._numbers)}", entry.rest(), weights)
                entry.attempt_made = 0
                self._running.discard(id_)
                attempts.append(entry.attempt)
        return attempts

    def known(self) -> set[str]:
        """Ids that nobody else may use: those that have not ended, or whose end was not fetched."""
        with self._changed:
            return self._entries.keys() | {chunk.id for chunk in self._chunks if chunk.finish}

    def unfinished(self) -> list[str]:
        with self._changed:
            return list(self._entries)

    def without_token(self) -> list[str]:
        """Those that wait, or are in their prefill, whatever earlier attempts made."""
        with self._changed:
            return [id_ for id_ in self._entries if id_ not in self._running]

    def keys(self, ids: Iterable[str]) -> list[str]:
        """Keys of the current attempts of those of `ids` that have not ended."""
        with self._changed:
            return [entry.attempt.key for id_ in ids if (entry := self._entries.get(id_)) is not None and entry.attempt is not None]

    def counts(self) -> tuple[int, int]:
        """(running, queued)."""
        with self._changed:
            return len(self._running), len(self._entries) - len(self._running)

    def take(self, wait_s: float) -> list[Chunk]:
        """Chunks that came, after a wait of at most `wait_s` for the first. Raises what `fail` was given."""
        with self._changed:
            if wait_s > 0:
                self._changed.wait_for(lambda: self._chunks or self._failure or not self._entries, wait_s)
            if self._failure is not None:
                raise self._failure
            chunks, self._chunks = self._chunks, []
            return chunks

    def ended(self, ids: Iterable[str], wait_s: float) -> bool:
        """Wait until none of `ids` is left."""
        wanted = set(ids)
        with self._changed:
            return self._changed.wait_for(lambda: not wanted & self._entries.keys() or self._failure is not None, wait_s)

    def await_step(self) -> None:
        """From here on `stepped` waits for a token."""
        with self._changed:
            self._stepped = False

    def stepped(self, wait_s: float) -> bool:
        """Wait until a token was made since `await_step`, or there is no request to make one."""
        with self._changed:
            return self._changed.wait_for(lambda: self._stepped or not self._entries or self._failure is not None, wait_s)

    def next_chunk_s(self) -> float:
        """Seconds until something new is likely: the moment of the last news plus the usual gap between two; infinity when nothing runs."""
        with self._changed:
            if self._chunks or self._failure is not None:
                return 0.0
            if not self._entries:
                return float("inf")
            return min(max(self._heard_s + self._gap_s - self._clock(), self._gap_s / 4), 1.0)

    def listen(self) -> None:
        """Nobody could say anything up to now: count the silence from here."""
        with self._changed:
            self._heard_s = self._clock()

    def silent_s(self) -> float:
        """How long requests have been waiting for any news; 0 with none."""
        with self._changed:
            return self._clock() - self._heard_s if self._entries else 0.0

    # ---------------------------------------------------------------- vLLM's side

    def absorb(self, attempt: Attempt, delta: Delta) -> None:
        id_ = attempt.request.id
        with self._changed:
            entry = self._entries.get(id_)
            if entry is None or entry.attempt is not attempt:
                return
            self._hear()
            self._chunks += _split(id_, delta, entry.attempt_made)
            entry.made += delta.token_ids
            entry.attempt_made += len(delta.token_ids)
            self._stepped = self._stepped or bool(delta.token_ids)
            if delta.finish is not None:
                del self._entries[id_]
                self._running.discard(id_)
            elif delta.token_ids:
                self._running.add(id_)
            self._changed.notify_all()

    def _hear(self) -> None:
        now = self._clock()
        if (gap := now - self._heard_s) > self._gap_s / 8:  # deltas of one step come together
            self._gap_s += (min(gap, 1.0) - self._gap_s) / 8
            self._heard_s = now

    def fail(self, error: BaseException) -> None:
        """A request that vLLM refused: `take` raises it."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def wake(self) -> None:
        """Let whoever waits look again."""
        with self._changed:
            self._changed.notify_all()


def _split(id_: str, delta: Delta, first: int) -> list[Chunk]:
    """One chunk for each run of tokens of one version. `first`: index of the delta's first token in the attempt."""
    end = first + len(delta.token_ids)
    stops = [start for *_, start in delta.starts[1:]] + [end]
    chunks = []
    for (epoch, version, start), stop in zip(delta.starts, stops, strict=True):
        begin, stop = max(start, first) - first, min(stop, end) - first
        if begin < stop:
            chunks.append(Chunk(id_, delta.token_ids[begin:stop], delta.logprobs[begin:stop], version, epoch=epoch))
    if delta.finish is not None:
        if not chunks:
            chunks = [Chunk(id_, [], [], delta.starts[-1][1], epoch=delta.starts[-1][0])]
        chunks[-1] = msgspec.structs.replace(chunks[-1], finish=delta.finish)
    return chunks

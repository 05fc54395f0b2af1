"""A rollout engine under the gate's eyes: the real one, which also ends requests and gives groups up at random, and notes what it loads and makes.

Notes are lines of JSON that are written before the worker hears of anything, so that those of a killed replica are whole.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from asyncflow.contracts.rollout import Capacity, Chunk, PauseMode, Request, RolloutEngine
from asyncflow.contracts.weights import WeightsId

GIVE_UP, ABORT = 0.25, 0.3  # of the groups, of the rows; fewer are hit, for many rows end before


class Note(msgspec.Struct):
    """kind: loaded | made | aborted | given_up. `first`: how many tokens of the row came before."""

    kind: str
    version: int = -1
    gid: int = -1
    row: int = -1
    first: int = 0
    tokens: list[int] = []


class Fate(msgspec.Struct):
    """What becomes of a row once it has so many tokens."""

    kind: str
    at: int


class NotedEngine:
    """`give_up(gid)` drops a group at the queue. `seed`: of the faults; each hits a row once at a replica."""

    def __init__(self, engine: RolloutEngine, notes: Path, seed: str, budget: int, give_up: Callable[[int], None], step_s: float) -> None:
        self._engine, self._give_up, self._seed, self._budget, self._step_s = engine, give_up, seed, budget, step_s
        self._notes = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._open: dict[str, int] = {}  # request → tokens of its row so far
        self._fates: dict[tuple[int, int], Fate] = {}

    def _note(self, note: Note) -> None:
        os.write(self._notes, msgspec.json.encode(note) + b"\n")

    def start(self) -> None:
        self._engine.start()

    def generate(self, requests: Sequence[Request]) -> None:
        self._engine.generate(requests)
        for request in requests:
            gid, row, _, made = parts(request.id)
            self._open[request.id] = made
            if made == 0 and (gid, row) not in self._fates:
                self._fates[gid, row] = self._fate(gid, row)

    def _fate(self, gid: int, row: int) -> Fate:
        rng = random.Random(f"{self._seed}/{gid}/{row}")
        kind = "given_up" if row == 0 and rng.random() < GIVE_UP else "aborted" if rng.random() < ABORT else ""
        return Fate(kind, rng.randrange(self._budget - 1))

    def chunks(self, wait_s: float = 0.0) -> list[Chunk]:
        self._strike()
        if self._open:
            time.sleep(self._step_s)
        chunks = self._engine.chunks(wait_s)
        for chunk in chunks:
            gid, row, _, _ = parts(chunk.id)
            first = self._open.get(chunk.id, 0)
            if chunk.token_ids:
                self._note(Note("made", chunk.version, gid, row, first, chunk.token_ids))
            self._open[chunk.id] = first + len(chunk.token_ids)
            if chunk.finish is not None:
                del self._open[chunk.id]
        return chunks

    def _strike(self) -> None:
        for id_, made in list(self._open.items()):
            gid, row, _, _ = parts(id_)
            fate = self._fates.get((gid, row))
            if fate is None or not fate.kind or made < fate.at:
                continue
            self._fates[gid, row] = Fate("", 0)
            self._note(Note(fate.kind, gid=gid, row=row))
            if fate.kind == "aborted":
                self._engine.abort([id_])
            else:
                self._give_up(gid)

    def next_chunk_s(self) -> float:
        return self._engine.next_chunk_s()

    def abort(self, ids: Sequence[str]) -> None:
        self._engine.abort(ids)

    def pause(self, mode: PauseMode = "keep") -> None:
        self._engine.pause(mode)

    def load_weights(self, weights: WeightsId, tensors: Iterable[tuple[str, Any]]) -> None:
        self._engine.load_weights(weights, tensors)
        self._note(Note("loaded", weights.version))

    def resume(self) -> None:
        self._engine.resume()

    @property
    def loaded(self) -> WeightsId | None:
        return self._engine.loaded

    def capacity(self) -> Capacity:
        return self._engine.capacity()

    def release_memory(self) -> None:
        self._engine.release_memory()

    def restore_memory(self) -> None:
        self._engine.restore_memory()

    def close(self) -> None:
        self._engine.close()


def parts(request_id: str) -> tuple[int, int, int, int]:
    """gid, row, fence, tokens that the row had."""
    gid, row, fence, made = map(int, request_id.split("/"))
    return gid, row, fence, made


def read_notes(path: Path) -> Iterator[Note]:
    if path.exists():
        decoder = msgspec.json.Decoder(Note)
        for line in path.read_bytes().splitlines():
            yield decoder.decode(line)

"""A receiver of the benchmark, in a process of its own."""

from __future__ import annotations

import mmap
import threading
import time
from typing import Any

import numpy as np
import torch

from benchmarks.queue_bench.answering import answer
from benchmarks.weights_bench.limits import Copies
from benchmarks.weights_bench.payload import Model, raw
from checkpoint_engine.collective import import_torch
from checkpoint_engine.digest import weights_digest
from checkpoint_engine.receiver import Receiver
from checkpoint_engine.weights_id import WeightsId

ARRIVED_S = 60.0


class Follower:
    def __init__(self) -> None:
        self._joined = 0
        self._receiver: Receiver | None = None

    def ready(self) -> None:
        """Its libraries are loaded: they are no memory of weights, and no part of joining."""
        import_torch()

    def join(self, endpoint: str, collective: bool, spare: int | None = None) -> None:
        """`spare` None: a receiver's default."""
        slots = {} if spare is None else {"spare": spare}
        self._arrivals: dict[int, float] = {}
        self._came = threading.Condition()
        self._joined += 1
        self._receiver = Receiver(f"follower-{id(self)}-{self._joined}", endpoint, on_ready=self._ready, collective=collective, **slots)

    def arrived(self, version: int) -> dict[str, Any]:
        """When this version could be loaded (monotonic), and by which way all of them came."""
        with self._came:
            assert self._came.wait_for(lambda: version in self._arrivals, ARRIVED_S), f"version {version} did not come: {self._arrivals}"
        assert self._receiver is not None
        return {"end": self._arrivals[version], **vars(self._receiver.counters)}

    def join_and_leave(self, endpoint: str) -> dict[str, Any]:
        """From registration until the newest version can be loaded."""
        begin = time.perf_counter()
        self.join(endpoint, collective=False)
        with self._came:
            assert self._came.wait_for(lambda: bool(self._arrivals), ARRIVED_S)
        spent = time.perf_counter() - begin
        ways = self.leave()
        return {"s": spent, **ways}

    def hold(self) -> dict[str, Any]:
        """Take the newest version and let it go, without reading it."""
        assert self._receiver is not None
        with self._receiver.get_weights() as held:
            return {"version": held.weights.version}

    def check(self) -> dict[str, Any]:
        """The digest of the bytes that a loader would see, by reading them once more."""
        assert self._receiver is not None
        with self._receiver.get_weights() as held:
            return {"version": held.weights.version, "whole": weights_digest(held) == held.weights.digest}

    def leave(self) -> dict[str, Any]:
        assert self._receiver is not None
        self._receiver.close()
        return dict(vars(self._receiver.counters))

    def limits(self, model: dict[str, int]) -> None:
        """A version in shared memory of this process: what a joiner copies from at best."""
        parts = [raw(tensor) for tensor in Model(**model).tensors(seed=1).values()]
        shared = np.frombuffer(mmap.mmap(-1, sum(part.nbytes for part in parts)), dtype=np.uint8)
        ends = np.cumsum([part.nbytes for part in parts]).tolist()
        places = [shared[end - part.nbytes : end] for end, part in zip(ends, parts, strict=True)]
        for place, part in zip(places, parts, strict=True):
            place[:] = part
        self._copies = Copies(places)

    def fresh_copy(self) -> dict[str, float]:
        begin = time.perf_counter()
        self._copies.into_fresh_pages_with_digest()
        return {"s": time.perf_counter() - begin}

    def _ready(self, weights: WeightsId) -> None:
        with self._came:
            self._arrivals[weights.version] = time.monotonic()
            self._came.notify_all()


if __name__ == "__main__":
    torch.set_num_threads(1)
    answer(Follower())

"""The trainer of the benchmark, in a process of its own: it has the tensors, publishes them, and copies them without an engine for comparison."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.queue_bench.answering import answer
from benchmarks.weights_bench.limits import Copies
from benchmarks.weights_bench.payload import Model, raw
from checkpoint_engine.publisher_client import PublisherClient
from checkpoint_engine.weights_id import WeightsId

PUBLISHED_S = 60.0


class Trainer:
    def make(self, model: dict[str, int]) -> None:
        self._tensors = Model(**model).tensors(seed=0)
        self._version = 0

    def join(self, endpoint: str) -> None:
        self._client = PublisherClient(endpoint)

    def limits(self) -> None:
        self._copies = Copies([raw(tensor) for tensor in self._tensors.values()])

    def publish(self) -> dict[str, Any]:
        """A new version, of another content than the one before: how long it blocked the trainer, of that in the walk alone; `begin`: when it was
        free again (monotonic). Then it waits until the version is served."""
        self._version += 1
        self._walk_s = 0.0
        next(iter(self._tensors.values())).view(torch.int16)[0] = self._version
        self._client.publish(WeightsId("policy", 0, self._version), self._walk())
        begin = time.monotonic()
        weights = self._client.wait_published(WeightsId("policy", 0, self._version), PUBLISHED_S)
        blocked_s = self._client.blocked_s if self._client.deferred == 0 else -1.0
        return {"begin": begin, "version": weights.version, "walk_s": self._walk_s, "blocked_s": blocked_s, "path": self._client.path}

    def memcpy(self) -> dict[str, float]:
        begin = time.perf_counter()
        self._copies.into_warm_shared_memory()
        return {"s": time.perf_counter() - begin}

    def _walk(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Where a sharded trainer would gather."""
        tensors = iter(self._tensors.items())
        while True:
            begin = time.perf_counter()
            item = next(tensors, None)
            self._walk_s += time.perf_counter() - begin
            if item is None:
                return
            yield item


if __name__ == "__main__":
    torch.set_num_threads(1)
    answer(Trainer())

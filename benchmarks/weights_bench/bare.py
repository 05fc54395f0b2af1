"""A rank of a bare `torch.distributed.broadcast` over gloo, in a process of its own: no digests, no versions, one flat warm buffer."""

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist

from benchmarks.queue_bench.answering import answer

TIMEOUT = timedelta(seconds=60)


class Rank:
    def host(self) -> dict[str, int]:
        """The store, in rank 0."""
        self._store = dist.TCPStore("127.0.0.1", 0, None, True, TIMEOUT, wait_for_workers=False)
        return {"port": self._store.port}

    def form(self, port: int, rank: int, world: int, nbytes: int) -> None:
        if rank > 0:
            self._store = dist.TCPStore("127.0.0.1", port, None, False, TIMEOUT)
        dist.init_process_group("gloo", store=self._store, rank=rank, world_size=world, timeout=TIMEOUT)
        self._buffer = torch.full((nbytes,), rank, dtype=torch.uint8)

    def broadcast(self) -> dict[str, float]:
        dist.barrier()
        begin = time.monotonic()
        dist.broadcast(self._buffer, 0)
        end = time.monotonic()
        assert self._buffer[-1] == 0
        return {"begin": begin, "end": end}


if __name__ == "__main__":
    torch.set_num_threads(1)
    answer(Rank())

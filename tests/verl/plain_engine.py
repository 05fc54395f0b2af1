"""A checkpoint engine as verl's own are, without a device: trainer rank 0 broadcasts tensor by tensor over gloo. verl's all want one (cupy, NPUs,
RDMA), so a run on a CPU has nothing to compare ours with but this. No digest, no cache; the one limit is the group's."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

LIMIT = timedelta(seconds=60)
HOST = "127.0.0.1"


@CheckpointEngineRegistry.register("plain")
class PlainEngine(CheckpointEngine):
    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self._is_master = is_master
        self._store: Any = None
        self._group: Any = None
        self._rank = -1

    def prepare(self) -> int | None:
        """The port of a new store, from rank 0."""
        if not self._is_master:
            return None
        self._store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False, timeout=LIMIT)
        return self._store.port

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: Sequence[int | None]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        def part(ranks: list[int]) -> dict[str, list[Any]]:
            return {"rank": ranks, "world": [rollout_world_size + 1] * len(ranks), "port": [metadata[0]] * len(ranks)}

        return part([0] + [-1] * (actor_wg_world_size - 1)), part(list(range(1, rollout_world_size + 1)))

    def init_process_group(self, rank: int, world: int, port: int) -> None:
        self._rank = rank
        if rank < 0:
            return
        store = self._store if rank == 0 else dist.TCPStore(HOST, port, is_master=False, timeout=LIMIT)
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=HOST)]
        options._timeout = LIMIT
        self._store, self._group = store, dist.ProcessGroupGloo(store, rank, world, options)

    def finalize(self) -> None:
        self._group = self._store = None

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        for name, tensor in weights:  # collective: the other trainer ranks walk along
            if self._rank == 0:
                whole = tensor.detach().contiguous()
                self._broadcast_head(pickle.dumps((name, whole.shape, whole.dtype)))
                self._broadcast(whole.view(-1).view(torch.uint8))
        if self._rank == 0:
            self._broadcast_head(b"")

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        while head := await asyncio.to_thread(self._take_head):
            name, shape, dtype = pickle.loads(head)
            tensor = torch.empty(shape, dtype=dtype)
            await asyncio.to_thread(self._broadcast, tensor.view(-1).view(torch.uint8))
            yield name, tensor

    def _broadcast_head(self, head: bytes) -> None:
        self._broadcast(torch.tensor([len(head)]))
        if head:
            self._broadcast(torch.frombuffer(bytearray(head), dtype=torch.uint8))

    def _take_head(self) -> bytes:
        length = torch.zeros(1, dtype=torch.int64)
        self._broadcast(length)
        head = torch.empty(int(length), dtype=torch.uint8)
        if len(head):
            self._broadcast(head)
        return head.numpy().tobytes()

    def _broadcast(self, tensor: torch.Tensor) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        self._group.broadcast([tensor], options).wait()

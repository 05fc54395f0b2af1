"""verl's checkpoint engine "asyncflow": its abstract class over `CollectiveEngine`.

    rollout.checkpoint_engine.backend: asyncflow
    rollout.checkpoint_engine.custom_backend_module: checkpoint_engine.adapters.verl
    rollout.checkpoint_engine.engine_kwargs.asyncflow: {timeout_s: 5.0}

Each sync has a group of its own, made for those that the manager names, so whoever joined or left in between is no matter. Every wait has a
deadline: a rank that is killed or hangs ends the sync with a GroupError within `timeout_s` of being waited for. Nothing is yielded before
the whole version is there and its digests are checked, so a sync that fails leaves the rollout with the weights it had.

Importing this module registers the engine; verl does so in the manager, in the trainer's ranks and in the rollout's workers.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Sequence

import ray
import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from checkpoint_engine.engine import CollectiveEngine, Metadata, Topology
from checkpoint_engine.weights_id import WeightsId

MODEL = "actor"  # one engine carries one model, and verl does not name it


@CheckpointEngineRegistry.register("asyncflow")
class AsyncFlowCheckpointEngine(CheckpointEngine):
    """`bucket_size`: bytes. `is_master`: this is trainer rank 0. `backend`: auto, gloo, nccl or hccl (see `checkpoint_engine.backends`). `host`: an
    address of this node that the others reach; None: the one Ray knows it by. `timeout_s`: how long a rank may be waited for, at most 10.
    `copy_timeout_s`: how long the other trainer ranks wait for rank 0 to take its copy."""

    def __init__(
        self,
        bucket_size: int,
        is_master: bool = False,
        backend: str = "auto",
        host: str | None = None,
        timeout_s: float = 5.0,
        copy_timeout_s: float = 120.0,
    ) -> None:
        address = host or ray.util.get_node_ip_address().strip("[]")
        self._engine = CollectiveEngine(bucket_size, is_master, address, backend, timeout_s, copy_timeout_s)
        self._epoch = int(time.time())
        self.weights: WeightsId | None = None  # that were sent or received last, with their digest

    def prepare(self) -> Metadata:
        """What a failed sync left is given up first: verl finalizes only what went well."""
        self._engine.finalize()
        return self._engine.prepare()

    @classmethod
    def build_topology(cls, actor_wg_world_size: int, rollout_world_size: int, metadata: Sequence[Metadata]) -> tuple[Topology, Topology]:
        return CollectiveEngine.build_topology(actor_wg_world_size, rollout_world_size, metadata)

    def init_process_group(self, rank: int, world_size: int, master_metadata: Metadata) -> None:
        self._engine.init_process_group(rank, world_size, master_metadata)

    def finalize(self) -> None:
        self._engine.finalize()

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> dict[str, float]:
        """The sync's figures, from trainer rank 0 ({} from the others). Raises GroupError, and WalkAbandoned where rank 0 took no copy."""
        began = time.monotonic()
        self.weights = await self._engine.send_weights(weights, self._label(global_steps))
        return {"asyncflow/sync_s": time.monotonic() - began, "asyncflow/version": self.weights.version} if self.weights.digest else {}

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """(name, view into this process's cache: to be read, not written), once all of it is verified. Raises GroupError, DigestMismatch,
        WalkAbandoned where rank 0 sent nothing, and ValueError for another step than the one that verl would call it."""
        received = await self._engine.receive()
        if global_steps not in (None, received.version):
            problem = f"{received} came where global_steps = {global_steps} was announced"
            raise ValueError(f"{problem}: it is not loaded; give send and receive the same step")
        self.weights = received
        async for item in self._engine.get_weights(received):
            yield item

    async def get_weights(self) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """The newest version that was received, without any communication."""
        async for item in self._engine.get_weights():
            yield item

    def _label(self, global_steps: int | None) -> WeightsId:
        """verl may send one step twice, or go back to an earlier one: the epoch, another one each sync and after a restart, keeps them in order."""
        self._epoch += 1
        return WeightsId(MODEL, self._epoch, self._epoch if global_steps is None else global_steps)

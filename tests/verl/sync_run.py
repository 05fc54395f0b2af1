"""Two trainer ranks and three receivers under verl's manager, on Ray: join, leave, a step sent twice, a receiver killed and one stopped on the way.
Prints what happened as JSON. `python sync_run.py FOLDER`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import ray
import torch
from verl.checkpoint_engine import CheckpointEngineManager, CheckpointEngineRegistry
from verl.checkpoint_engine.base import CheckpointEngineWorker
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.config import CheckpointEngineConfig, RolloutConfig

from checkpoint_engine.digest import weights_digest

TIMEOUT_S = 3.0
TENSORS, PAUSE_S = 8, 0.25
CONFIG = {
    "backend": "asyncflow",
    "update_weights_bucket_megabytes": 1,
    "custom_backend_module": "checkpoint_engine.adapters.verl",
    "engine_kwargs": {"asyncflow": {"timeout_s": TIMEOUT_S}},
}


def named(seed: int) -> list[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [(f"layers.{i}.weight", torch.randn(250, 1000, generator=generator)) for i in range(TENSORS)]


class Trainer(Worker):
    """A rank whose walk is collective, as FSDP's is: each tensor is the sum of what the ranks have of it."""

    def __init__(self) -> None:
        super().__init__()
        initialize_global_process_group_ray()
        import checkpoint_engine.adapters.verl  # noqa: F401

        self.seed, self.pause_s = 0, 0.0
        self.engine = CheckpointEngineRegistry.new(
            "asyncflow", bucket_size=1 << 20, is_master=torch.distributed.get_rank() == 0, **CONFIG["engine_kwargs"]["asyncflow"]
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def train(self, seed: int, pause_s: float) -> None:
        self.seed, self.pause_s = seed, pause_s

    def walk(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in named(self.seed):
            time.sleep(self.pause_s)
            whole = tensor.clone() if torch.distributed.get_rank() == 0 else torch.zeros_like(tensor)
            torch.distributed.all_reduce(whole)
            yield name, whole

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> dict[str, float]:
        return await self.engine.send_weights(self.walk(), global_steps=global_steps)

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def execute_checkpoint_engine(self, method: str, *arguments: Any, **settings: Any) -> Any:
        return getattr(self.engine, method)(*arguments, **settings)


class Server:
    """What a rollout's server adapter is to the worker: it takes what is yielded."""

    def __init__(self) -> None:
        self.loaded: tuple[int | None, str] = (None, "")
        self.yielded = 0

    async def update_weights(self, weights: Any, global_steps: int | None = None, **_: Any) -> None:
        got = []
        async for name, tensor in weights:
            self.yielded += 1
            got.append((name, tensor.clone()))
        self.loaded = global_steps, weights_digest(got)


class Rollout(CheckpointEngineWorker):
    def __init__(self) -> None:
        super().__init__(RolloutConfig(name="vllm", checkpoint_engine=CheckpointEngineConfig(**CONFIG)), None, Server())

    def pid(self) -> int:
        return os.getpid()

    def state(self) -> tuple[int | None, str, int]:
        return *self.server_adapter.loaded, self.server_adapter.yielded


class Replica:
    """What the manager asks of a replica; there is nothing to abort or to free."""

    def __init__(self, worker: Any) -> None:
        self.workers = [worker]
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        async def ask(**_: Any) -> None:
            self.asked.append(name)

        return ask

    def state(self) -> list[Any]:
        return list(ray.get(self.workers[0].state.remote(), timeout=20))


def group(cls: type, count: int) -> RayWorkerGroup:
    pool = RayResourcePool([count], max_colocate_count=1)
    return RayWorkerGroup(resource_pool=pool, ray_cls_with_init=RayClassWithInitArgs(cls=ray.remote(cls)), device_name="cpu")


def timed(manager: CheckpointEngineManager, step: int) -> tuple[float, str]:
    """(seconds, the error's text or "")."""
    began = time.monotonic()
    try:
        asyncio.run(_sync(manager, step))
    except Exception as error:
        return time.monotonic() - began, f"{type(error).__name__}: {error}"
    return time.monotonic() - began, ""


async def _sync(manager: CheckpointEngineManager, step: int) -> Any:
    return await manager.update_weights(step)


def main(folder: str) -> None:
    ray.init(num_cpus=16, num_gpus=8, object_store_memory=100 << 20, include_dashboard=False, _temp_dir=folder, logging_level="WARNING")
    trainers, rollouts = group(Trainer, 2), group(Rollout, 3)
    replicas = [Replica(worker) for worker in rollouts.workers]
    pids = ray.get([worker.pid.remote() for worker in rollouts.workers])
    manager = CheckpointEngineManager(CheckpointEngineConfig(**CONFIG), trainers, replicas[:2])
    found: dict[str, Any] = {"expected": {seed: weights_digest(named(seed)) for seed in range(10)}, "timeout_s": TIMEOUT_S}

    def sync(name: str, step: int, seed: int, pause_s: float = 0.0) -> None:
        trainers.train(seed, pause_s)
        took, error = timed(manager, step)
        print(f"{name}: {took:.1f} s {error[:300]}", file=sys.stderr, flush=True)
        found[name] = {"took_s": took, "error": error, "states": [replica.state() for replica in alive]}

    alive = list(replicas)
    trainers.train(0, 0.0)
    found["metrics"] = asyncio.run(_sync(manager, 0))
    found["first"] = {"states": [replica.state() for replica in alive]}
    manager.add_replicas([replicas[2]])
    sync("joined", 1, 1)
    manager.remove_replicas([replicas[0]])
    sync("left", 2, 2)
    sync("again", 2, 3)
    sync("slow", 3, 4, pause_s=2 * TIMEOUT_S / TENSORS)

    threading.Timer(TENSORS * PAUSE_S / 2, ray.kill, [rollouts.workers[1]]).start()
    alive.remove(replicas[1])
    sync("killed", 4, 5, PAUSE_S)
    manager.remove_replicas([replicas[1]])
    sync("after_kill", 5, 6)

    manager.add_replicas([replicas[0]])
    sync("back", 6, 7)
    threading.Timer(TENSORS * PAUSE_S / 2, os.kill, [pids[2], signal.SIGSTOP]).start()
    alive.remove(replicas[2])
    sync("stopped", 7, 8, PAUSE_S)
    os.kill(pids[2], signal.SIGKILL)
    manager.remove_replicas([replicas[2]])
    sync("after_stop", 8, 9)
    found["asked"] = replicas[0].asked
    print(json.dumps(found))
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])

"""Inside vLLM's worker processes: from shared memory into the model. vLLM imports this module there, as its `worker_extension_cls`.

vLLM's engine process outlives a rollout worker that was killed with -9, and its own workers with it (seen with vLLM 0.32). So these watch the rollout
worker and the engine process, and when either is gone they end the other of vLLM's, and themselves.

The way in is vLLM's own layerwise reload: every layer is loaded, processed (packed, quantised) and copied over the old one, whatever the platform
and the tensor parallelism. What it leaves undone is done here.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

import msgspec
import torch
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform

from asyncflow.engines.rollout.vllm.arguments import OWNER
from asyncflow.engines.rollout.vllm.staging import Address, overlapping, read_staged
from asyncflow.engines.rollout.vllm.traces import folder_here, ident_here, remove_traces
from shared_arena import Arena
from transfer_queue.operation.parent import ORPHANED

BACKEND = "asyncflow-shared-memory"  # vLLM's name for what is registered here


@dataclass
class NoInit(WeightTransferInitInfo):
    """There is nobody to meet first."""


@dataclass
class StagedUpdate(WeightTransferUpdateInfo):
    staged: str  # JSON of `staging.Address`


class SharedMemoryTransfer(WeightTransferEngine[NoInit, StagedUpdate]):
    """One update is one complete set; the process that staged it has checked it against the model.

    The memory it comes from is the host cache's, maybe the publisher's, and other versions come into it later. So it is mapped for one load and only
    for that, privately: what a loader does in place to what it reads, nobody else sees, and no later load either.
    """

    init_info_cls = NoInit
    update_info_cls = StagedUpdate

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: torch.nn.Module) -> None:
        super().__init__(config, vllm_config, device, model)
        self._source: Arena | None = None  # mapped while a set is loaded: vLLM loads some layers only when the update is finished
        self._follows = _followers(model)
        _end_with_owner()

    def init_transfer_engine(self, init_info: NoInit) -> None:
        """Nothing to set up."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: StagedUpdate) -> None:
        """Raises RuntimeError when the set left a parameter as it was: the model is then of two versions, and the engine must be started anew."""
        address = msgspec.json.decode(update_info.staged, type=Address)
        self._source = Arena.attach(address.arena, private=True)
        loaded = self.model.load_weights(read_staged(address.manifest, self._source))
        missing = sorted(name for name, _ in self.model.named_parameters() if name not in loaded and name not in self._follows)
        if missing:
            label = f"{address.manifest.weights}: vLLM's {missing[0]!r} and {len(missing) - 1} more"
            raise RuntimeError(f"{label} got nothing: the model is of two versions")

    @torch.no_grad()
    def finish_weight_update(self) -> None:
        """Raises RuntimeError when the model computes with the memory that the set came from: it would change with a later version."""
        finalize_layerwise_reload(self.model, self.model_config)
        if current_platform.is_cpu():
            _pack_followers(self.model)
        if self._source is not None and (lent := overlapping(self.model, self._source)):
            raise RuntimeError(f"vLLM's {lent[0]!r} and {len(lent) - 1} more lie in the memory they were loaded from, where the next version comes")
        self.shutdown()

    def shutdown(self) -> None:
        if self._source is not None:
            self._source.close()
        self._source = None


def _followers(model: torch.nn.Module) -> set[str]:
    """Parameters that are another one under a second name (a tied output layer): no set has them under this name."""
    named = dict(model.named_parameters(remove_duplicate=False))
    first: dict[int, str] = {}
    return {name for name, parameter in named.items() if first.setdefault(id(parameter), name) != name}


def _pack_followers(model: torch.nn.Module) -> None:
    """On the CPU an embedding multiplies with a packed copy of its weight. The reload packs what got weights of its own, so a tied output layer would
    go on with the old copy (seen with vLLM 0.32: wrong tokens and no error)."""
    seen: set[int] = set()
    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding):
            if id(module.weight) in seen:
                module.quant_method.process_weights_after_loading(module)
            seen.add(id(module.weight))


def _end_with_owner() -> None:
    """Watch the rollout worker and, from a worker process of its own, vLLM's engine process: neither may leave the memory of a model behind."""
    owner, engine = os.environ.get(OWNER), multiprocessing.parent_process()  # where the engine is the worker, its parent is the owner
    if owner is None or int(owner) == os.getpid() or engine is None or engine.pid is None:
        return  # somebody else's vLLM
    watched = [_descriptor(int(owner)), _descriptor(engine.pid)]
    if os.getppid() != engine.pid:
        watched[1] = None  # it is gone, and its number may be another process's
    threading.Thread(target=_watch, args=watched, name="owner watch", daemon=True).start()


def _descriptor(pid: int) -> int | None:
    """None: it is gone."""
    with contextlib.suppress(ProcessLookupError):
        return os.pidfd_open(pid)
    return None


def _watch(owner: int | None, engine: int | None) -> None:
    if owner is not None and engine is not None:
        wait([owner, engine])  # no deadline: their lives are the deadline
    if engine is not None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(engine, signal.SIGKILL)  # asked politely, it waits for a reader that is gone
    remove_traces(ident_here(), folder_here())
    os._exit(ORPHANED)


class WorkerExtension:
    """Mixed into vLLM's worker class, which makes vLLM import this module."""

    def asyncflow_ident(self) -> str:
        return ident_here()


# It warns at every update of layers without weights of their own; whether a set is complete is checked here.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
WeightTransferEngineFactory.register_engine(BACKEND, SharedMemoryTransfer)

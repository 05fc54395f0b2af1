"""One preloaded server that every local process is forked from: torch and transformers are imported once, not once a worker (and not at all where no
worker computes with them)."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.context import ForkServerContext
from typing import TYPE_CHECKING

from asyncflow.config.algorithm import TORCH
from asyncflow.config.rollout import EMBEDDED

if TYPE_CHECKING:
    from asyncflow.config import RunConfig

TORCH_MODULES = ("torch", "safetensors.torch", "transformers.models.qwen2.modeling_qwen2")
FIRST = "asyncflow.launch.server_path"  # before anything else: it gives the environment back
PRELOAD = (
    "asyncflow.worker",
    "asyncflow.workers.roles",
    "asyncflow.launch.child",
    "asyncflow.launch.controller",
    "asyncflow.launch.prepare",
    "checkpoint_engine.publisher",
    "asyncflow.launch.shard",
)
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def context(config: RunConfig) -> ForkServerContext:
    """The start method, with the preload list and the thread variables set. The server itself starts with its first child, once a launcher process.

    Thread variables are read when the libraries are imported, so the server must have them; a worker with more threads raises its own number.
    """
    for variable in THREAD_VARIABLES:
        os.environ[variable] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its thread pool does not survive a fork
    os.environ.setdefault("TQDM_DISABLE", "1")  # progress bars in log files
    forkserver = multiprocessing.get_context("forkserver")
    forkserver.set_forkserver_preload(preload(config))
    return forkserver


def preload(config: RunConfig) -> list[str]:
    """Modules that the server imports: ours, and those of the recipe's own code."""
    torch = config.rollout.engine == EMBEDDED or config.algorithm.engine == TORCH
    update = config.algorithm.loss if config.algorithm.engine == TORCH else config.algorithm.engine
    paths = [stage.compute for stage in config.stages.values()] + [config.rollout.engine, update, config.task.path]
    return [FIRST, *(TORCH_MODULES if torch else ()), *PRELOAD, *dict.fromkeys(path.partition(":")[0] for path in paths if ":" in path)]

"""What vLLM is started with, and what is asked of it for one attempt."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import msgspec

from asyncflow.config.errors import closest
from asyncflow.engines.rollout.vllm.settings import WHERE, VllmSettings
from asyncflow.engines.rollout.vllm.table import Attempt
from asyncflow.engines.rollout.vllm.traces import SOCKETS

OWNER = "ASYNCFLOW_VLLM_OWNER"  # variable: process id of the rollout worker, for vLLM's processes to end with it
EXTENSION = "asyncflow.engines.rollout.vllm.transfer.WorkerExtension"
OURS = (  # of AsyncEngineArgs: set here, or the contract would not hold
    "model",
    "max_model_len",
    "max_num_seqs",
    "tensor_parallel_size",
    "load_format",
    "skip_tokenizer_init",
    "logprobs_mode",
    "worker_extension_cls",
    "weight_transfer_config",
    "generation_config",
    "stream_interval",
    "speculative_config",
)


class Shape(msgspec.Struct, frozen=True):
    """What the run's other settings say."""

    model_dir: Path
    dtype: str
    slots: int  # sequences that decode at once
    width: int  # most tokens of a sequence, prompt and response


def set_environment(settings: VllmSettings, folder: str) -> None:
    """vLLM reads its variables when it is imported or starts, and its processes inherit them. What is set already, stays, but for what belongs to
    this engine alone; the settings' own come first. `folder`: for the sockets of its processes."""
    own = {OWNER: str(os.getpid()), SOCKETS: folder, "VLLM_ENGINE_READY_TIMEOUT_S": str(max(1, round(settings.start_s)))}
    os.environ.update(own | settings.environment)
    defaults = {
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a worker has threads, which do not survive a fork
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # on the CPU: else it takes the cores of everybody else
        "MALLOC_MMAP_THRESHOLD_": "4294967296",  # bytes; glibc's malloc: a reload's copies of layers come out of its heap,
        "MALLOC_TRIM_THRESHOLD_": "8589934592",  # which keeps the pages, so that they are warm
    }
    if settings.eager:
        defaults["TORCH_COMPILE_DISABLE"] = "1"  # vLLM compiles its count of ranks even so, for 20 s
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def forget_environment(folder: str) -> None:
    """What named an engine that has ended: whatever this process starts next would inherit the name of a folder that is gone."""
    if os.environ.get(SOCKETS) == folder:  # else another engine is there by now
        del os.environ[SOCKETS]
        os.environ.pop(OWNER, None)


def engine_arguments(shape: Shape, settings: VllmSettings) -> Any:
    """vLLM's AsyncEngineArgs. Raises ValueError for an argument that is not the user's."""
    from vllm.config import WeightTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    from asyncflow.engines.rollout.vllm.transfer import BACKEND

    if taken := [name for name in settings.arguments if name in OURS]:
        rule = "the engine sets it itself, or its contract would not hold"
        raise ValueError(f"{WHERE}.arguments.{taken[0]} = {settings.arguments[taken[0]]!r}: {rule}; vLLM is not started; remove it")
    known = [field.name for field in dataclasses.fields(AsyncEngineArgs)]
    if unknown := [name for name in settings.arguments if name not in known]:
        near = closest(unknown[0], known)
        rule = f"vLLM's AsyncEngineArgs has no such argument{f', did you mean {near!r}?' if near is not None else ''}"
        raise ValueError(f"{WHERE}.arguments.{unknown[0]} = {settings.arguments[unknown[0]]!r}: {rule}; vLLM is not started; rename or remove it")
    given = {
        "model": str(shape.model_dir),
        "dtype": shape.dtype,
        "max_model_len": shape.width,
        "max_num_seqs": shape.slots,
        "tensor_parallel_size": settings.tensor_parallel,
        "enforce_eager": settings.eager,
        "kv_cache_memory_bytes": settings.kv_cache_bytes,
        "enable_prefix_caching": settings.prefix_caching,
        "load_format": "dummy",  # weights come with the first load
        "skip_tokenizer_init": True,  # token ids in, token ids out
        "generation_config": "vllm",  # no sampling defaults from the model's folder
        "logprobs_mode": "processed_logprobs",  # of the distribution that is sampled from
        "worker_extension_cls": EXTENSION,
        "weight_transfer_config": WeightTransferConfig(backend=BACKEND),
        "disable_log_stats": True,
        "seed": 0,
    }
    return AsyncEngineArgs(**(given | settings.arguments | _of_the_cpu(settings)))


def _of_the_cpu(settings: VllmSettings) -> dict[str, Any]:
    """There vLLM dies where it prefills a seeded request in parts: it sets the generator back, and torch's for the CPU has no way to (seen with 0.28
    and 0.32). Raises ValueError where the user asks for it."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return {}
    if settings.arguments.get("enable_chunked_prefill"):
        rule = "on a CPU vLLM ends where it prefills a seeded request in parts"
        raise ValueError(f"{WHERE}.arguments.enable_chunked_prefill = True: {rule}; it is not started; remove it")
    return {"enable_chunked_prefill": False}


def sampling(attempt: Attempt, stops: tuple[int, ...]) -> Any:
    """vLLM's SamplingParams of an attempt. `stops` end every response."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    wanted = attempt.request.sampling
    return SamplingParams(
        temperature=wanted.temperature,
        seed=attempt.seed,
        max_tokens=attempt.request.budget_left,
        stop_token_ids=[*dict.fromkeys((*wanted.stop_token_ids, *stops))],
        ignore_eos=True,  # what stops is said here alone
        logprobs=0,  # of the sampled token
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )

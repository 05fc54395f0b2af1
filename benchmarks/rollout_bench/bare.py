"""vLLM's own `AsyncLLM` with nothing of ours around it, in a process of its own."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import msgspec

from benchmarks.queue_bench.answering import answer
from benchmarks.rollout_bench.scope import TEMPERATURE, Scope

ENVIRONMENT = {  # what the worker's engine has, too
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "TORCH_COMPILE_DISABLE": "1",
}


class Bare:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._llm: Any = None

    def start(self, folder: str, scope: dict[str, Any]) -> None:
        self._scope = msgspec.convert(scope, Scope)
        self._loop.run_until_complete(self._start(folder))

    async def _start(self, folder: str) -> None:
        os.environ.update(ENVIRONMENT)
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        arguments = AsyncEngineArgs(
            model=folder,
            dtype="float32",
            max_model_len=self._scope.prompt_tokens + self._scope.response_tokens,
            max_num_seqs=self._scope.slots,
            enforce_eager=True,
            kv_cache_memory_bytes=self._scope.kv_bytes,
            skip_tokenizer_init=True,
            generation_config="vllm",
            logprobs_mode="processed_logprobs",
            disable_log_stats=True,
            seed=0,
        )
        self._llm = AsyncLLM.from_engine_args(arguments)

    def turn(self, number: int, first_gid: int) -> dict[str, Any]:
        """All requests at once, from the first one's submission until the last one's end. `first_gid`: of the groups that are these prompts there."""
        prompts = [prompt for prompt in self._scope.prompts(number) for _ in range(self._scope.rows)]
        seeds = self._scope.seeds(first_gid)
        begin = time.monotonic()
        lengths = self._loop.run_until_complete(self._all(number, prompts, seeds))
        return {"seconds": time.monotonic() - begin, "tokens": sum(lengths), "rows": len(lengths)}

    async def _all(self, number: int, prompts: list[list[int]], seeds: list[int]) -> list[int]:
        each = enumerate(zip(prompts, seeds, strict=True))
        return await asyncio.gather(*(self._one(f"{number}/{index}", prompt, seed) for index, (prompt, seed) in each))

    async def _one(self, key: str, prompt: list[int], seed: int) -> int:
        """Tokens of the response."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=TEMPERATURE,
            seed=seed,
            max_tokens=self._scope.response_tokens,
            stop_token_ids=list(self._scope.stop_token_ids),
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        tokens = 0
        async for output in self._llm.generate({"prompt_token_ids": prompt}, params, key):
            tokens += len(output.outputs[0].token_ids)
        return tokens

    def close(self) -> None:
        if self._llm is not None:
            self._llm.shutdown()


if __name__ == "__main__":
    bare = Bare()
    try:
        answer(bare)
    finally:
        bare.close()

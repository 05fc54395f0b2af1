"""What a fresh vLLM makes of some weights: started on Hugging Face files, once for each folder, with nothing of ours in it.

`python fresh.py ASKED ANSWERS`: JSON files. vLLM is imported once, each folder gets a process of its own that is forked before vLLM has any thread.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "TORCH_COMPILE_DISABLE": "1",
}


def answer(folder: str, prompts: list[list[int]], tokens: int) -> list[tuple[list[int], list[float]]]:
    """Greedy: (token ids, log-probabilities) of each prompt."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=folder,
        dtype="float32",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=128,
        kv_cache_memory_bytes=64 << 20,
        logprobs_mode="processed_logprobs",
        generation_config="vllm",
        distributed_executor_backend="uni",
        disable_log_stats=True,
    )
    params = SamplingParams(temperature=0.0, max_tokens=tokens, logprobs=0, detokenize=False, ignore_eos=True)
    outputs = [output.outputs[0] for output in llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)]
    return [(list(o.token_ids), [step[token].logprob for step, token in zip(o.logprobs, o.token_ids, strict=True)]) for o in outputs]


def in_its_own_process(folder: str, prompts: list[list[int]], tokens: int) -> list[tuple[list[int], list[float]]]:
    with tempfile.TemporaryDirectory() as scratch:
        found = Path(scratch) / "found.json"
        if (pid := os.fork()) == 0:
            status = 1
            try:
                found.write_text(json.dumps(answer(folder, prompts, tokens)))
                status = 0
            finally:
                os._exit(status)  # not back into the parent's code, whatever happened
        _, status = os.waitpid(pid, 0)
        if status:
            raise RuntimeError(f"a fresh vLLM on {folder} ended with status {status}")
        return json.loads(found.read_text())


def main(asked: str, answers: str) -> None:
    import vllm.entrypoints.llm
    import vllm.v1.engine.llm_engine  # noqa: F401 -- imported once for all

    ask = json.loads(Path(asked).read_text())
    Path(answers).write_text(json.dumps([in_its_own_process(folder, ask["prompts"], ask["tokens"]) for folder in ask["folders"]]))


if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    main(*sys.argv[1:])

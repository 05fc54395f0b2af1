"""The recipe on a tiny model and the CPU, as a user calls it: what a run needs is made, and its records are read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.verl.children import ENVIRONMENT, ROOT
from tests.verl.tiny import make_tiny
from tests.verl.v1_run import make_data

BATCH, SAMPLES, LENGTH = 8, 4, 16


class Run(NamedTuple):
    code: int
    output: str
    folder: Path

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return found

    @property
    def steps(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-1500:]}" for path in sorted((self.folder / "logs").glob("*.log")))


def settings(model: Path, data: Path, steps: int, threshold: int) -> list[str]:
    actor, ref, rollout = (f"actor_rollout_ref.{part}" for part in ("actor", "ref", "rollout"))
    engines = [
        line
        for part in (actor, ref)
        for line in (
            f"{part}.fsdp_config.use_torch_compile=false",
            f"{part}.fsdp_config.dtype=float32",
            f"+{part}.fsdp_config.mixed_precision={{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}}",
        )
    ]
    return [
        "trainer.device=cpu",
        f"trainer.total_training_steps={steps}",
        "trainer.n_gpus_per_node=1",
        f"trainer.v1.sampler.max_off_policy_threshold={threshold}",
        f"data.train_files={data}",
        f"data.val_files={data}",
        f"data.train_batch_size={BATCH}",
        "data.max_prompt_length=48",
        f"data.max_response_length={LENGTH}",
        "data.seed=1",
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.model.use_remove_padding=false",
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        *engines,
        f"{actor}.use_torch_compile=false",
        f"{actor}.ppo_micro_batch_size_per_gpu={BATCH * SAMPLES}",
        f"{actor}.optim.lr=1e-2",
        f"{rollout}.n={SAMPLES}",
        f"{rollout}.n_gpus_per_node=1",
        f"{rollout}.dtype=float32",
        f"{rollout}.tensor_model_parallel_size=1",
        f"{rollout}.enforce_eager=true",
        f"{rollout}.max_num_seqs=32",
        f"{rollout}.max_num_batched_tokens=1024",
        f"{rollout}.log_prob_micro_batch_size_per_gpu={BATCH * SAMPLES}",
        f"{ref}.log_prob_micro_batch_size_per_gpu={BATCH * SAMPLES}",
        f"reward.custom_reward_function.path={ROOT / 'tests/verl/toy_reward.py'}",
        "+asyncflow.rollout.options.kv_cache_bytes=33554432",
        "+asyncflow.limits.start_s=400",
        "+asyncflow.limits.stall_s=300",
        "+asyncflow.limits.lease_s=120",
    ]


Meanwhile = Callable[[Path, subprocess.Popen[bytes]], None]  # (the run's directory, its process)


def recipe(
    out: Path,
    *more: str,
    steps: int = 30,
    threshold: int = 2,
    limit_s: int = 480,
    options: tuple[str, ...] = (),
    meanwhile: Meanwhile | None = None,
    **environment: str,
) -> Run:
    """Runs `python -m recipes.verl.main` to its end. `threshold`: verl's, one more than the staleness; `meanwhile` is called once it has begun."""
    out.mkdir(parents=True, exist_ok=True)
    model, data = make_tiny(out / "model"), make_data(out)
    folder, said = out / "run", out / "said.txt"
    command = ["timeout", "--kill-after=20", str(limit_s), sys.executable, "-m", "recipes.verl.main", "--run-dir", str(folder), *options]
    everything = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT), **environment}
    with said.open("wb") as log:
        process = subprocess.Popen(
            [*command, *settings(model, data, steps, threshold), *more], cwd=out, env=everything, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            if meanwhile is not None:
                meanwhile(folder, process)
            code = process.wait(limit_s + 40)
        finally:
            process.terminate()  # `timeout` passes it on
            process.wait()
    return Run(code, said.read_text(errors="replace")[-8000:], folder)

"""verl's own V1 trainer, unmodified, on a tiny model and the CPU: `python -m tests.verl.v1_run --mode sync --steps 3 --queue baseline --out FOLDER`.

Makes the model and the data, starts `verl.trainer.main_ppo` with what a CPU needs, and prints one JSON line: the reward of each step, its seconds,
and whose `transfer_queue` it was. `--queue baseline`: the real TransferQueue 0.1.11, in the folder that make venv-verl puts it in, and nothing of our
plugin but the platform; `ours`: the transfer_queue of this project.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.verl.children import ENVIRONMENT, ROOT
from tests.verl.tiny import make_tiny

BASELINE = ROOT / ".venv-verl/baseline"
PROMPTS, BATCH, SAMPLES, LENGTH = 64, 8, 4, 16


def make_data(folder: Path) -> Path:
    """Chats that ask for a digit."""
    import pandas

    rows = [
        {
            "data_source": "digits",
            "prompt": [{"role": "user", "content": f"digit {i % 3}"}],
            "reward_model": {"style": "rule", "ground_truth": str(i % 3)},
            "extra_info": {"index": i},
        }
        for i in range(PROMPTS)
    ]
    pandas.DataFrame(rows).to_parquet(folder / "train.parquet")
    return folder / "train.parquet"


def overrides(mode: str, steps: int, model: Path, data: Path, temporary: str, cpus: int) -> list[str]:
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    return [
        f"trainer.v1.trainer_mode={mode}",
        f"trainer.total_training_steps={steps}",
        "trainer.total_epochs=100",
        "trainer.n_gpus_per_node=1",
        "trainer.device=cpu",
        "trainer.logger=[console,file]",
        "trainer.val_before_train=false",
        "trainer.resume_mode=disable",
        "algorithm.adv_estimator=grpo",
        f"data.train_files={data}",
        f"data.val_files={data}",
        f"data.train_batch_size={BATCH}",
        "data.max_prompt_length=48",
        f"data.max_response_length={LENGTH}",
        "data.dataloader_num_workers=0",
        "data.seed=1",
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.model.use_remove_padding=false",
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        f"{actor}.strategy=fsdp2",
        f"{actor}.fsdp_config.strategy=fsdp2",
        f"{actor}.fsdp_config.use_torch_compile=false",
        f"{actor}.fsdp_config.dtype=float32",
        "+" + f"{actor}.fsdp_config.mixed_precision={{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}}",
        f"{actor}.use_torch_compile=false",
        f"{actor}.ppo_mini_batch_size={BATCH}",
        f"{actor}.ppo_micro_batch_size_per_gpu={BATCH * SAMPLES}",
        f"{actor}.optim.lr=3e-3",
        f"{rollout}.name=vllm",
        f"{rollout}.n={SAMPLES}",
        f"{rollout}.dtype=float32",
        f"{rollout}.tensor_model_parallel_size=1",
        f"{rollout}.enforce_eager=true",
        f"{rollout}.free_cache_engine=false",
        f"+{rollout}.enable_sleep_mode=false",
        f"{rollout}.load_format=auto",
        f"{rollout}.max_model_len=128",
        f"{rollout}.max_num_seqs=64",
        f"{rollout}.max_num_batched_tokens=1024",
        f"{rollout}.log_prob_micro_batch_size_per_gpu={BATCH * SAMPLES}",
        f"{rollout}.agent.num_workers=1",
        f"{rollout}.checkpoint_engine.update_weights_bucket_megabytes=4",
        "reward.num_workers=1",
        f"reward.custom_reward_function.path={ROOT / 'tests/verl/toy_reward.py'}",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        f"ray_kwargs.ray_init.num_cpus={cpus}",
        "+ray_kwargs.ray_init.num_gpus=2",
        "+ray_kwargs.ray_init.include_dashboard=false",
        "+ray_kwargs.ray_init.object_store_memory=200000000",
        f"+ray_kwargs.ray_init._temp_dir={temporary}",
    ]


def environment(queue: str, out: Path) -> dict[str, str]:
    first = [str(BASELINE)] if queue == "baseline" else []
    added = {"PYTHONPATH": os.pathsep.join([*first, str(ROOT)]), "VERL_FILE_LOGGER_PATH": str(out / "metrics.jsonl"), "HYDRA_FULL_ERROR": "1"}
    if queue == "baseline":
        added |= {"VERL_USE_EXTERNAL_PLUGINS": "none", "VERL_USE_EXTERNAL_MODULES": "recipes.verl.platform.only"}
    return {**os.environ, **ENVIRONMENT, **added}


def figures(out: Path) -> dict[str, object]:
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rows = [entry["data"] for entry in steps if "critic/rewards/mean" in entry["data"]]
    return {"rewards": [row["critic/rewards/mean"] for row in rows], "step_s": [row.get("timing_s/step") for row in rows]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="sync")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--queue", choices=["baseline", "ours"], default="baseline")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit-s", type=int, default=400)
    parser.add_argument("more", nargs="*", help="further settings of verl, KEY=VALUE")
    asked = parser.parse_args()
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    model, data = make_tiny(out / "model"), make_data(out)
    everything = environment(asked.queue, out)
    ask = [sys.executable, "-c", "from importlib.util import find_spec; print(find_spec('transfer_queue').origin)"]
    whose = subprocess.run(ask, env=everything, cwd=out, capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as temporary:
        settings = overrides(asked.mode, asked.steps, model, data, temporary, cpus=32)
        command = ["timeout", "--kill-after=20", str(asked.limit_s), sys.executable, "-m", "verl.trainer.main_ppo", *settings, *asked.more]
        with (out / "log.txt").open("w") as log:
            done = subprocess.run(command, env=everything, cwd=out, stdout=log, stderr=subprocess.STDOUT)
    if done.returncode:
        lines = [line for line in (out / "log.txt").read_text().splitlines() if re.search(r"\w(Error|Exception)\b", line)]
        sys.exit(f"verl ended with {done.returncode}; see {out / 'log.txt'}\n" + "\n".join(lines[-5:]))
    print(json.dumps({"transfer_queue": whose, **figures(out)}))


if __name__ == "__main__":
    main()

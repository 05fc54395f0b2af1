"""What verl's V1 trainer is told for a run with a tiny model on a CPU: data, settings, environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.verl.children import ENVIRONMENT, ROOT
from tests.verl.leftovers import MARK
from tests.verl.toy_reward import PLACES

BASELINE = ROOT / ".venv-verl/baseline"
PROMPTS, BATCH, SAMPLES, LENGTH = 64, 8, 4, PLACES
ENGINES = {
    "plain": ["custom_backend_module=tests.verl.plain_engine"],
    "asyncflow": ["custom_backend_module=checkpoint_engine.adapters.verl", "+engine_kwargs.asyncflow.timeout_s=10.0"],
}


@dataclass
class V1:
    """A run: `mode` of the V1 trainer, up to `steps`; whose `queue` (baseline, ours); the checkpoint engine where trainer and rollouts are
    separate; every how many steps it saves into `checkpoints` (0: never), and whether it goes on from there; `timed`: look often for what is
    there, and count the seconds in the queue."""

    mode: str
    steps: int
    queue: str
    engine: str
    out: Path
    checkpoints: Path
    save_every: int = 0
    resume: bool = False
    timed: bool = False

    @property
    def log(self) -> Path:
        return self.out / "log.txt"

    @property
    def metrics(self) -> Path:
        return self.out / "metrics.jsonl"

    @property
    def times(self) -> Path:
        return self.out / "queue_times"


def make_data(folder: Path) -> Path:
    """Chats that ask for digits."""
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


def overrides(asked: V1, model: Path, data: Path, temporary: str, cpus: int = 32) -> list[str]:
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    return [
        f"trainer.v1.trainer_mode={asked.mode}",
        f"trainer.total_training_steps={asked.steps}",
        "trainer.total_epochs=100",
        "trainer.n_gpus_per_node=1",
        "trainer.device=cpu",
        "trainer.logger=[console,file]",
        "trainer.val_before_train=false",
        f"trainer.resume_mode={'auto' if asked.resume else 'disable'}",
        f"trainer.save_freq={asked.save_every or -1}",
        f"trainer.default_local_dir={asked.checkpoints}",
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
        *(separate(asked.engine) if asked.mode == "separate_async" else []),
        *(quick(asked.mode) if asked.timed else []),
        "reward.num_workers=1",
        f"reward.custom_reward_function.path={ROOT / 'tests/verl/toy_reward.py'}",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        f"ray_kwargs.ray_init.num_cpus={cpus}",
        "+ray_kwargs.ray_init.num_gpus=2",
        "+ray_kwargs.ray_init.include_dashboard=false",
        "+ray_kwargs.ray_init.object_store_memory=200000000",
        f"+ray_kwargs.ray_init._temp_dir={temporary}",
    ]


def separate(engine: str) -> list[str]:
    """One rollout of its own, none beside the trainer; weights go there after every step."""
    rollout = "actor_rollout_ref.rollout"
    settings = [f"backend={engine}", *ENGINES[engine]]
    return [
        "trainer.v1.separate_async.parameter_sync_step=1",
        "actor_rollout_ref.hybrid_engine=false",
        f"{rollout}.nnodes=1",
        f"{rollout}.n_gpus_per_node=1",
        *("+" * setting.startswith("+") + f"{rollout}.checkpoint_engine.{setting.lstrip('+')}" for setting in settings),
    ]


def quick(mode: str) -> list[str]:
    sampler = "trainer.v1.sampler.custom_sampler"
    return [f"{sampler}.path={ROOT / 'tests/verl/quick_sampler.py'}", f"{sampler}.name={'Quick' if mode == 'sync' else 'QuickAsync'}"]


def environment(asked: V1, mark: str) -> dict[str, str]:
    """Over the baseline, verl gets the platform from us and nothing else, and TransferQueue comes first on the path."""
    first = [str(BASELINE)] if asked.queue == "baseline" else []
    modules = ["recipes.verl.platform.only"] if asked.queue == "baseline" else []
    modules += ["tests.verl.timed_queue"] if asked.timed else []
    return {
        **os.environ,
        **ENVIRONMENT,
        MARK: mark,
        "PYTHONPATH": os.pathsep.join([*first, str(ROOT)]),
        "VERL_FILE_LOGGER_PATH": str(asked.metrics),
        "VERL_USE_EXTERNAL_PLUGINS": "none" if asked.queue == "baseline" else "auto",
        "VERL_USE_EXTERNAL_MODULES": ",".join(modules),
        "HYDRA_FULL_ERROR": "1",
        **({"TIMED_QUEUE": str(asked.times)} if asked.timed else {}),
    }

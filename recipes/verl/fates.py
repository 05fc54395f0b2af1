"""What becomes of every setting of verl's: read here or by a part of verl that runs here, refused where it is not as verl has it, or without meaning.

A name is a key of verl's YAML; `section.*` stands for all that is in it. The narrowest that fits counts. `LIMITS` (served.py) are refused by a rule
of their own. Needs no verl; that every key of verl's has one fate is tested over its own YAML.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from recipes.verl.served import LIMITS


class Fate(Enum):
    SERVED = "served"
    LIMITED = "served in part: what is not, is refused by name"
    REFUSED = "to be left as verl has it"
    MEANINGLESS = "without meaning here"


ACTOR, REF, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "ref", "rollout", "model"))
SHARDING = (
    "wrap_policy.min_num_params param_offload optimizer_offload offload_policy reshard_after_forward fsdp_size forward_prefetch model_dtype "
    "use_orig_params seed full_determinism entropy_from_logits_with_chunking entropy_from_logits_chunk_size use_torch_compile entropy_checkpointing "
    "use_no_sync_for_gradient_accumulation pad_to_length pad_to_length_bucket dtype mixed_precision.*"
)
SERVED: dict[str, str] = {
    "": "asyncflow.* async_training.staleness_threshold",
    f"{ACTOR}.optim": "optimizer optimizer_impl lr lr_warmup_steps_ratio weight_decay lr_warmup_steps betas clip_grad min_lr_ratio num_cycles "
    "lr_scheduler_type zero_indexed_step warmup_style override_optimizer_config.*",
    f"{ACTOR}.fsdp_config": SHARDING,
    f"{REF}.fsdp_config": SHARDING,
    ACTOR: "ppo_mini_batch_size ppo_micro_batch_size_per_gpu use_dynamic_bsz ppo_max_token_len_per_gpu clip_ratio clip_ratio_low clip_ratio_high "
    "tau_pos tau_neg clip_ratio_c loss_scale_factor entropy_coeff calculate_entropy use_kl_loss kl_loss_coef kl_loss_type "
    "entropy_from_logits_with_chunking entropy_from_logits_chunk_size entropy_checkpointing pad_to_length",
    f"{ACTOR}.policy_loss": "dro_beta",
    REF: "log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz log_prob_max_token_len_per_gpu entropy_from_logits_with_chunking "
    "entropy_from_logits_chunk_size entropy_checkpointing pad_to_length",
    ROLLOUT: "nnodes n_gpus_per_node temperature dtype gpu_memory_utilization enforce_eager cudagraph_capture_sizes tensor_model_parallel_size "
    "max_num_batched_tokens max_num_seqs enable_chunked_prefill enable_prefix_caching scheduling_policy log_prob_micro_batch_size_per_gpu "
    "log_prob_use_dynamic_bsz log_prob_max_token_len_per_gpu n engine_kwargs.vllm.*",
    MODEL: "path tokenizer_path use_shm trust_remote_code override_config.* enable_gradient_checkpointing enable_activation_offload "
    "use_remove_padding use_liger use_fused_kernels fused_kernel_options.impl_backend",
    "data": "use_shm train_files val_files train_max_samples val_max_samples prompt_key max_prompt_length max_response_length train_batch_size "
    "shuffle seed filter_overlong_prompts filter_overlong_prompts_workers trust_remote_code custom_cls.path custom_cls.name "
    "apply_chat_template_kwargs.* cache_dir filter_prompts",
    "custom_reward_function": "path name",  # old names, which verl moves to `reward` before anything reads them
    "sandbox_fusion": "url max_concurrent memory_limit_mb",
    "reward_model": "reward_manager reward_loop_source reward_loop_module_path reward_loop_class_name",
    "reward": "custom_reward_function.path custom_reward_function.name reward_manager.source reward_manager.name reward_manager.module.path "
    "reward_manager.module.name sandbox_fusion.url sandbox_fusion.max_concurrent sandbox_fusion.memory_limit_mb reward_kwargs.*",
    "algorithm": "gamma lam norm_adv_by_std_in_grpo",
    "trainer": "total_training_steps project_name experiment_name n_gpus_per_node test_freq device v1.trainer_mode v1.asyncflow.* "
    "v1.colocate_async.num_warmup_batches v1.separate_async.num_warmup_batches v1.separate_async.parameter_sync_step "
    "v1.sampler.max_off_policy_threshold v1.sampler.max_off_policy_strategy",
}
REFUSED: dict[str, dict[str, str]] = {  # names → why
    "": {"model_engine": "trainer and forward workers compute with FSDP2", "critic.enable": "there is no critic yet"},
    "actor_rollout_ref": {"nccl_timeout": "a rank that is gone is noticed within 60 s"},
    ACTOR: {
        "rollout_n": "rollout.n says it",
        "ppo_micro_batch_size": "ppo_micro_batch_size_per_gpu says it",
        "freeze_vision_tower calculate_sum_pi_squared": "nothing that is served needs it",
        "use_fused_kernels use_remove_padding": "the same of actor_rollout_ref.model counts",
        "ulysses_sequence_parallel_size fsdp_config.ulysses_sequence_parallel_size": "every rank takes rows of its own, no parts of rows, so far",
        "qat.enable fsdp_config.qat.enable": "the rollout samples with plain weights",
        "profiler.enable": "verl's profilers are not there yet; `asyncflow report` shows who computed when",
    },
    REF: {
        "strategy": "it has that of the actor",
        "rollout_n": "rollout.n says it",
        "log_prob_micro_batch_size": "log_prob_micro_batch_size_per_gpu says it",
        "ulysses_sequence_parallel_size fsdp_config.ulysses_sequence_parallel_size": "every worker takes rows of its own, no parts of rows, so far",
        "fsdp_config.qat.enable": "the rollout samples with plain weights",
        "profiler.enable": "verl's profilers are not there yet; `asyncflow report` shows who computed when",
    },
    ROLLOUT: {
        "mode": "requests are always asynchronous",
        "full_determinism seed": "data.seed gives every token a seed of its own",
        "prompt_length response_length": "data.max_prompt_length and data.max_response_length say it",
        "ignore_eos do_sample": "responses are sampled, and end where the model ends them",
        "data_parallel_size expert_parallel_size pipeline_model_parallel_size": "a replica's devices share one copy of the model by tensors only",
        "logprobs_mode": "log-probabilities belong to the distribution that was sampled",
        "log_prob_micro_batch_size": "log_prob_micro_batch_size_per_gpu says it",
        "over_sample_rate": "every response of a group is waited for",
        "val_kwargs.top_k val_kwargs.top_p val_kwargs.temperature val_kwargs.n val_kwargs.do_sample": "an evaluation takes one greedy response",
        "router_config_path": "there is no router: replicas take prompts as they have room",
        "agent.agent_loop_config_path agent.custom_async_server.path agent.custom_async_server.name": "other agent loops are not there yet",
        "trace.backend": "traces of agent loops are not there yet",
        "enable_rollout_routing_replay moe_load_balance_metrics_interval": "nothing of it is recorded yet",
        "prometheus.enable": "asyncflow.observe.prometheus_bind=HOST:PORT serves the run's numbers",
        "quantization quantization_config_file": "weights are published and loaded as they are trained",
        "disaggregation.enabled": "a replica fills and decodes itself",
        "profiler.enable": "verl's profilers are not there yet; `asyncflow report` shows who computed when",
    },
    MODEL: {
        "hf_config_path custom_chat_template external_lib": "trainer, rollout and prompts would not all have it",
        "lora_adapter_path lora.rank lora.adapter_path": "whole weights are published so far",
        "tiled_mlp.enabled": "verl's FSDP2 engine does not read it",
        "mtp.enable mtp.enable_train mtp.enable_rollout": "prediction of several tokens is not there yet",
    },
    "data": {
        "tokenizer": "actor_rollout_ref.model.tokenizer_path says it",
        "reward_fn_key": "reward managers read data_source",
        "gen_batch_size": "prompts are admitted one by one, within the permits",
        "tool_config_path function_tool_path": "tools are not there yet",
        "validation_shuffle": "an evaluation takes the first rows",
        "truncation": "a prompt that is too long is an error; data.filter_overlong_prompts=true leaves it out",
        "image_patch_size image_key video_key audio_key return_multi_modal_inputs mm_processor_kwargs.*": "prompts are text so far",
    },
    "reward_model": {"enable": "reward models are not there yet"},
    "algorithm": {"use_pf_ppo": "a batch is trained as it is, no row twice"},
    "transfer_queue": {
        "metrics.enabled": "asyncflow.observe.prometheus_bind=HOST:PORT serves the run's numbers",
        "backend.storage_backend": "rows lie in AsyncFlow's shards",
    },
    "trainer": {
        "log_val_generations rollout_data_dir validation_data_dir": "texts of a run are not written yet",
        "checkpoint_callback_class": "saving a run is not there yet",
        "val_only": "evaluation without training is not there yet",
        "v1.separate_async.hybrid_rollout.enable_switch": "devices of the trainer stay the trainer's",
        "v1.sampler.sync_refill_failed_groups": "a group that fails is dropped and replaced",
        "v1.sampler.custom_sampler.path v1.sampler.custom_sampler.name v1.sampler.sampler_kwargs.*": "the queue's own sampler is asyncflow.queue's",
    },
    "global_profiler": {"tool steps": "verl's profilers are not there yet; `asyncflow report` shows who computed when"},
    "skip": {"rollout.enable rollout_tq.enable async_rollout.enable": "a rollout is never left out"},
    "ray_kwargs": {
        "ray_init.*": "with asyncflow.launch=ray the cluster is asyncflow.cluster.address or one for this run",
        "timeline_json_file": "the run's own timeline is in its directory",
    },
}
MEANINGLESS: dict[str, str] = {
    "actor_rollout_ref": "hybrid_engine",  # trainer and replicas have devices of their own
    f"{ACTOR}.optim": "total_training_steps",  # trainer.total_training_steps
    f"{ACTOR}.fsdp_config": "forward_only strategy turbo_config.* qat.*",  # set by who builds the engine; of another engine
    f"{REF}.fsdp_config": "forward_only strategy turbo_config.* qat.*",
    # clip_grad of `optim` counts, use_torch_compile of fsdp_config; one mini-batch has no order, and nothing is saved.
    ACTOR: "use_torch_compile grad_clip shuffle data_loader_seed checkpoint.* profiler.* qat.*",
    f"{ACTOR}.policy_loss": "clip_cov_ratio clip_cov_lb clip_cov_ub kl_cov_ratio ppo_kl_coef",  # of losses that are refused
    REF: "use_torch_compile profiler.*",
    # Memory that colocated engines hand over, formats of the first load, numbers of processes: replicas stay loaded, weights come from the publisher.
    ROLLOUT: "free_cache_engine max_model_len load_format layered_summon disable_log_stats multi_stage_wake_up engine_kwargs.sglang.* "
    "engine_kwargs.trtllm.* multi_turn.* calculate_log_probs agent.num_workers checkpoint_engine.* trace.* skip_tokenizer_init enable_sleep_mode "
    "prometheus.* mtp.* qat.* disaggregation.* profiler.*",
    MODEL: "lora_alpha target_modules exclude_modules tiled_mlp.* mtp.* lora.*",
    "data": "val_batch_size return_raw_input_ids return_raw_chat return_full_prompt dataloader_num_workers",
    "": "critic.* distillation.* global_profiler.* transfer_queue.* reward_model.* reward.reward_model.* skip.*",
    "reward": "num_workers",  # asyncflow.resources.scorer.workers
    "algorithm": "rollout_correction.* filter_groups.* kl_penalty kl_ctrl.* pf_ppo.*",
    # Saving is not there yet, rows are shared out by length in any case, the run ends after its steps, and version 0 is evaluated where any is.
    "trainer": "balance_batch val_before_train total_epochs esi_redundant_time resume_from_path default_hdfs_dir "
    "del_local_ckpt_after_load default_local_dir max_actor_ckpt_to_keep max_critic_ckpt_to_keep "
    "ray_wait_register_center_timeout use_v1 v1.sync.* v1.separate_async.hybrid_rollout.*",
}


def entries() -> Iterator[tuple[str, Fate, str]]:
    """(name, fate, why) of all of them."""
    for limit in LIMITS:
        yield limit.key, Fate.LIMITED, limit.rule
    for fate, table in ((Fate.SERVED, SERVED), (Fate.MEANINGLESS, MEANINGLESS)):
        for section, names in table.items():
            yield from ((_under(section, name), fate, "") for name in names.split())
    for section, reasons in REFUSED.items():
        for names, why in reasons.items():
            yield from ((_under(section, name), Fate.REFUSED, why) for name in names.split())


def _under(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name


KNOWN = {name: (fate, why) for name, fate, why in entries()}


def name_of(key: str) -> str | None:
    """The narrowest name that fits a key; None where there is none."""
    if key in KNOWN:
        return key
    parts = key.split(".")
    return next((name for end in range(len(parts), 0, -1) if (name := ".".join([*parts[:end], "*"])) in KNOWN), None)


def leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value); what Hydra makes objects of by is left out. An empty section is a leaf."""
    for name, value in tree.items():
        key = _under(above, str(name))
        if isinstance(value, Mapping) and value:
            yield from leaves(value, key)
        elif name != "_target_":
            yield key, value

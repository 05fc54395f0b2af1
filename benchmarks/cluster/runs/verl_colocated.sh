#!/usr/bin/env bash
# The baseline: verl 0.9.1 alone, rollout and training in turn on the same 64 devices. Not yet run on cards. DEVICE=cuda|npu; RECORD: where the file tracker writes.
set -euo pipefail
: "${MODEL:?a folder of Hugging Face files}" "${DATA:?a folder with train.parquet and test.parquet}" "${RECORD:?a .jsonl file for the tracker}"

export VERL_FILE_LOGGER_PATH="$RECORD"
exec python3 -m verl.trainer.main_ppo \
  trainer.device="${DEVICE:-cuda}" \
  'trainer.logger=[console,file]' \
  data.train_files="$DATA/train.parquet" \
  data.val_files="$DATA/test.parquet" \
  actor_rollout_ref.model.path="$MODEL" \
  data.filter_overlong_prompts=true \
  trainer.v1.trainer_mode=sync \
  algorithm.adv_estimator=grpo \
  actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.actor.strategy=fsdp2 \
  actor_rollout_ref.actor.use_kl_loss=true \
  actor_rollout_ref.actor.use_dynamic_bsz=true \
  actor_rollout_ref.actor.ppo_mini_batch_size=512 \
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=32768 \
  actor_rollout_ref.actor.optim.lr=1e-6 \
  actor_rollout_ref.rollout.n=8 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=4 \
  data.train_batch_size=512 \
  data.max_prompt_length=1024 \
  data.max_response_length=8192 \
  trainer.test_freq=10 \
  trainer.total_training_steps=73 \
  trainer.nnodes=8 \
  trainer.n_gpus_per_node=8 \
  "$@"

#!/usr/bin/env bash
# Qwen2.5-7B on 64 devices by Ray: 52 roll out (13 replicas of 4), 2 + 2 compute log-probabilities, 8 train. Not run: no such devices were at hand. What it means: run_qwen2_5_7b_64.sh --explain
# DEVICE: cuda (NVIDIA, the default) or npu (Ascend). MODEL: a folder of Hugging Face files; DATA: a folder with train.parquet and test.parquet in verl's columns (python -m asyncflow.data.gsm8k).
set -euo pipefail
: "${MODEL:?a folder of Hugging Face files}" "${DATA:?a folder with train.parquet and test.parquet}"

exec python3 -m recipes.verl.main \
  trainer.device="${DEVICE:-cuda}" \
  data.train_files="$DATA/train.parquet" \
  data.val_files="$DATA/test.parquet" \
  actor_rollout_ref.model.path="$MODEL" \
  data.filter_overlong_prompts=true \
  actor_rollout_ref.actor.use_kl_loss=true \
  actor_rollout_ref.actor.use_dynamic_bsz=true \
  trainer.test_freq=10 \
  data.train_batch_size=512 \
  data.max_prompt_length=1024 \
  data.max_response_length=8192 \
  actor_rollout_ref.rollout.n=8 \
  actor_rollout_ref.actor.optim.lr=1e-6 \
  trainer.total_training_steps=73 \
  trainer.n_gpus_per_node=8 \
  actor_rollout_ref.rollout.nnodes=13 \
  actor_rollout_ref.rollout.n_gpus_per_node=4 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=4 \
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=32768 \
  +asyncflow.launch=ray \
  +asyncflow.queue.shards=4 \
  +asyncflow.cluster.devices=64 \
  '+asyncflow.resources.actor_forward={workers:2,devices:2,stages:[actor_forward]}' \
  '+asyncflow.resources.ref_forward={workers:2,devices:2,stages:[ref_forward]}' \
  +asyncflow.resources.scorer.workers=8 \
  +asyncflow.evaluation.items=512 \
  "$@"

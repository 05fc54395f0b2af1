#!/usr/bin/env bash
# Qwen2.5-0.5B on one node of 8 devices: 4 roll out, 1 + 1 compute log-probabilities, 2 train. Not run: no such devices were at hand. What it means: run_qwen2_5_0_5b.sh --explain
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
  data.train_batch_size=256 \
  data.max_prompt_length=512 \
  data.max_response_length=1024 \
  actor_rollout_ref.rollout.n=8 \
  actor_rollout_ref.actor.optim.lr=1e-6 \
  trainer.total_training_steps=145 \
  trainer.n_gpus_per_node=2 \
  actor_rollout_ref.rollout.n_gpus_per_node=4 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
  +asyncflow.evaluation.items=512 \
  "$@"

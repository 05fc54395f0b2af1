#!/usr/bin/env bash
# AsyncFlow on 64 devices, 48 roll out, 16 are the training side (4 + 4 log-probabilities, 8 train: the recipe's forward stages have devices of their own). Not yet run on cards. DEVICE=cuda|npu
set -euo pipefail
cd "$(dirname "$0")/../../.."
exec bash recipes/verl/run_qwen2_5_7b_64.sh \
  actor_rollout_ref.rollout.nnodes=12 \
  'asyncflow.resources.actor_forward={workers:4,devices:4,stages:[actor_forward]}' \
  'asyncflow.resources.ref_forward={workers:4,devices:4,stages:[ref_forward]}' \
  "$@"

#!/usr/bin/env bash
# AsyncFlow on 64 devices, 52 roll out, 2 + 2 compute log-probabilities, 8 train: the recipe's own script. Not yet run on cards. DEVICE=cuda|npu
set -euo pipefail
cd "$(dirname "$0")/../../.."
exec bash recipes/verl/run_qwen2_5_7b_64.sh "$@"

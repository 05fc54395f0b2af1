#!/usr/bin/env bash
# On a machine with one CUDA device: a 0.5B-shaped random model from the device through the host cache into vLLM, its phases printed; at most 8 minutes.
#   benchmarks/cuda_smoke.sh          makes .venv-cuda from where pip is configured to look (vLLM and torch for CUDA: gigabytes)
#   benchmarks/cuda_smoke.sh PYTHON   takes the interpreter of an environment that has vLLM, torch and what pyproject.toml asks for
# Exit code 0: every version was served, and vLLM's log-probabilities are the model's. Numbers: cuda_smoke.json in the current directory.
set -euo pipefail

json=$PWD/cuda_smoke.json
root=$(cd "$(dirname "$0")/.." && pwd)
all_s=475  # a run that is ended takes a few more
python=${1-}

within() {  # what is left of the time
  local left=$((all_s - SECONDS))
  timeout --kill-after=5s "$((left > 0 ? left : 1))s" "$@"
}

if [[ -z $python ]]; then
  python=$root/.venv-cuda/bin/python
  if [[ ! -x $python ]]; then
    "${PYTHON:-python3}" -m venv "$root/.venv-cuda"
  fi
  within "$python" -m pip --disable-pip-version-check install --quiet -e "$root[vllm]"
  echo "environment: $SECONDS s"
fi

nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader
export OMP_NUM_THREADS=${OMP_NUM_THREADS-1}
within "$python" "$root/benchmarks/device_smoke.py" --device cuda --json "$json" "${@:2}"
echo "all: $SECONDS s"

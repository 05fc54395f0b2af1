#!/usr/bin/env bash
# The harness at toy size on a CPU: quickstart, verl's colocated trainer where .venv-verl is, and the report. Its numbers mean nothing. toy.sh FOLDER (new)
set -euo pipefail
OUT="$(realpath -m "${1:?a folder that does not exist yet}")"
cd "$(dirname "$0")/../.."
PYTHON="${PYTHON:-.venv/bin/python}" VERL_PYTHON="${VERL_PYTHON:-.venv-verl/bin/python}"
mkdir "$OUT"
timeout 200 "$PYTHON" -m asyncflow.cli.main train recipes/quickstart run.steps=10 --run-dir "$OUT/quickstart"
runs=("$OUT/quickstart")
if [ -x "$VERL_PYTHON" ]; then
  timeout 400 "$VERL_PYTHON" -m tests.verl.v1_run --mode sync --steps 3 --queue ours --limit-s 330 --out "$OUT/verl"
  runs+=("$OUT/verl/metrics.jsonl")
else
  echo "$VERL_PYTHON is not there (make venv-verl): no run of verl" >&2
fi
"$PYTHON" -m benchmarks.cluster.report "${runs[@]}" --json "$OUT/report.json" | tee "$OUT/report.md"

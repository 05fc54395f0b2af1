"""Interruption without loss, with vLLM: 200 prompts at two replicas, an update every 50 ms, random aborts, one replica killed, one added."""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm_harness import BLOCK, STOP, qwen2

from tests.pipeline.gate import run_gate
from tests.pipeline.gate_checks import check_faults, check_labels, check_log_probs, check_outcomes, check_passed_over, check_wanderers

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]
VLLM = ("rollout.engine=vllm", f"+rollout.options.kv_cache_bytes={64 << 20}", f"+rollout.options.arguments={{block_size:{BLOCK}}}")


def test_two_hundred_prompts_end_once_each_whatever_is_updated_aborted_killed_and_added(tmp_path: Path) -> None:
    models = [qwen2(seed) for seed in range(4)]
    outcome = run_gate(tmp_path, models, "abort", *VLLM)
    check_outcomes(outcome, STOP)
    check_labels(outcome)
    check_faults(outcome)
    check_passed_over(outcome)
    check_log_probs(outcome, models, atol=1e-3)
    check_wanderers(outcome)

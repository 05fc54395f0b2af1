"""Interruption without loss, with the embedded engine; with vLLM: tests/vllm/test_vllm_gate.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from asyncflow.engines.model import ModelShape, build_model
from tests.pipeline.gate import run_gate
from tests.pipeline.gate_checks import check_faults, check_labels, check_log_probs, check_outcomes, check_wanderers

STOP = 2


def model(seed: int) -> PreTrainedModel:
    """Weights so far apart that one version's log-probabilities are no other's."""
    built = build_model(ModelShape(vocab_size=100, hidden_size=64, intermediate_size=96, heads=2, eos_token_id=STOP), seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
    return built.eval()


@pytest.mark.e2e
@pytest.mark.timeout(900)
@pytest.mark.parametrize("pause_mode", ["keep", "abort"])
def test_two_hundred_prompts_end_once_each_whatever_is_updated_aborted_killed_and_added(tmp_path: Path, pause_mode: str) -> None:
    models = [model(seed) for seed in range(4)]
    outcome = run_gate(tmp_path, models, pause_mode, step_s=0.02)
    check_outcomes(outcome, STOP)
    check_labels(outcome)
    check_faults(outcome)
    if pause_mode == "abort":
        check_log_probs(outcome, models, atol=1e-3)
        check_wanderers(outcome)

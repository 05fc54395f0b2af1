"""The recipe trains: verl's dataset, reward loop, estimator, policy loss and FSDP2 engine behind AsyncFlow's workers, with real vLLM, on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.verl.recipe_run import BATCH, recipe

pytestmark = [pytest.mark.verl, pytest.mark.timeout(400)]


def test_on_policy_the_trainer_finds_the_log_probabilities_that_the_rollout_sampled_with(tmp_path: Path) -> None:
    run = recipe(tmp_path, steps=6, threshold=1)
    assert run.code == 0, run.output + run.logs()
    assert run.summary["exit_reason"] == "completed"
    assert run.summary["ledger"] == {"trained": 6 * BATCH}
    steps = [step["info"] for step in run.steps]
    assert [step["staleness_max"] for step in steps] == [0.0] * 6
    assert [step["logprobs_apart"] + step["missing_logprobs"] for step in steps] == [0.0] * 6  # none of the tokens by 1e-4
    assert max(step["logprob_difference"] for step in steps) < 1e-5
    assert len({step["grad_norm"] for step in steps}) == 6

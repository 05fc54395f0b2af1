"""The recipe trains: verl's dataset, reward loop, estimator, policy loss and FSDP2 engine behind AsyncFlow's workers, with real vLLM, on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.verl.recipe_run import BATCH, recipe

pytestmark = [pytest.mark.verl, pytest.mark.timeout(560)]


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


def test_on_ray_two_ranks_and_two_replicas_train_within_the_bound_and_the_reward_rises(tmp_path: Path) -> None:
    more = ["trainer.n_gpus_per_node=2", "actor_rollout_ref.rollout.n_gpus_per_node=2", "actor_rollout_ref.actor.use_kl_loss=true"]
    evaluated = ["trainer.test_freq=10", "+asyncflow.evaluation.items=16"]
    run = recipe(tmp_path, *more, *evaluated, "+asyncflow.launch=ray", steps=30, threshold=3)
    assert run.code == 0, run.output + run.logs()
    assert run.summary["exit_reason"] == "completed"
    assert run.summary["ledger"] == {"trained": 30 * BATCH}
    assert sorted(map(int, run.summary["evaluations"])) == [0, 10, 20, 30]
    steps = [step["info"] for step in run.steps]
    assert max(step["staleness_max"] for step in steps) == 2.0
    assert all("kl_loss" in step and not step["skipped"] for step in steps)
    rewards = [step["reward_mean"] for step in steps]
    assert sum(rewards[-5:]) > 1.5 * sum(rewards[:5])

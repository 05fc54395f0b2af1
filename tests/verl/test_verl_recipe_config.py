"""What verl's own configuration becomes: over verl's YAML as it is installed, in a process without a run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.verl.children import ENVIRONMENT, ROOT
from tests.verl.tiny import make_tiny

pytestmark = pytest.mark.verl
SCRIPTS = sorted((ROOT / "recipes/verl").glob("run_*.sh"))
CUT = ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8", "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8")
NEEDED = ("trainer.device=cpu", "trainer.total_training_steps=3", *CUT)
ON_CPU = (*NEEDED, "actor_rollout_ref.rollout.n_gpus_per_node=2", "actor_rollout_ref.rollout.tensor_model_parallel_size=1")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


def asked(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    everything = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT), "PATH": path, **environment}
    return subprocess.run(["timeout", "100", *command], env=everything, capture_output=True, text=True, timeout=120)


def explained(tiny: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    return asked(sys.executable, "-m", "recipes.verl.main", "--explain", *ON_CPU, f"actor_rollout_ref.model.path={tiny}", *overrides)


def test_explain_says_it_in_both_languages(tiny: Path) -> None:
    done = explained(tiny, "data.train_batch_size=64", "trainer.v1.sampler.max_off_policy_threshold=2")
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert any(line.startswith("trainer.v1.sampler.max_off_policy_threshold 2 staleness k = 1") for line in lines)
    assert any(line.startswith("data.train_batch_size 64 batch_size = 64") for line in lines)
    assert any("recipes.verl.train:make_training" in line for line in lines)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("actor_rollout_ref.actor.ppo_mini_batch_size=100", "data.train_batch_size = 1024: it must be"),
        ("+asyncflow.staleness=5", "asyncflow.staleness = 5: trainer.v1.sampler.max_off_policy_threshold says 2"),
        ("algorithm.adv_estimator=gae", "algorithm.adv_estimator = 'gae': one of grpo"),
        ("actor_rollout_ref.rollout.top_p=0.9", "actor_rollout_ref.rollout.top_p = 0.9"),
        ("trainer.logger=[console,mlflow]", "trainer.logger = ['console', 'mlflow']: of console, file, tensorboard, wandb"),
        ("actor_rollout_ref.rollout.val_kwargs.n=4", "actor_rollout_ref.rollout.val_kwargs.n = 4: it must stay 1"),
        ("trainer.total_training_steps=null", "trainer.total_training_steps = null: it must be a number"),
        ("+asyncflow.rollot.slots=4", "did you mean"),
        ("data.no_such_key=1", "no_such_key"),
        ("trainer.n_gpus_per_node=3", "ranks"),
        ("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=null", "rollout.log_prob_micro_batch_size_per_gpu = null: with"),
        ("trainer.v1.trainer_mode=sync", "trainer.v1.trainer_mode = 'sync': it trains each batch"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=kl_cov", "policy_loss.loss_mode = 'kl_cov': one of vanilla"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(tiny: Path, override: str, said: str) -> None:
    done = explained(tiny, override)
    assert done.returncode == 2, done.stdout[-500:] + done.stderr[-500:]
    assert said in done.stderr
    assert "Fix: " in done.stderr


@pytest.mark.parametrize("device", ["cuda", "npu"])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_script_means_something(script: Path, device: str, tiny: Path) -> None:
    done = asked(str(script), "--explain", MODEL=str(tiny), DATA=str(tiny), VERL_PLATFORM="", DEVICE=device)
    assert done.returncode == 0, done.stderr[-2000:]
    devices = 64 if "_64" in script.name else 8
    assert re.search(rf"^trainer .*[–, ]{devices - 1} ", done.stdout, re.MULTILINE)  # it has the last device

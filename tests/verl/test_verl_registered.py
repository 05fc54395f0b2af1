"""verl's own main program trains through AsyncFlow where `trainer.v1.trainer_mode` says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.verl.children import said
from tests.verl.v1_run import run_verl
from tests.verl.v1_settings import BATCH, V1

pytestmark = [pytest.mark.verl, pytest.mark.timeout(560)]
STEPS = 3


def asked(out: Path) -> V1:
    return V1("asyncflow", STEPS, "ours", "asyncflow", out, out / "checkpoints")


def more(out: Path) -> tuple[str, ...]:
    """What the recipe's own YAML says, and a run of AsyncFlow's on a small machine."""
    return (
        "trainer.val_before_train=true",
        "trainer.v1.sampler.max_off_policy_threshold=2",
        "trainer.v1.sampler.max_off_policy_strategy=wait",
        "actor_rollout_ref.rollout.nnodes=1",
        "actor_rollout_ref.rollout.n_gpus_per_node=1",
        f"+asyncflow.run.root={out / 'runs'}",
        "+asyncflow.rollout.options.kv_cache_bytes=33554432",
        "+asyncflow.limits.start_s=400",
        "+asyncflow.limits.stall_s=300",
        "+asyncflow.limits.lease_s=120",
    )


def test_the_trainer_is_there_beside_verls_own() -> None:
    code = "import verl.trainer.ppo.v1 as v1; print(v1.get_trainer_cls('asyncflow').__name__, v1.get_trainer_cls('sync').__name__)"
    assert said(code, limit_s=100) == "AsyncFlowTrainer PPOTrainerSync"


def test_verls_main_program_trains_through_asyncflow_on_its_cluster(tmp_path: Path) -> None:
    run_verl(asked(tmp_path), 480, more(tmp_path))
    (run,) = (tmp_path / "runs").iterdir()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["exit_reason"] == "completed"
    assert summary["ledger"] == {"trained": STEPS * BATCH}
    assert json.loads((run / "config.json").read_text())["launch"] == "ray"


def test_what_is_not_served_ends_verls_main_program_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"val_kwargs\.n = 4: it must stay 1"):
        run_verl(asked(tmp_path), 200, (*more(tmp_path), "actor_rollout_ref.rollout.val_kwargs.n=4"))
    assert not (tmp_path / "runs").exists()

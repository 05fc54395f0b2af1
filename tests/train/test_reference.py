"""The synchronous loop: a pure function of its settings, and sensitive to what should change it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from asyncflow.config import AlgorithmSettings, ModelSettings, RolloutSettings, RunConfig, RunSettings, TaskSettings
from asyncflow.engines.model import ModelShape, build_model
from asyncflow.engines.reference import ReferenceLoop, StepRecord
from asyncflow.engines.train.checkpoint import save_hf


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("model")
    shape = ModelShape(16, hidden_size=32, intermediate_size=32, layers=1, heads=1, kv_heads=1, max_positions=32, pad_token_id=0, eos_token_id=2)
    save_hf(build_model(shape), folder)
    return folder


def run(model_dir: Path, *, seed: int = 1, slots: int = 8, algorithm: AlgorithmSettings | None = None, samples: int = 4) -> list[StepRecord]:
    config = RunConfig(
        run=RunSettings(seed=seed),
        models={"policy": ModelSettings(path=str(model_dir)), "ref": ModelSettings(same_as="policy", frozen=True)},
        task=TaskSettings(path="asyncflow.data.number_sorting:NumberSorting", options={"most": 3, "least": 1}),
        rollout=RolloutSettings(slots=slots, prompt_width=5, response_width=6, samples_per_prompt=samples),
        algorithm=algorithm or AlgorithmSettings(micro_batch_groups=4, entropy_coef=0.01),
        batch_size=6,
    )
    return list(ReferenceLoop(config, model_dir).run(3))


def test_it_gives_the_same_digests_again_whatever_the_slots(model_dir: Path) -> None:
    first = run(model_dir)
    assert [step.version for step in first] == [1, 2, 3]
    assert len({step.digest for step in first}) == 3
    assert [step.digest for step in run(model_dir)] == [step.digest for step in first]
    assert [step.digest for step in run(model_dir, slots=24)] == [step.digest for step in first]


def test_another_seed_another_rate_and_other_samples_change_the_digest(model_dir: Path) -> None:
    plain = run(model_dir)[-1].digest
    faster = AlgorithmSettings(micro_batch_groups=4, entropy_coef=0.01, learning_rate=4e-4)
    others = [run(model_dir, seed=2), run(model_dir, algorithm=faster), run(model_dir, samples=8)]
    assert len({plain, *(records[-1].digest for records in others)}) == 4


def test_on_policy_the_ratio_is_one_and_nothing_is_clipped(model_dir: Path) -> None:
    for step in run(model_dir):
        assert step.metrics["ratio"] == pytest.approx(1.0, abs=1e-4)
        assert step.metrics["clip_fraction"] == 0
        assert step.metrics["missing_logprobs"] == 0

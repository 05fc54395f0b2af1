"""The forward stage: its bits depend on a group and the weights only, and it agrees with the trainer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from asyncflow.config import AlgorithmSettings
from asyncflow.contracts.weights import WeightsId
from asyncflow.data.batch import pad_rows
from asyncflow.data.rows import by_group, part
from asyncflow.engines.model import load_hf
from asyncflow.stages.forward import ForwardStage
from tests.train.conftest import SAMPLES, random_batch, shape_of, started


def stage(model_dir: Path) -> ForwardStage:
    return ForwardStage(load_hf(model_dir), "old_logprobs", shape_of(1))


def test_a_group_gets_the_same_bits_alone_and_in_any_company(model_dir: Path) -> None:
    compute, batch = stage(model_dir), random_batch(5)
    together = compute(batch)["old_logprobs"]
    assert together.lengths.tolist() == batch.jagged("response_ids").lengths.tolist()
    assert together.values.dtype == np.float32
    alone = [compute(group)["old_logprobs"].values for group in by_group(batch)]
    assert np.concatenate(alone).tobytes() == together.values.tobytes()
    tail = compute(part(batch, 3 * SAMPLES, 5 * SAMPLES))["old_logprobs"].values
    assert tail.tobytes() == np.concatenate(alone[3:]).tobytes()


def test_it_agrees_with_the_trainer_on_what_the_policy_thinks(model_dir: Path) -> None:
    batch = random_batch(2)
    trainer = started(model_dir, AlgorithmSettings()).forward_backward_batch(pad_rows(batch, shape_of(2)), None, forward_only=True).log_probs
    found = stage(model_dir)(batch)["old_logprobs"]
    for row in range(len(batch)):
        np.testing.assert_allclose(found[row], trainer[row, : len(found[row])].numpy(), rtol=1e-5, atol=1e-5)


def test_it_follows_the_weights_it_is_given(model_dir: Path) -> None:
    compute, batch = stage(model_dir), random_batch(1)
    before = compute(batch)["old_logprobs"].values
    tensors = {name: tensor + 0.01 * torch.ones_like(tensor) for name, tensor in started(model_dir, AlgorithmSettings()).get_per_tensor_param()}
    compute.load_weights(WeightsId("policy", 0, 1), tensors.items())
    assert not np.allclose(before, compute(batch)["old_logprobs"].values)

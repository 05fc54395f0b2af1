"""Invariant 7: loss and gradients of a global batch do not depend on micro-batches or on the order of arrival."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from asyncflow.algorithms.loss import PolicyLoss
from asyncflow.config import AlgorithmSettings
from asyncflow.contracts.batch import StageBatch
from asyncflow.data.batch import pad_rows
from asyncflow.data.rows import by_group, joined
from tests.train.conftest import random_batch, shape_of, started
from transfer_queue.columns import Jagged

GROUPS = 8
SETTINGS = (
    AlgorithmSettings(kl_coef=0.1, entropy_coef=0.01, importance_cap=2.0),
    AlgorithmSettings(aggregation="sequence"),
    AlgorithmSettings(truncated="mask", old_logprobs="behaviour"),
)


def together(groups: list[StageBatch]) -> StageBatch:
    keys = ("gids", "rows", "oldest_versions", "newest_versions")
    whole = StageBatch(*(np.concatenate([getattr(group, key) for group in groups]) for key in keys))
    for name in groups[0].columns:
        parts = [group.columns[name] for group in groups]
        whole.columns[name] = joined(parts) if isinstance(parts[0], Jagged) else np.concatenate(parts)  # type: ignore[arg-type]
    return whole


def gradients(model_dir: Path, settings: AlgorithmSettings, groups: list[StageBatch], micro_groups: int) -> tuple[float, dict[str, torch.Tensor]]:
    """(loss, mean gradient by parameter) of the global batch, in micro-batches of `micro_groups` groups in the given order."""
    engine, loss = started(model_dir, settings), PolicyLoss(settings)
    total, denominator = 0.0, 0.0
    engine.optimizer_zero_grad()
    for start in range(0, len(groups), micro_groups):
        rows = pad_rows(together(groups[start : start + micro_groups]), shape_of(micro_groups))
        total += engine.forward_backward_batch(rows, loss).loss or 0.0
        denominator += loss.denominator(rows)
    found = {name: parameter.grad.clone() / denominator for name, parameter in engine.model.named_parameters() if parameter.grad is not None}
    return total / denominator, found


@pytest.mark.parametrize("settings", SETTINGS, ids=["token", "sequence", "masked"])
def test_loss_and_gradients_agree_for_micro_batches_of_1_3_and_8_groups_and_any_order(model_dir: Path, settings: AlgorithmSettings) -> None:
    batch = random_batch(GROUPS)
    batch.columns["finish"] = np.where(np.arange(len(batch)) % 5 == 0, 1, 0).astype(np.uint8)
    groups = list(by_group(batch))
    shuffled = [groups[index] for index in np.random.default_rng(1).permutation(GROUPS)]
    loss, expected = gradients(model_dir, settings, groups, GROUPS)
    scale = max(float(gradient.abs().max()) for gradient in expected.values())
    assert scale > 1e-4
    for order in (groups, shuffled):
        for micro_groups in (1, 3, 8):
            other, found = gradients(model_dir, settings, order, micro_groups)
            assert other == pytest.approx(loss, rel=1e-5, abs=1e-6)
            assert found.keys() == expected.keys()
            for name, gradient in found.items():
                torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5 * scale)


def test_a_mean_per_micro_batch_would_not_agree(model_dir: Path) -> None:
    """The check above can fail: the fault it guards against (FAULTS 38) gives clearly other gradients on this very batch."""
    settings = AlgorithmSettings()
    groups = list(by_group(random_batch(GROUPS)))
    _, expected = gradients(model_dir, settings, groups, GROUPS)
    means = [gradients(model_dir, settings, groups[start : start + 3], 3)[1] for start in range(0, GROUPS, 3)]
    name = max(expected, key=lambda key: float(expected[key].abs().max()))
    wrong = torch.stack([mean[name] for mean in means]).mean(dim=0)
    assert float((wrong - expected[name]).abs().max()) > 1e-2 * float(expected[name].abs().max())


def test_the_loss_of_a_whole_batch_equals_the_formula_written_out(model_dir: Path) -> None:
    settings = AlgorithmSettings(kl_coef=0.3)
    batch = random_batch(2)
    engine = started(model_dir, settings)
    rows = pad_rows(batch, shape_of(2))
    log_probs = engine.forward_backward_batch(rows, None, forward_only=True).log_probs.double().numpy()
    expected = 0.0
    for row in range(len(batch)):
        advantage = float(batch.scalar("advantages")[row])
        for place, (old, ref) in enumerate(zip(batch.jagged("old_logprobs")[row], batch.jagged("ref_logprobs")[row], strict=True)):
            log_prob = log_probs[row, place]
            ratio = np.exp(log_prob - old)
            expected += -min(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage) + 0.3 * (np.exp(ref - log_prob) - (ref - log_prob) - 1)
    result = engine.forward_backward_batch(rows, PolicyLoss(settings))
    assert result.loss == pytest.approx(expected, rel=1e-5)
    assert PolicyLoss(settings).denominator(rows) == batch.jagged("response_ids").lengths.sum()

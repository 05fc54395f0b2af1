"""The policy loss token by token: clipping, masking, missing values, corrections."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from asyncflow.algorithms.loss import PolicyLoss, k3
from asyncflow.algorithms.registry import make_loss
from asyncflow.config import AlgorithmSettings
from asyncflow.contracts.batch import RowBatch


def row_batch(responses: list[list[float]], advantages: list[float], finish: list[int] | None = None, **columns: list[list[float]]) -> RowBatch:
    """Rows whose old log-probabilities are `responses`; other per-token columns by name."""
    rows, width = len(responses), max(map(len, responses))
    mask = torch.tensor([[place < len(run) for place in range(width)] for run in responses])

    def padded(runs: list[list[float]]) -> torch.Tensor:
        return torch.tensor([run + [0.0] * (width - len(run)) for run in runs])

    tensors = {name: padded(runs) for name, runs in {"old_logprobs": responses, **columns}.items()}
    tensors |= {"advantages": torch.tensor(advantages), "finish": torch.tensor(finish or [0] * rows)}
    ids = torch.zeros(rows, width + 1, dtype=torch.int64)
    return RowBatch(ids, torch.ones_like(ids, dtype=torch.bool), torch.ones(rows, dtype=torch.int64), mask, tensors, real_rows=rows)


def gradient(settings: AlgorithmSettings, log_probs: list[list[float]], batch: RowBatch) -> tuple[torch.Tensor, dict[str, float]]:
    leaf = torch.tensor(log_probs, requires_grad=True)
    loss, metrics = PolicyLoss(settings)(leaf, None, batch)
    loss.backward()
    assert leaf.grad is not None
    return leaf.grad, metrics


def test_stale_old_log_probabilities_make_the_ratio_clip() -> None:
    """Current 2 × as likely as when it was sampled: a good token is pushed no further, a bad one is still pushed down; and the other way round."""
    double, half = math.log(2.0), math.log(0.5)
    old = [[-3.0], [-3.0], [-3.0], [-3.0]]
    now = [[-3.0 + double], [-3.0 + double], [-3.0 + half], [-3.0 + half]]
    grad, metrics = gradient(AlgorithmSettings(), now, row_batch(old, [1.0, -1.0, 1.0, -1.0]))
    assert grad[:, 0].tolist() == pytest.approx([0.0, 2.0, -0.5, 0.0])
    assert metrics["clip_fraction"] == 2
    assert metrics["ratio"] == pytest.approx(5.0)


def test_nothing_is_clipped_when_the_old_policy_is_recomputed() -> None:
    batch = row_batch([[-1.0]], [1.0])
    grad, metrics = gradient(AlgorithmSettings(old_logprobs="recompute"), [[-3.0]], batch)
    assert grad.tolist() == [[-1.0]]
    assert (metrics["ratio"], metrics["clip_fraction"]) == (1.0, 0.0)


def test_asymmetric_clipping_is_taken_from_the_settings() -> None:
    batch = row_batch([[-3.0]], [1.0])
    grad, _ = gradient(AlgorithmSettings(clip_high=1.5), [[-3.0 + math.log(2.0)]], batch)
    assert grad.tolist() == [[pytest.approx(-2.0)]]


def test_a_missing_log_probability_masks_its_token_and_is_counted() -> None:
    batch = row_batch([[-1.0, float("nan"), -1.0]], [2.0])
    loss = PolicyLoss(AlgorithmSettings())
    grad, metrics = gradient(AlgorithmSettings(), [[-1.0, -1.0, -1.0]], batch)
    assert grad.tolist() == [[-2.0, 0.0, -2.0]]
    assert metrics["missing_logprobs"] == 1
    assert loss.denominator(batch) == 2


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        (AlgorithmSettings(), "old_logprobs"),
        (AlgorithmSettings(old_logprobs="behaviour"), "rollout_logprobs"),
        (AlgorithmSettings(kl_coef=0.1), "ref_logprobs"),
        (AlgorithmSettings(importance_cap=2.0), "rollout_logprobs"),
        (AlgorithmSettings(), "advantages"),
    ],
)
def test_a_missing_column_is_an_error_and_never_zero(settings: AlgorithmSettings, missing: str) -> None:
    columns: dict[str, Any] = {"rollout_logprobs": [[-1.0]], "ref_logprobs": [[-1.0]]}
    batch = row_batch([[-1.0]], [1.0], **columns)
    del batch.columns[missing]
    with pytest.raises(ValueError, match=f"column '{missing}' is missing"):
        PolicyLoss(settings)(torch.tensor([[-1.0]]), None, batch)


def test_aborted_rows_never_count_and_truncated_ones_by_the_settings() -> None:
    batch = row_batch([[-1.0], [-1.0], [-1.0]], [1.0, 1.0, 1.0], finish=[0, 1, 2])
    for truncated, expected in (("train", [-1.0, -1.0, 0.0]), ("mask", [-1.0, 0.0, 0.0])):
        settings = AlgorithmSettings(truncated=truncated)
        grad, metrics = gradient(settings, [[-1.0]] * 3, batch)
        assert grad[:, 0].tolist() == expected
        assert metrics["masked_rows"] == expected.count(0.0)
        assert PolicyLoss(settings).denominator(batch) == 3 - expected.count(0.0)


def test_sequences_or_tokens_count_alike() -> None:
    batch = row_batch([[-1.0], [-1.0] * 4], [1.0, 1.0])
    tokens, sequences = AlgorithmSettings(), AlgorithmSettings(aggregation="sequence")
    now = [[-1.0] * 4] * 2
    assert gradient(tokens, now, batch)[0].tolist() == [[-1.0, 0.0, 0.0, 0.0], [-1.0] * 4]
    assert gradient(sequences, now, batch)[0].tolist() == [[-1.0, 0.0, 0.0, 0.0], [-0.25] * 4]
    assert (PolicyLoss(tokens).denominator(batch), PolicyLoss(sequences).denominator(batch)) == (5, 2)


def test_the_weight_of_a_stale_sample_is_truncated_at_its_cap() -> None:
    batch = row_batch([[-1.0], [-1.0]], [1.0, 1.0], rollout_logprobs=[[-1.0 + math.log(2.0)], [-5.0]])
    grad, metrics = gradient(AlgorithmSettings(importance_cap=3.0), [[-1.0], [-1.0]], batch)
    assert grad[:, 0].tolist() == pytest.approx([-0.5, -3.0])
    assert metrics["importance"] == pytest.approx(3.5)


def test_k3_is_zero_at_equality_and_positive_elsewhere() -> None:
    log_probs = torch.tensor([-1.0, -1.0, -1.0])
    found = k3(log_probs, torch.tensor([-1.0, -0.5, -2.0]))
    assert found.tolist() == pytest.approx([0.0, math.exp(0.5) - 1.5, math.exp(-1.0)])


def test_a_loss_is_named_by_its_path_and_a_wrong_path_says_which_setting() -> None:
    assert isinstance(make_loss(AlgorithmSettings()), PolicyLoss)
    with pytest.raises(ValueError, match=r"algorithm.loss = 'asyncflow.algorithms.loss:Nothing'"):
        make_loss(AlgorithmSettings(loss="asyncflow.algorithms.loss:Nothing"))

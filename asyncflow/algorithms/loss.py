"""The policy loss: PPO's clipped objective against the old log-probabilities, an optional KL term, an optional correction of stale samples.

Everything is a sum over rows plus one denominator of the whole global batch, so the split into micro-batches leaves no trace. A missing
log-probability (NaN) masks its token and is counted; a missing column is an error; neither is ever read as 0.
"""

from __future__ import annotations

from typing import Protocol

import torch

from asyncflow.config.algorithm import AlgorithmSettings
from asyncflow.contracts.batch import RowBatch
from asyncflow.data.finish import LENGTH, STOP

Metrics = dict[str, float]
Averaged = dict[str, torch.Tensor]  # [R, T] each: what becomes a metric by the same weights as the loss


class Loss(Protocol):
    """A `LossFunction` of contracts/train.py that also says what its sums are divided by."""

    needs_entropy: bool  # whether the engine must compute the entropy [R, T]
    counts: frozenset[str]  # metrics that are counts: they are added up and never divided

    def denominator(self, batch: RowBatch) -> float:
        """What this micro-batch adds to the denominator of its global batch."""
        ...

    def __call__(self, log_probs: torch.Tensor, entropy: torch.Tensor | None, batch: RowBatch) -> tuple[torch.Tensor, Metrics]: ...


class PolicyLoss:
    """Per token: -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), r = exp(log_prob - old), times min(exp(old - behaviour), cap) if capped
    (truncated importance sampling), plus kl_coef * k3(ref), minus entropy_coef * entropy.

    Columns it reads: advantages [R]; finish [R]; old_logprobs or rollout_logprobs [R, T] by `old_logprobs`; ref_logprobs [R, T] if kl_coef > 0.
    aggregation "token": each token counts alike; "sequence": each sequence counts alike, a token by 1 / length.
    """

    counts = frozenset({"masked_rows", "missing_logprobs"})

    def __init__(self, settings: AlgorithmSettings) -> None:
        self._settings = settings
        self.needs_entropy = settings.entropy_coef > 0
        self._old = {"forward": "old_logprobs", "behaviour": "rollout_logprobs", "recompute": None}[settings.old_logprobs]
        self._read = [name for name in (self._old, "ref_logprobs" if settings.kl_coef > 0 else None) if name is not None]
        if settings.importance_cap is not None:
            self._read.append("rollout_logprobs")

    def denominator(self, batch: RowBatch) -> float:
        mask = self._mask(batch)
        counted = mask if self._settings.aggregation == "token" else mask.any(dim=1)
        return float(counted.sum())

    def __call__(self, log_probs: torch.Tensor, entropy: torch.Tensor | None, batch: RowBatch) -> tuple[torch.Tensor, Metrics]:
        mask = self._mask(batch)
        weights = mask.float()
        if self._settings.aggregation == "sequence":
            weights = weights / weights.sum(dim=1, keepdim=True).clamp(min=1.0)
        old = log_probs.detach() if self._old is None else _column(batch, self._old)
        policy, sums = self._policy(log_probs, torch.where(mask, old, log_probs.detach()), mask, batch)
        per_token = policy
        if self._settings.kl_coef > 0:
            sums["kl"] = k3(log_probs, torch.where(mask, _column(batch, "ref_logprobs"), log_probs.detach()))
            per_token = per_token + self._settings.kl_coef * sums["kl"]
        if entropy is not None:
            sums["entropy"] = entropy
            per_token = per_token - self._settings.entropy_coef * entropy
        loss = (per_token * weights).sum()
        metrics = {name: float((value.detach() * weights).sum()) for name, value in sums.items()}
        return loss, metrics | self._counts(mask, batch)

    def _policy(self, log_probs: torch.Tensor, old: torch.Tensor, mask: torch.Tensor, batch: RowBatch) -> tuple[torch.Tensor, Averaged]:
        """Loss [R, T] and its metrics. At masked places old equals log_probs, so no infinity can reach the gradient."""
        low, high = 1.0 - self._settings.clip_low, 1.0 + self._settings.clip_high
        advantages = _column(batch, "advantages")[:, None]
        ratio = torch.exp(log_probs - old)
        loss = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
        clipped = ((ratio > high) & (advantages > 0)) | ((ratio < low) & (advantages < 0))
        sums = {"ratio": ratio, "clip_fraction": clipped.float(), "old_kl": k3(log_probs, old)}
        if self._settings.importance_cap is not None:
            behaviour = torch.where(mask, _column(batch, "rollout_logprobs"), old)
            sums["importance"] = torch.exp(old - behaviour).clamp(max=self._settings.importance_cap)
            loss = loss * sums["importance"]
        return loss, sums

    def _mask(self, batch: RowBatch) -> torch.Tensor:
        """[R, T] tokens that count: of rows that are trained, with every log-probability there."""
        mask = batch.response_mask & self._trained_rows(batch)[:, None]
        for name in self._read:
            mask = mask & _column(batch, name).isfinite()
        return mask

    def _trained_rows(self, batch: RowBatch) -> torch.Tensor:
        """An aborted response is never trained as a complete one; one that ran out of budget only if the settings say so."""
        finish = _column(batch, "finish")
        trained = finish == STOP
        return trained | (finish == LENGTH) if self._settings.truncated == "train" else trained

    def _counts(self, mask: torch.Tensor, batch: RowBatch) -> Metrics:
        """Plain counts, not averages: rows left out, and tokens left out although their row is trained."""
        rows = self._trained_rows(batch)
        left_out = ~rows[: batch.real_rows]
        missing = batch.response_mask & rows[:, None] & ~mask
        return {"masked_rows": float(left_out.sum()), "missing_logprobs": float(missing.sum())}


def k3(log_probs: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Schulman's k3 estimate of KL(policy, other) at samples of the policy: exp(d) - d - 1 with d = other - log_prob; never negative. Any shape."""
    difference = other - log_probs
    return torch.exp(difference) - difference - 1.0


def _column(batch: RowBatch, name: str) -> torch.Tensor:
    if name not in batch.columns:
        raise ValueError(
            f"column {name!r} is missing in the trainer's batch, which has {sorted(batch.columns)}: a missing value is never read as 0, nothing is "
            f"trained; name it in stages.train.inputs"
        )
    return batch.columns[name].to(batch.response_mask.device)

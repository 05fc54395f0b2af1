"""Settings of the update: advantage, loss, optimizer."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from asyncflow.config.settings import Settings

TORCH = "torch"  # the engine that needs no import path
OldLogprobs = Literal["recompute", "forward", "behaviour"]
Control = Literal["none", "zero_advantages", "shuffle_rewards"]


class AlgorithmSettings(Settings, frozen=True):
    """How trained groups become new weights."""

    engine: str = TORCH  # "torch", or "module:function" of another train engine's factory, which then has micro-batches and loss of its own.
    loss: str = "asyncflow.algorithms.loss:PolicyLoss"  # "module:name" of the loss, called with these settings.
    learning_rate: float = 3e-4  # Peak learning rate of AdamW.
    warmup_steps: int = 0  # Steps over which the learning rate rises from 0.
    schedule: Literal["constant", "linear", "cosine"] = "constant"  # Course of the learning rate after the warm-up, over the run's steps.
    weight_decay: float = 0.0  # Decoupled weight decay of AdamW.
    betas: tuple[float, float] = (0.9, 0.99)  # AdamW's running averages.
    grad_clip: float = 1.0  # Largest norm of the gradient, after division by the global denominator.
    clip_low: float = 0.2  # The ratio is clipped below at 1 - clip_low.
    clip_high: float = 0.2  # The ratio is clipped above at 1 + clip_high.
    kl_coef: float = 0.0  # Weight of the k3 estimate of KL(policy, ref); above 0 it needs `ref_logprobs` among the inputs of `train`.
    entropy_coef: float = 0.0  # Weight of the entropy bonus.
    old_logprobs: OldLogprobs = "forward"  # Source of the ratio's denominator: trainer at start of update, forward worker, or as sampled.
    importance_cap: float | None = None  # Truncation of the behaviour-to-old importance ratio; null: no such correction.
    aggregation: Literal["token", "sequence"] = "token"  # Mean over the global batch's tokens, or over sequences of per-sequence means.
    normalise_std: bool = True  # Divide a group's advantages by their standard deviation.
    micro_batch_groups: int = 4  # Whole groups in one forward and backward pass; does not change loss or gradients.
    truncated: Literal["train", "mask"] = "train"  # What becomes of responses that ended by length: trained with their reward, or masked and counted.
    control: Control = "none"  # Control experiment: zero all advantages, or shuffle rewards within the batch; neither may improve accuracy.
    options: dict[str, Any] = msgspec.field(default_factory=dict)  # Settings of a loss or engine of your own.

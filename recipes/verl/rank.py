"""One rank of the trainer: verl's engine and verl's policy loss, driven call by call. All ranks make the same calls in the same order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from asyncflow.contracts.batch import StageBatch
from asyncflow.contracts.train import StepResult
from recipes.verl.conf import verl_conf

if TYPE_CHECKING:
    import torch

    from asyncflow.config import RunConfig

APART = 1e-4  # log-probabilities of one distribution that differ by more are counted
COUNTS = frozenset({"missing_logprobs", "logprobs_apart"})
COLUMNS = {"old_log_probs": "old_logprobs", "advantages": "advantages", "rollout_log_probs": "rollout_logprobs"}
REF_COLUMN = {"ref_log_prob": "ref_logprobs"}


class Sums(msgspec.Struct):
    """Of one call on one rank: metrics summed over its rows, and the denominator of all ranks together."""

    metrics: dict[str, float]
    denominator: float


class Rank:
    """Gradients are sums over rows: verl divides each call by its own tokens or rows, and that is multiplied back before the backward pass."""

    def __init__(self, config: RunConfig, model_dir: Path, rank: int, ranks: int, store: torch.distributed.Store | None) -> None:
        from recipes.verl.engines import build_engine, join_group

        conf = verl_conf(config)
        join_group(rank, ranks, store)
        self._ranks = ranks
        self._built = build_engine(conf, model_dir, forward_only=False, steps=config.total_steps)
        self._engine, self._actor = self._built.engine, self._built.actor
        self._by_tokens = self._actor.loss_agg_mode == "token-mean"
        self._columns = COLUMNS | (REF_COLUMN if self._actor.use_kl_loss else {})
        self._mode: AbstractContextManager[Any] | None = None
        self._dtype = config.models["policy"].dtype

    def enter(self) -> None:
        self._mode = self._engine.train_mode()
        self._mode.__enter__()

    def leave(self) -> None:
        mode, self._mode = self._mode, None
        assert mode is not None, "left only after it was entered"
        mode.__exit__(None, None, None)

    def zero_grad(self) -> None:
        self._engine.optimizer_zero_grad()

    def accumulate(self, batch: StageBatch) -> Sums:
        """Forward and backward of this rank's rows of one call."""
        from recipes.verl.tensors import to_tensordict

        data, missing = to_tensordict(batch, self._columns, self._built, self._ranks)
        sums = Sums({"missing_logprobs": float(missing)}, 0.0)

        def loss(model_output: Any, data: Any, dp_group: Any = None) -> tuple[torch.Tensor, dict[str, Any]]:
            return self._loss(model_output, data, sums)

        self._engine.forward_backward_batch(data, loss, forward_only=False)
        return sums

    def _loss(self, model_output: Any, data: Any, sums: Sums) -> tuple[torch.Tensor, dict[str, Any]]:
        """verl's own, times what it was divided by. Values of verl's metrics are its means of a micro-batch, or parts of a call's."""
        from verl.utils.metric import AggregationType, Metric
        from verl.workers.utils.losses import ppo_loss

        denominator = float(data["batch_num_tokens"] if self._by_tokens else data["global_batch_size"])
        sums.denominator = denominator
        self._compare(model_output["log_probs"], data, sums)
        if denominator == 0:  # every token is masked: nothing has a mean, and nothing a gradient
            return model_output["log_probs"].values().sum() * 0.0, {}
        value, metrics = ppo_loss(self._actor, model_output, data)
        local = float(data["response_mask"].values().sum() if self._by_tokens else len(data))
        for name, metric in metrics.items():
            if isinstance(metric, Metric):
                weight = denominator / self._ranks if metric.aggregation == AggregationType.SUM else local
                key = name.rpartition("/")[2]
                sums.metrics[key] = sums.metrics.get(key, 0.0) + float(metric.aggregate()) * weight
        return value * denominator, {}

    def _compare(self, log_probs: torch.Tensor, data: Any, sums: Sums) -> None:
        """The trainer's log-probabilities beside those of the rollout: alike on what these weights made."""
        from verl.workers.utils.padding import response_from_nested

        own = response_from_nested(log_probs.detach(), data["response_mask"]).values().float()
        apart = (own - data["rollout_log_probs"].values()).abs() * data["response_mask"].values()
        sums.metrics["logprobs_apart"] = sums.metrics.get("logprobs_apart", 0.0) + float((apart > APART).sum())
        if not self._by_tokens:  # the mean of each row counts once
            lengths = data["response_mask"].offsets().diff()
            apart = apart / lengths.repeat_interleave(lengths)
        sums.metrics["logprob_difference"] = sums.metrics.get("logprob_difference", 0.0) + float(apart.sum())

    def step(self, denominator: float) -> StepResult:
        """Divide the sums once, clip, step: see `contracts.train.StepEngine`."""
        lr = float(self._engine.lr_scheduler.get_last_lr()[0])
        if denominator == 0:
            return StepResult(grad_norm=0.0, skipped=True, lr=lr)
        for parameter in self._engine.module.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(denominator)
        norm = float(self._engine.optimizer_step())
        return StepResult(grad_norm=norm, skipped=not math.isfinite(norm), lr=lr)

    def schedule(self) -> float:
        return float(self._engine.lr_scheduler_step())

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Whole tensors under Hugging Face names. Collective: all ranks walk to the end."""
        import torch

        from recipes.verl.engines import names_of_tied

        tied, dtype = names_of_tied(self._engine.module), getattr(torch, self._dtype)
        tensors, _ = self._engine.get_per_tensor_param()
        for name, tensor in tensors:
            if name not in tied:
                yield name, tensor.detach().to(dtype)

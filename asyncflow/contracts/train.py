"""What a train engine is. The method names are those of verl's BaseEngine, so that verl's engines fit behind the same worker.

Gradients are *sums* over rows; the denominator of a global batch is known when the batch is complete and is divided out once, in
`optimizer_step`. So loss and gradients do not depend on micro-batches, packing, ranks or arrival order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import torch

    from asyncflow.contracts.batch import RowBatch, StageBatch

LossFunction = Callable[["torch.Tensor", "torch.Tensor | None", "RowBatch"], "tuple[torch.Tensor, dict[str, float]]"]
"""(log_probs [R, T] of the response tokens, entropy [R, T] or None, batch) → (loss summed over rows: 0-d, metrics summed over rows)."""


class StepResult(msgspec.Struct, frozen=True):
    grad_norm: float  # after division, before clipping
    skipped: bool  # a non-finite gradient: the weights did not change
    lr: float


class ForwardResult(msgspec.Struct):
    log_probs: torch.Tensor  # [R, T] float32, temperature applied, 0.0 at padding (masked by batch.response_mask)
    loss: float | None = None  # sum; None when forward only
    metrics: dict[str, float] = {}


class StepEngine(Protocol):
    """What the trainer's loop itself calls. How a micro-batch gets into the gradient sums is `Accumulate`'s."""

    def initialize(self) -> None: ...

    def train_mode(self) -> AbstractContextManager[None]: ...

    def optimizer_zero_grad(self) -> None: ...

    def optimizer_step(self, denominator: float = 1.0) -> StepResult:
        """Divide the accumulated sums by `denominator` (> 0), clip, step."""

    def lr_scheduler_step(self) -> float: ...

    def get_per_tensor_param(self) -> Iterator[tuple[str, torch.Tensor | np.ndarray]]:
        """Whole tensors under Hugging Face names; collective: every rank walks it. Tied weights appear once."""


class Accumulated(msgspec.Struct, frozen=True):
    metrics: dict[str, float]  # summed over rows
    denominator: float  # what this micro-batch adds to the global batch's


class Accumulate(Protocol):
    """Forward and backward of one micro-batch of whole groups, as leased."""

    counts: frozenset[str]  # metrics that are counts: they are added up and never divided

    def __call__(self, batch: StageBatch) -> Accumulated: ...


class Training(msgspec.Struct, frozen=True):
    """What a train engine's factory makes for the trainer's loop."""

    engine: StepEngine
    accumulate: Accumulate


class TrainEngine(StepEngine, Protocol):
    def eval_mode(self) -> AbstractContextManager[None]: ...

    def forward_backward_batch(self, batch: RowBatch, loss_function: LossFunction | None, forward_only: bool = False) -> ForwardResult:
        """One micro-batch: forward, loss sum, backward (accumulates). `forward_only` needs no loss."""

    def get_per_tensor_param(self) -> Iterator[tuple[str, torch.Tensor]]: ...

    def load_weights(self, tensors: Mapping[str, torch.Tensor]) -> None: ...

    def save_checkpoint(self, path: Path) -> None: ...

    def load_checkpoint(self, path: Path) -> None: ...

    def get_data_parallel_rank(self) -> int: ...

    def get_data_parallel_size(self) -> int: ...

    def get_data_parallel_group(self) -> object | None: ...

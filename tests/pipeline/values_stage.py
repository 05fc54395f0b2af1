"""A `values` stage as a user would add it: this file, and the YAML beside it. It predicts a baseline for every row, which the loss subtracts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from asyncflow.algorithms.loss import Metrics, PolicyLoss
from asyncflow.contracts.batch import RowBatch, StageBatch
from asyncflow.contracts.stage import StageContext
from asyncflow.stages.weightless import Weightless


class Values(Weightless):
    """response_ids → values [R] float32: `scale` times the response's length."""

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def __call__(self, batch: StageBatch) -> Mapping[str, np.ndarray]:
        return {"values": (self._scale * batch.jagged("response_ids").lengths).astype(np.float32)}


def make_values(context: StageContext) -> Values:
    return Values(**context.stage.options)


class BaselineLoss(PolicyLoss):
    """The policy loss with advantages − values."""

    def __call__(self, log_probs: torch.Tensor, entropy: torch.Tensor | None, batch: RowBatch) -> tuple[torch.Tensor, Metrics]:
        columns = {**batch.columns, "advantages": batch.columns["advantages"] - batch.columns["values"]}
        loss, metrics = super().__call__(log_probs, entropy, RowBatch(**{**vars(batch), "columns": columns}))
        return loss, metrics | {"values": float(batch.columns["values"].sum())}

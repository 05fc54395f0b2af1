"""A stage of your own and a loss that reads its column: a price for each token beyond the first few. `brevity.yaml` adds them to `letters.yaml`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from asyncflow.algorithms.loss import Metrics, PolicyLoss
from asyncflow.contracts.batch import RowBatch, StageBatch
from asyncflow.contracts.stage import StageContext
from asyncflow.stages.weightless import Weightless


class Excess(Weightless):
    """response_ids → excess [R] float32: tokens beyond `free`, as a share of `free`. Called with leased rows, answers for the same rows in order."""

    def __init__(self, free: int) -> None:
        self._free = free

    def __call__(self, batch: StageBatch) -> Mapping[str, np.ndarray]:
        lengths = batch.jagged("response_ids").lengths
        return {"excess": (np.maximum(lengths - self._free, 0) / self._free).astype(np.float32)}


def make_excess(context: StageContext) -> Excess:
    """The factory that `stages.excess.compute` names. `stages.excess.options` are its own settings."""
    return Excess(**context.stage.options)


class PricedLoss(PolicyLoss):
    """The policy loss with advantages − `algorithm.options.price` × excess."""

    def __call__(self, log_probs: torch.Tensor, entropy: torch.Tensor | None, batch: RowBatch) -> tuple[torch.Tensor, Metrics]:
        advantages = batch.columns["advantages"] - self._settings.options["price"] * batch.columns["excess"]
        priced = RowBatch(**{**vars(batch), "columns": {**batch.columns, "advantages": advantages}})
        loss, metrics = super().__call__(log_probs, entropy, priced)
        return loss, metrics | {"excess": float(batch.columns["excess"].sum())}

"""Micro-batches of the torch engine: leased rows are padded to the run's one shape, and the loss says what they add to the denominator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from asyncflow.algorithms.loss import Loss
from asyncflow.algorithms.registry import make_loss
from asyncflow.contracts.batch import StageBatch
from asyncflow.contracts.train import Accumulated, TrainEngine, Training
from asyncflow.data.batch import BatchShape, pad_rows, train_shape
from asyncflow.engines.train.torch_engine import make_train_engine

if TYPE_CHECKING:
    from asyncflow.config import RunConfig


class PaddedMicroBatches:
    """See `contracts.train.Accumulate`."""

    def __init__(self, engine: TrainEngine, loss: Loss, shape: BatchShape) -> None:
        self._engine, self._loss, self._shape = engine, loss, shape
        self.counts = loss.counts

    def __call__(self, batch: StageBatch) -> Accumulated:
        rows = pad_rows(batch, self._shape)
        result = self._engine.forward_backward_batch(rows, self._loss)
        return Accumulated(result.metrics, self._loss.denominator(rows))


def make_padded(config: RunConfig, model_dir: Path) -> Training:
    engine = make_train_engine(config, model_dir)
    return Training(engine, PaddedMicroBatches(engine, make_loss(config.algorithm), train_shape(config)))

"""The emulated train engine: all devices of the trainer work on one micro-batch together, and then its time is over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from asyncflow.contracts.batch import StageBatch
from asyncflow.contracts.train import Accumulated, StepResult, Training
from asyncflow.engines.emulated.clock import Device, ModelClock
from asyncflow.engines.emulated.settings import Emulation, emulation_of
from asyncflow.engines.emulated.stages import counted_tokens
from asyncflow.engines.emulated.weights import EmulatedWeights

if TYPE_CHECKING:
    from asyncflow.config import RunConfig


class EmulatedTrainEngine:
    """A `contracts.train.StepEngine`. The optimizer's own time is part of the table's time a mini-batch."""

    def __init__(self, emulation: Emulation, device: Device) -> None:
        self._weights, self._device = EmulatedWeights(), device
        pause = emulation.costs.pause
        self._pause_s = pause.seconds if "trainer" in pause.who else 0.0

    def initialize(self) -> None:
        """Nothing is allocated."""

    def train_mode(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def optimizer_zero_grad(self) -> None:
        """No gradients are kept."""

    def optimizer_step(self, denominator: float = 1.0) -> StepResult:
        self._weights.step()
        return StepResult(grad_norm=0.0, skipped=False, lr=0.0)

    def lr_scheduler_step(self) -> float:
        return 0.0

    def get_per_tensor_param(self) -> Iterator[tuple[str, np.ndarray]]:
        if self._pause_s > 0:
            self._device.spend(self._pause_s)
        return iter(self._weights)


class EmulatedMicroBatches:
    """A `contracts.train.Accumulate`: one micro-batch is one mini-batch of the table."""

    counts: frozenset[str] = frozenset()

    def __init__(self, emulation: Emulation, device: Device) -> None:
        costs = emulation.costs
        self._costs, self._device = costs, device
        self._tokens_per_s = costs.train.tokens_per_s * costs.split.trainer

    def __call__(self, batch: StageBatch) -> Accumulated:
        self._device.spend(self._costs.train.minibatch_s + counted_tokens(batch, self._costs) / self._tokens_per_s)
        return Accumulated(metrics={}, denominator=float(len(batch)))


def make_training(config: RunConfig, model_dir: Path) -> Training:
    """For `algorithm.engine`."""
    emulation = emulation_of(config)
    device = Device(ModelClock(emulation.time_scale))
    return Training(EmulatedTrainEngine(emulation, device), EmulatedMicroBatches(emulation, device))

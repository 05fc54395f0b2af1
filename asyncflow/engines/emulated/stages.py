"""The emulated stages: forward passes that wait for their modelled time, and a reward that is made up. Columns are real."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from asyncflow.contracts.batch import StageBatch
from asyncflow.contracts.stage import StageContext
from asyncflow.contracts.weights import WeightsId
from asyncflow.engines.emulated.clock import Device, ModelClock
from asyncflow.engines.emulated.settings import emulation_of
from asyncflow.sizing.costs import CostTable, Work
from asyncflow.stages.weightless import Weightless
from transfer_queue.columns import Jagged


def response_tokens(batch: StageBatch) -> np.ndarray:
    """[R] int64."""
    return batch.jagged("response_ids").lengths


def counted_tokens(batch: StageBatch, costs: CostTable) -> int:
    """All tokens of the batch as the table's rates count them."""
    return sum(costs.row_tokens(length) for length in response_tokens(batch).tolist())


class EmulatedForward:
    """One device. response_ids → one per-token float32 column called `output`."""

    def __init__(self, output: str, work: Work, pause_s: float, costs: CostTable, clock: ModelClock) -> None:
        self._output, self._work, self._pause_s, self._costs = output, work, pause_s, costs
        self._device = Device(clock)
        self._loaded: WeightsId | None = None

    def __call__(self, batch: StageBatch) -> Mapping[str, Jagged]:
        self._device.spend(self._work.call_s + counted_tokens(batch, self._costs) / self._work.tokens_per_s)
        offsets = batch.jagged("response_ids").offsets
        return {self._output: Jagged(np.full(int(offsets[-1]), -1.0, dtype=np.float32), offsets)}

    def load_weights(self, weights: WeightsId, tensors: Any) -> None:
        if self._loaded is not None:
            self._device.spend(self._pause_s)
        self._loaded = weights

    def close(self) -> None:
        """Nothing is held."""


class EmulatedReward(Weightless):
    """response_ids → rewards [R] float32, by the response's length. Takes no modelled time: the cost table has none for it."""

    def __call__(self, batch: StageBatch) -> Mapping[str, np.ndarray]:
        return {"rewards": (response_tokens(batch) % 2).astype(np.float32)}


def make_forward(context: StageContext) -> EmulatedForward:
    """For `stages.actor_forward.compute` and `stages.ref_forward.compute`; the stage's name picks its costs."""
    emulation, name = emulation_of(context.config), context.stage.name
    costs = emulation.costs
    work: Work = getattr(costs, name)
    pause_s = costs.pause.seconds if name in costs.pause.who else 0.0
    return EmulatedForward(context.stage.outputs[0].name, work, pause_s, costs, ModelClock(emulation.time_scale))


def make_reward(context: StageContext) -> EmulatedReward:
    """For `stages.reward.compute`."""
    return EmulatedReward()

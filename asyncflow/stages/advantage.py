"""The stage `advantage`: group-relative advantages over whole groups. numpy only, so its process never loads torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from asyncflow.algorithms.grpo import group_advantages
from asyncflow.config.algorithm import Control
from asyncflow.contracts.batch import StageBatch
from asyncflow.contracts.stage import StageContext
from asyncflow.stages.weightless import Weightless


class AdvantageStage(Weightless):
    """rewards [R] of whole groups → advantages [R] float32. The column `rewards` itself stays as it is, also in a control experiment."""

    def __init__(self, *, normalise_std: bool, control: Control = "none", seed: int = 0) -> None:
        self._normalise_std, self._control, self._seed = normalise_std, control, seed

    def __call__(self, batch: StageBatch) -> Mapping[str, np.ndarray]:
        rewards = batch.scalar("rewards")
        if self._control == "zero_advantages":
            return {"advantages": np.zeros(len(batch), dtype=np.float32)}
        if self._control == "shuffle_rewards":
            rewards = np.random.default_rng((self._seed, int(batch.gids[0]))).permutation(rewards)  # over all rows of this batch
        return {"advantages": group_advantages(rewards, batch.gids, normalise_std=self._normalise_std)}


def make_advantage(context: StageContext) -> AdvantageStage:
    algorithm = context.config.algorithm
    return AdvantageStage(normalise_std=algorithm.normalise_std, control=algorithm.control, seed=context.config.run.seed)

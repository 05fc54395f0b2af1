"""The stage `advantage`: verl's estimator over whole groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from asyncflow.contracts.batch import StageBatch
from asyncflow.contracts.stage import StageContext
from asyncflow.stages.weightless import Weightless
from recipes.verl.conf import verl_conf
from transfer_queue.columns import Jagged

if TYPE_CHECKING:
    from omegaconf import DictConfig


class AdvantageStage(Weightless):
    """rewards [R] of whole groups, response_ids → advantages, one a response token."""

    def __init__(self, conf: DictConfig) -> None:
        self._algorithm, self._samples = conf.algorithm, conf.actor_rollout_ref.rollout.n

    def __call__(self, batch: StageBatch) -> Mapping[str, Jagged]:
        import torch
        from tensordict import TensorDict
        from verl.protocol import DataProto
        from verl.trainer.ppo.ray_trainer import compute_advantage

        rewards, responses = batch.scalar("rewards"), batch.jagged("response_ids")
        if not np.isfinite(rewards).all():
            row = int(np.flatnonzero(~np.isfinite(rewards))[0])
            raise ValueError(f"reward of group {batch.gids[row]} is {rewards[row]}: a missing reward has no advantage; mend the reward function")
        lengths = torch.from_numpy(np.array(responses.lengths))
        mask = (torch.arange(int(lengths.max())) < lengths[:, None]).float()  # [R, T]
        scores = torch.zeros_like(mask)
        scores[torch.arange(len(batch)), lengths - 1] = torch.from_numpy(np.array(rewards, dtype=np.float32))  # of a response: at its last token
        tensors = TensorDict({"token_level_rewards": scores, "response_mask": mask}, batch_size=[len(batch)])
        data = compute_advantage(
            DataProto(batch=tensors, non_tensor_batch={"uid": batch.gids.astype(object)}),
            adv_estimator=self._algorithm.adv_estimator,
            gamma=self._algorithm.gamma,
            lam=self._algorithm.lam,
            num_repeat=self._samples,
            norm_adv_by_std_in_grpo=self._algorithm.norm_adv_by_std_in_grpo,
            config=self._algorithm,
        )
        advantages = data.batch["advantages"][mask.bool()].float().numpy()
        return {"advantages": Jagged(advantages, responses.offsets)}


def make_advantage(context: StageContext) -> AdvantageStage:
    return AdvantageStage(verl_conf(context.config))

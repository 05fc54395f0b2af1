"""The stage `reward`: verl's reward loop, with the reward manager and the function that its configuration names, in a process without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from asyncflow.contracts.batch import StageBatch
from asyncflow.contracts.stage import GroupsFailed, StageContext
from asyncflow.stages.weightless import Weightless
from recipes.verl.conf import verl_conf

if TYPE_CHECKING:
    from omegaconf import DictConfig


class Scorer:
    """Rows of one call are scored side by side, as far as the reward function lets them."""

    def __init__(self, conf: DictConfig) -> None:
        from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)  # reward managers take the loop of the thread that makes them
        self._worker = RewardLoopWorker(conf)

    def score(self, items: Sequence[bytes], responses: Sequence[Sequence[int]], within_s: float | None = None) -> list[float]:
        """One score a row. Raises TimeoutError where all of them took longer than `within_s`, and whatever the reward function raises."""
        rows = [self._one(item, response, within_s) for item, response in zip(items, responses, strict=True)]
        return self._loop.run_until_complete(_all(rows))

    async def _one(self, item: bytes, response: Sequence[int], within_s: float | None) -> float:
        found = await asyncio.wait_for(self._worker.compute_score(_as_data(item, response)), within_s)
        return float(found["reward_score"])


async def _all(rows: Sequence[Any]) -> list[float]:
    return list(await asyncio.gather(*rows))


def _as_data(item: bytes, response: Sequence[int]) -> Any:
    """One row as reward managers take it."""
    import torch
    from tensordict import TensorDict
    from verl.protocol import DataProto

    ids = torch.tensor([list(response)], dtype=torch.int64)  # [1, T]
    tensors = TensorDict({"responses": ids, "attention_mask": torch.ones_like(ids)}, batch_size=[1])
    columns = {}
    for name, value in msgspec.json.decode(item).items():
        columns[name] = np.empty(1, dtype=object)
        columns[name][0] = value
    return DataProto(batch=tensors, non_tensor_batch=columns)


class RewardStage(Weightless):
    """item, response_ids → rewards [R] float32: the score of each response."""

    def __init__(self, scorer: Scorer, deadline_s: float) -> None:
        self._scorer, self._deadline_s = scorer, deadline_s

    def __call__(self, batch: StageBatch) -> Mapping[str, np.ndarray]:
        items, responses = batch.columns["item"], batch.jagged("response_ids")
        assert isinstance(items, list), "the topic declares it as a blob"
        try:
            scores = self._scorer.score(items, [responses[row].tolist() for row in range(len(batch))], self._deadline_s)
        except TimeoutError:
            detail = f"scoring took longer than limits.reward_s = {self._deadline_s:g} s"
            raise GroupsFailed(sorted({int(gid) for gid in batch.gids}), "reward_timeout", detail) from None
        return {"rewards": np.array(scores, dtype=np.float32)}


def make_reward(context: StageContext) -> RewardStage:
    return RewardStage(Scorer(verl_conf(context.config)), context.config.limits.reward_s)

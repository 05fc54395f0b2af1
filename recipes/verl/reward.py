"""The stage `reward`: verl's reward loop, with the reward manager and the function that its configuration names, in a process without Ray."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from asyncflow.contracts.batch import StageBatch
from asyncflow.contracts.stage import GroupsFailed, StageContext
from asyncflow.stages.weightless import Weightless
from recipes.verl.conf import verl_conf

if TYPE_CHECKING:
    from omegaconf import DictConfig


AT_ONCE = min(32, (os.cpu_count() or 1) + 4)
"""Rows that are scored side by side: as many as there are threads for them, so that waiting for one is not counted as scoring."""
CANCEL_S = 1.0  # for a reward function that is told to end


class Scorer:
    """Rows of one call are scored side by side, as far as the reward function lets them. Of the thread that made it, and of no other."""

    def __init__(self, conf: DictConfig) -> None:
        from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)  # reward managers take the loop of the thread that makes them
        self._loop.set_default_executor(ThreadPoolExecutor(AT_ONCE, thread_name_prefix="reward"))
        self._worker = RewardLoopWorker(conf)

    def score(self, items: Sequence[bytes], responses: Sequence[Sequence[int]], within_s: float | None = None) -> list[float | None]:
        """One score a row; None for a row that took longer than `within_s`. Raises whatever the reward function raises."""
        rows = [self._one(item, response) for item, response in zip(items, responses, strict=True)]
        scores = self._loop.run_until_complete(all_within(rows, within_s))
        if None in scores:  # a function that hangs keeps its thread, which the next rows would wait for
            self._loop.set_default_executor(ThreadPoolExecutor(AT_ONCE, thread_name_prefix="reward"))
        return scores

    async def _one(self, item: bytes, response: Sequence[int]) -> float:
        found = await self._worker.compute_score(_as_data(item, response))
        return float(found["reward_score"])


async def all_within(rows: Sequence[Coroutine[Any, Any, float]], within_s: float | None) -> list[float | None]:
    """What each gives, `AT_ONCE` at a time; None for one that took longer than `within_s` of its own. Once all are through, the first error is
    raised, so none of them runs on."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(row: Coroutine[Any, Any, float]) -> float | None:
        async with turns:
            task = asyncio.ensure_future(row)
            done, _ = await asyncio.wait({task}, timeout=within_s)
            if done:
                return task.result()
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_S)
            return None

    found = await asyncio.gather(*map(one, rows), return_exceptions=True)
    for outcome in found:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in found if not isinstance(outcome, BaseException)]


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
    """item, response_ids → rewards [R] float32: the score of each response. A row over its deadline fails its group, and no other."""

    def __init__(self, scorer: Scorer, deadline_s: float) -> None:
        self._scorer, self._deadline_s = scorer, deadline_s

    def __call__(self, batch: StageBatch) -> Mapping[str, np.ndarray]:
        items, responses = batch.columns["item"], batch.jagged("response_ids")
        assert isinstance(items, list), "the topic declares it as a blob"
        scores = self._scorer.score(items, [responses[row].tolist() for row in range(len(batch))], self._deadline_s)
        late = [row for row, score in enumerate(scores) if score is None]
        if late:
            named = ", ".join(f"group {batch.gids[row]} row {batch.rows[row]}" for row in late)
            detail = f"scoring {named} took longer than limits.reward_s = {self._deadline_s:g} s"
            raise GroupsFailed(sorted({int(batch.gids[row]) for row in late}), "reward_timeout", detail)
        return {"rewards": np.array(scores, dtype=np.float32)}


def make_reward(context: StageContext) -> RewardStage:
    return RewardStage(Scorer(verl_conf(context.config)), context.config.limits.reward_s)

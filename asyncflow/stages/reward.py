"""The stage `reward`: the task's own score of every response, each within a deadline. No torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from asyncflow.contracts.batch import StageBatch
from asyncflow.contracts.stage import GroupsFailed, StageContext
from asyncflow.data.task import load_task
from asyncflow.rewards.deadline import DeadlineScorer, Score
from asyncflow.stages.weightless import Weightless


class RewardStage(Weightless):
    """item (blob), response_ids → rewards [R] float32. A row over its deadline fails its group, and no other."""

    def __init__(self, score: Score, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._scorer = DeadlineScorer(score, deadline_s)

    def __call__(self, batch: StageBatch) -> Mapping[str, np.ndarray]:
        """Raises GroupsFailed for rows that took too long, and whatever the task's scorer raises."""
        items, responses = batch.columns["item"], batch.jagged("response_ids")
        if not isinstance(items, list):
            raise TypeError(f"column 'item' is {type(items).__name__} where bytes a row are needed; nothing is scored; declare it as a blob")
        scores = self._scorer(items, [responses[row].tolist() for row in range(len(batch))])
        late = [row for row, score in enumerate(scores) if score is None]
        if late:
            named = ", ".join(f"group {batch.gids[row]} row {batch.rows[row]}" for row in late)
            detail = f"scoring {named} took longer than limits.reward_s = {self._deadline_s:g} s"
            raise GroupsFailed(sorted({int(batch.gids[row]) for row in late}), "reward_timeout", detail)
        return {"rewards": np.array(scores, dtype=np.float32)}

    def close(self) -> None:
        self._scorer.close()


def make_reward(context: StageContext) -> RewardStage:
    return RewardStage(load_task(context.config).score, context.config.limits.reward_s)

"""The stage `reward`: the task's own score of every response, each within a deadline; where it is asked for, the verdict behind it. No torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from asyncflow.contracts.batch import StageBatch
from asyncflow.contracts.stage import GroupsFailed, StageContext
from asyncflow.data.task import Judge, Prepared, load_task, score_deadline_s
from asyncflow.rewards.deadline import DeadlineScorer, Score
from asyncflow.rewards.verdict import VERDICT, Verdict
from asyncflow.stages.weightless import Weightless


class RewardStage(Weightless):
    """item (blob), response_ids → rewards [R] float32. A row over its deadline fails its group, and no other."""

    def __init__(self, score: Score, deadline_s: float, judge: Judge | None = None) -> None:
        """`judge`: whose `score` or `verdict` it is, to be closed with the stage."""
        self._deadline_s, self._judge = deadline_s, judge
        self._scorer = DeadlineScorer(score, deadline_s)

    def __call__(self, batch: StageBatch) -> Mapping[str, np.ndarray]:
        """Raises GroupsFailed for rows that took too long, and whatever the task's scorer raises."""
        return {"rewards": self.scored(batch).astype(np.float32)}

    def scored(self, batch: StageBatch) -> np.ndarray:
        """[R] float64: what `score` said of each row."""
        items, responses = batch.columns["item"], batch.jagged("response_ids")
        if not isinstance(items, list):
            raise TypeError(f"column 'item' is {type(items).__name__} where bytes a row are needed; nothing is scored; declare it as a blob")
        try:
            scores = self._scorer(items, [responses[row].tolist() for row in range(len(batch))])
        except Exception as error:  # it ends the run: say at which row
            error.add_note(f"raised while the response of group {batch.gids[self._scorer.at]}, row {batch.rows[self._scorer.at]} was scored")
            raise
        late = [row for row, score in enumerate(scores) if score is None]
        if late:
            named = ", ".join(f"group {batch.gids[row]} row {batch.rows[row]}" for row in late)
            detail = f"scoring {named} took longer than limits.reward_s = {self._deadline_s:g} s"
            raise GroupsFailed(sorted({int(batch.gids[row]) for row in late}), "reward_timeout", detail)
        return np.array(scores, dtype=np.float64)

    def close(self) -> None:
        self._scorer.close()
        if self._judge is not None:
            self._judge.close()


class VerdictStage(RewardStage):
    """item, response_ids → rewards [R] float32 and verdict [R] uint8 (`asyncflow.rewards.verdict`), for tasks that judge."""

    def __init__(self, judge: Judge, deadline_s: float) -> None:
        super().__init__(judge.verdict, deadline_s, judge)

    def __call__(self, batch: StageBatch) -> Mapping[str, np.ndarray]:
        verdicts = self.scored(batch)
        return {"rewards": (verdicts == Verdict.RIGHT).astype(np.float32), VERDICT: verdicts.astype(np.uint8)}


def make_reward(context: StageContext) -> RewardStage:
    """With verdicts where the stage is to write the column of that name. Raises ValueError where the task gives none, or gets too little time."""
    task = load_task(context.config)
    deadline_s = score_deadline_s(context.config, task)
    judge = task if isinstance(task, Judge) else None
    with_verdict = any(column.name == VERDICT for column in context.stage.outputs)
    if with_verdict and judge is None:
        rule = f"{context.config.task.path} gives no verdicts, it has no method `verdict`"
        raise ValueError(f"stages.{context.stage.name}.outputs.{VERDICT}: {rule}; nothing would write the column. Fix: remove it from the outputs")
    if isinstance(task, Prepared):
        task.prepare()
    return VerdictStage(judge, deadline_s) if with_verdict and judge is not None else RewardStage(task.score, deadline_s, judge)

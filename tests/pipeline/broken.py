"""Stages that fail on purpose."""

from __future__ import annotations

import time
from collections.abc import Sequence

from asyncflow.contracts.batch import StageBatch
from asyncflow.contracts.stage import StageContext
from asyncflow.stages.advantage import AdvantageStage
from tests.pipeline.model import DenseSorting


class RaisingAdvantage(AdvantageStage):
    def __call__(self, batch: StageBatch) -> dict:
        raise ZeroDivisionError(f"on purpose, at group {batch.gids[0]}")


def make_raising(context: StageContext) -> RaisingAdvantage:
    return RaisingAdvantage(normalise_std=True)


class HangingAdvantage(AdvantageStage):
    def __call__(self, batch: StageBatch) -> dict:
        time.sleep(3600)
        raise AssertionError("nobody waits so long")


def make_hanging(context: StageContext) -> HangingAdvantage:
    return HangingAdvantage(normalise_std=True)


class HangingScorer(DenseSorting):
    """Scoring hangs for one question among many, which every run has among its first."""

    def score(self, item: bytes, response_ids: Sequence[int]) -> float:
        if item == self.prompt(5)[1]:
            time.sleep(3600)
        return super().score(item, response_ids)


def hanging_scorer(seed: int) -> HangingScorer:
    return HangingScorer(seed=seed)

"""Deadlines of the recipe's rewards. No verl is needed: functions that hang or raise stand in for its reward loop, whose scores others test."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from asyncflow.contracts.batch import StageBatch
from asyncflow.contracts.stage import GroupsFailed
from asyncflow.rewards.deadline import DeadlineScorer
from recipes.verl import reward
from recipes.verl.reward import AT_ONCE, RewardStage, Scorer, all_within
from recipes.verl.task import VerlTask
from transfer_queue.columns import Jagged


class Loop(Scorer):
    """Hangs on the items that are told, in the way of a function that Python cannot end. Else a score is the length of the response."""

    def __init__(self, hang: bytes = b"hang") -> None:
        self._loop = asyncio.new_event_loop()
        self._hang = hang

    async def _one(self, item: bytes, response: Sequence[int]) -> float:
        if item == self._hang:
            await self._loop.run_in_executor(None, ENDED.wait, 30.0)
        if item == b"raise":
            raise ValueError("no such answer")
        return float(await self._loop.run_in_executor(None, len, response))


ENDED = threading.Event()


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    ENDED.clear()
    yield
    ENDED.set()


def batch(items: list[bytes]) -> StageBatch:
    rows, versions = np.zeros(len(items), dtype=np.int32), np.zeros(len(items), dtype=np.int64)
    columns: dict[str, Any] = {"item": items, "response_ids": Jagged.of([np.arange(n + 1) for n in range(len(items))], "int32")}
    return StageBatch(np.arange(len(items)), rows, versions, versions, columns)


def test_a_row_that_hangs_fails_its_group_and_no_other() -> None:
    with pytest.raises(GroupsFailed, match=r"group 1 row 0 took longer than limits\.reward_s = 0\.2 s") as caught:
        RewardStage(Loop(), 0.2)(batch([b"a", b"hang", b"c"]))
    assert caught.value.gids == [1]


def test_rows_that_hung_take_no_thread_from_the_next_ones() -> None:
    stage = RewardStage(Loop(), 0.3)
    with pytest.raises(GroupsFailed):
        stage(batch([b"hang"] * AT_ONCE))
    np.testing.assert_array_equal(stage(batch([b"a", b"b"]))["rewards"], [1.0, 2.0])


def test_waiting_for_a_thread_is_not_counted_as_scoring() -> None:
    async def one() -> float:
        await asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.2)
        return 1.0

    found = asyncio.run(all_within([one() for _ in range(4 * AT_ONCE)], 0.6))
    assert found == [1.0] * (4 * AT_ONCE)


def test_what_a_reward_function_raises_is_raised_once_the_others_are_through() -> None:
    ends: list[float] = []

    async def one(after_s: float) -> float:
        await asyncio.sleep(after_s)
        if after_s == 0.0:
            raise TimeoutError("the judge did not answer")
        ends.append(after_s)
        return 1.0

    with pytest.raises(TimeoutError, match="the judge did not answer"):
        asyncio.run(all_within([one(0.0), one(0.1)], 1.0))
    assert ends == [0.1]


def test_an_evaluation_goes_on_after_a_row_that_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(conf: Any) -> Loop:
        time.sleep(0.6)  # that long it takes to be made, which is no row's time
        return Loop()

    monkeypatch.setattr(reward, "Scorer", slow)
    task = VerlTask(1, {"trainer": {"device": "cuda"}})
    scorer = DeadlineScorer(task.score, 0.3)
    assert scorer([b"a", b"hang", b"b"], [[1], [1], [1, 2]]) == [1.0, None, 2.0]
    scorer.close()

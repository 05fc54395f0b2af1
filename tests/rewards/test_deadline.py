"""A scorer that hangs or raises: the row is named, the rest is scored, the run goes on or ends as it should."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from asyncflow.contracts.batch import StageBatch
from asyncflow.contracts.stage import GroupsFailed
from asyncflow.rewards.deadline import DeadlineScorer
from asyncflow.rewards.row_clock import Running, Stopped, told, uncounted
from asyncflow.stages.reward import RewardStage
from transfer_queue.columns import Jagged

DEADLINE_S = 0.15


class Hanging:
    """Scores a row by its first token; waits for `free` on the item b"hang"."""

    def __init__(self) -> None:
        self.free = threading.Event()

    def __call__(self, item: bytes, response_ids: Sequence[int]) -> float:
        if item == b"hang":
            self.free.wait(20)
        return float(response_ids[0])


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    score = Hanging()
    yield score
    score.free.set()


def batch_of(items: list[bytes]) -> StageBatch:
    gids = np.arange(len(items), dtype=np.int64) // 2 + 40
    batch = StageBatch(gids, np.arange(len(items), dtype=np.int32) % 2, gids, gids)
    batch.columns["item"] = items
    batch.columns["response_ids"] = Jagged.of([[row] for row in range(len(items))], "int32")
    return batch


def test_a_hanging_row_is_given_up_within_the_deadline_and_the_others_are_scored(hanging: Hanging) -> None:
    scorer = DeadlineScorer(hanging, DEADLINE_S)
    start_s = time.monotonic()
    assert scorer([b"", b"hang", b"", b"hang", b""], [[row] for row in range(5)]) == [0.0, None, 2.0, None, 4.0]
    assert time.monotonic() - start_s < 10 * DEADLINE_S
    assert scorer([b""], [[7]]) == [7.0]


def test_an_answer_that_comes_late_is_nobodys_answer(hanging: Hanging) -> None:
    scorer = DeadlineScorer(hanging, DEADLINE_S)
    assert scorer([b"hang"], [[1]]) == [None]
    hanging.free.set()
    assert scorer([b"", b""], [[5], [6]]) == [5.0, 6.0]


def test_a_scorer_that_always_hangs_ends_the_run(hanging: Hanging) -> None:
    scorer = DeadlineScorer(hanging, 0.02, max_hung=3)
    with pytest.raises(TimeoutError, match=r"hung 4 times.*limits.reward_s"):
        scorer([b"hang"] * 9, [[0]] * 9)


def test_what_the_scorer_raises_is_raised_to_the_caller_and_it_goes_on() -> None:
    def score(item: bytes, response_ids: Sequence[int]) -> float:
        if item == b"bad":
            raise ZeroDivisionError("in the scorer")
        return 1.0

    scorer = DeadlineScorer(score, 5.0)
    with pytest.raises(ZeroDivisionError, match="in the scorer"):
        scorer([b"", b"bad", b""], [[0]] * 3)
    assert scorer([b""], [[0]]) == [1.0]


def test_the_stage_fails_the_groups_of_hanging_rows_by_name(hanging: Hanging) -> None:
    stage = RewardStage(hanging, DEADLINE_S)
    with pytest.raises(GroupsFailed, match="group 41 row 1 took longer") as failed:
        stage(batch_of([b"", b"", b"", b"hang", b"", b""]))
    assert failed.value.gids == [41]
    assert failed.value.reason == "reward_timeout"
    assert stage(batch_of([b"", b"", b""]))["rewards"].tolist() == [0.0, 1.0, 2.0]
    stage.close()


def test_what_a_scorer_needs_to_come_up_is_no_rows_time_and_what_a_row_takes_before_and_after_it_is() -> None:
    free = threading.Event()

    def score(item: bytes, response_ids: Sequence[int]) -> float:
        time.sleep(0.6 if item == b"slow" else 0.0)
        with uncounted("loading", 20.0):
            time.sleep(1.2)
        free.wait(0.6 if item == b"slow" else 0.0)
        return 1.0

    scorer = DeadlineScorer(score, 1.0)
    assert scorer([b"", b"slow", b""], [[0]] * 3) == [1.0, None, 1.0]
    scorer.close()


def test_who_waits_for_the_scores_hears_what_stops_the_clock_of_a_row() -> None:
    def score(item: bytes, response_ids: Sequence[int]) -> float:
        if item == b"load":
            with uncounted("loading", 20.0):
                pass
        return 1.0

    heard: list[Stopped | Running] = []
    scorer = DeadlineScorer(score, 5.0)
    with told(heard.append):
        assert scorer([b"", b"load", b""], [[0]] * 3) == [1.0] * 3
    assert heard == [Stopped("loading", 20.0), Running()]
    assert scorer([b"load"], [[0]]) == [1.0]
    assert len(heard) == 2, "nobody waits here any more"
    scorer.close()


def test_what_ends_the_run_says_at_which_row() -> None:
    def score(item: bytes, response_ids: Sequence[int]) -> float:
        if item == b"bad":
            raise RuntimeError("of the scorer")
        return 1.0

    with pytest.raises(RuntimeError, match="of the scorer") as raised:
        RewardStage(score, 5.0)(batch_of([b"", b"", b"", b"bad"]))
    assert raised.value.__notes__ == ["raised while the response of group 41, row 1 was scored"]


def test_a_scorer_that_does_not_come_up_ends_the_run_by_name(hanging: Hanging) -> None:
    def score(item: bytes, response_ids: Sequence[int]) -> float:
        with uncounted("loading the tokenizer of X", 0.2):
            return hanging(item, response_ids)

    scorer = DeadlineScorer(score, 20.0)
    start_s = time.monotonic()
    with pytest.raises(TimeoutError, match=r"not ready: loading the tokenizer of X goes on.*within 0\.2 s"):
        scorer([b"hang"], [[0]])
    assert time.monotonic() - start_s < 10


def test_what_is_raised_while_a_scorer_comes_up_is_raised_to_the_caller() -> None:
    def score(item: bytes, response_ids: Sequence[int]) -> float:
        with uncounted("loading", 20.0):
            raise OSError("no such folder")

    with pytest.raises(OSError, match="no such folder"):
        DeadlineScorer(score, 5.0)([b""], [[0]])


def test_a_deadline_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=r"limits.reward_s = 0"):
        DeadlineScorer(lambda item, response_ids: 1.0, 0.0)

"""The stage `reward` of a task that judges: one column more, which says why a reward is what it is."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from asyncflow.config import RunConfig
from asyncflow.config.load import load
from asyncflow.contracts.stage import GroupsFailed, StageContext
from asyncflow.rewards.verdict import Verdict
from asyncflow.stages.reward import RewardStage, VerdictStage, make_reward
from tests.data.math_files import sums, write_rows, write_tokenizer
from tests.rewards.test_deadline import batch_of

RECIPES = Path(__file__).parents[2] / "recipes"
LEAN = "prompt_ids,response_ids,rollout_logprobs,token_versions,finish,rewards,old_logprobs,ref_logprobs,advantages"


class ByItem:
    """The item is the verdict; "hang" waits for `free`."""

    def __init__(self) -> None:
        self.free, self.closed = threading.Event(), False

    def verdict(self, item: bytes, response_ids: Sequence[int]) -> Verdict:
        if item == b"hang":
            self.free.wait(20)
        return Verdict[item.decode()]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def judge() -> Iterator[ByItem]:
    judge = ByItem()
    yield judge
    judge.free.set()


def test_only_what_is_right_is_rewarded_and_the_verdict_stands_beside_it(judge: ByItem) -> None:
    stage = VerdictStage(judge, 20.0)
    columns = stage(batch_of([verdict.name.encode() for verdict in Verdict]))
    assert columns["verdict"].tolist() == [int(verdict) for verdict in Verdict]
    assert columns["rewards"].tolist() == [float(verdict is Verdict.RIGHT) for verdict in Verdict]
    assert [columns[name].dtype.name for name in ("rewards", "verdict")] == ["float32", "uint8"]
    stage.close()
    assert judge.closed


def test_a_judge_that_hangs_loses_its_group_and_no_other(judge: ByItem) -> None:
    with pytest.raises(GroupsFailed) as failed:
        VerdictStage(judge, 0.2)(batch_of([b"RIGHT", b"RIGHT", b"hang", b"WRONG"]))
    assert failed.value.gids == [41]


def config_of(folder: Path, *overrides: str) -> RunConfig:
    files = [f"models.policy.path={write_tokenizer(folder / 'model')}", f"task.options.train={write_rows(folder / 'train.parquet', sums(5))}"]
    return load(RECIPES / "gsm8k_qwen", [*files, *overrides])


def made(config: RunConfig) -> RewardStage:
    return make_reward(StageContext(config.stage("reward"), config, Path(), None))


def test_the_recipes_stage_gives_verdicts_and_without_the_column_rewards_alone(tmp_path: Path) -> None:
    full, lean = made(config_of(tmp_path)), made(config_of(tmp_path, "~stages.reward.outputs.verdict", f"stages.train.inputs=[{LEAN}]"))
    for stage, columns in ((full, {"rewards", "verdict"}), (lean, {"rewards"})):
        batch = batch_of([b'{"truths":["0"]}'])
        assert set(stage(batch)) == columns
        stage.close()


def test_a_task_that_gives_no_verdicts_is_refused_where_the_column_is_asked_for(tmp_path: Path) -> None:
    config = load(RECIPES / "quickstart", ["+stages.reward.outputs.verdict.dtype=uint8"])
    with pytest.raises(ValueError, match=r"stages\.reward\.outputs\.verdict: .*NumberSorting gives no verdicts.*Fix: remove it"):
        made(config)


@pytest.mark.parametrize("given", ["5", "15"])
def test_a_deadline_that_comes_before_the_tasks_own_is_refused(tmp_path: Path, given: str) -> None:
    """Else an answer that hangs would cost its group, and the comparison's own deadline would never be reached."""
    with pytest.raises(ValueError, match=rf"limits\.reward_s = {given}: it must be above the 15 s.*Fix: limits\.reward_s=18"):
        made(config_of(tmp_path, f"limits.reward_s={given}"))

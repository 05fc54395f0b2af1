"""Rules between settings: each broken one is refused before anything is started, naming key, value and fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncflow.config.check import check_runnable
from asyncflow.config.errors import ConfigError
from tests.config.recipes import MINIMAL, load_text

BROKEN = [
    (["rollout.slots=3"], ["rollout.slots = 3", "4"]),
    (["rollout.kv_width=72"], ["rollout.kv_width = 72", "multiple of 16"]),
    (["rollout.kv_width=48"], ["rollout.kv_width = 48", "prompt_width + response_width = 64"]),
    (["batch_size=0"], ["batch_size = 0", "at least 1"]),
    (["staleness=-1"], ["staleness = -1", "at least 0"]),
    (["rollout.temperature=0"], ["rollout.temperature = 0", "above 0"]),
    (["run.steps=null"], ["run.steps = None", "exactly one"]),
    (["run.total_groups=10"], ["run.total_groups = 10", "exactly one"]),
    (["run.steps=0"], ["run.steps = 0", "at least 1"]),
    (["weights.group_timeout_s=30"], ["weights.group_timeout_s = 30", "at most 10"]),
    (["weights.bucket_bytes=100"], ["weights.bucket_bytes = 100"]),
    (["models.policy.path=null"], ["models.policy", "none of path"]),
    (["models.policy.prepare='a:b'"], ["models.policy", "exactly one"]),
    (["models.ref.same_as=polic"], ["models.ref.same_as", "'policy'"]),
    (["models.ref.same_as=ref"], ["models.ref.same_as"]),
    (["stages.reward.compute=nothing"], ["stages.reward.compute = 'nothing'", "module:name"]),
    (["stages.reward.model=judge"], ["stages.reward.model = 'judge'", "no such model"]),
    (["stages.reward.terminal=true"], ["terminal", "reward"]),
    (["stages.train=null"], ["stages.train"]),
    (["stages.train.inputs=[rewardz]"], ["stages.train.inputs", "'rewardz'", "'rewards'"]),
    (["stages.ref_forward=null"], ["stages.train.inputs", "'ref_logprobs'"]),
    (["+stages.reward.outputs.item.dtype=uint8"], ["stages.reward.outputs.item", "one producer"]),
    (["stages.reward.outputs.rewards.dtype=float33"], ["stages.reward.outputs.rewards.dtype = 'float33'"]),
    (["stages.reward.inputs=[advantages]"], ["reward", "advantage", "waits"]),
    (["stages.train.inputs=[response_ids,rewards,advantages]"], ["algorithm.old_logprobs = 'forward'", "'old_logprobs'"]),
    (["algorithm.kl_coef=0.1", "stages.train.inputs=[rewards,advantages,old_logprobs]"], ["algorithm.kl_coef = 0.1", "'ref_logprobs'"]),
    (["resources.rollout.workers=0"], ["resources.rollout.workers = 0"]),
    (["resources.trainer=null"], ["resources.trainer", "missing"]),
    (["resources.scorer.stages=[reward]"], ["stages.advantage", "no role"]),
    (["resources.ref_forward.stages=[ref_forward,reward]"], ["'reward'", "'scorer'"]),
    (["resources.scorer.stages=[reward,advantage,rewart]"], ["'rewart'", "'reward'"]),
    (["resources.rollout.stages=[reward]"], ["resources.rollout.stages"]),
    (["+resources.idle.workers=1"], ["resources.idle.stages is empty"]),
    (["+resources.shard.workers=1"], ["resources.shard", "taken"]),
    (["resources.rollout.devices=1"], ["resources.rollout.devices = 1", "0 devices"]),
    (["queue.bind='tcp://0.0.0.0:0'"], ["queue.bind", "loopback", "key_file"]),
    (["weights.bind='tcp://10.0.0.1:0'"], ["weights.bind", "key_file"]),
    (["flow.budget_bytes=1000"], ["flow.budget_bytes = 1000", "batch_size × worst-case group"]),
]


@pytest.mark.parametrize(("overrides", "words"), BROKEN, ids=[" ".join(overrides) for overrides, _ in BROKEN])
def test_a_broken_rule_is_refused_with_key_value_and_fix(tmp_path: Path, overrides: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_text(tmp_path, MINIMAL, *overrides)
    for word in words:
        assert word in str(refusal.value)


def test_keys_allow_a_bind_beyond_loopback(tmp_path: Path) -> None:
    config = load_text(tmp_path, MINIMAL, "queue.bind='tcp://0.0.0.0:0'", "queue.key_file=keys/server.key")
    assert config.queue.key_file == "keys/server.key"


def test_training_on_several_ranks_is_refused_as_not_there_yet(tmp_path: Path) -> None:
    config = load_text(tmp_path, MINIMAL, "resources.trainer.workers=2")
    with pytest.raises(ConfigError, match=r"resources\.trainer\.workers = 2.*not there yet"):
        check_runnable(config)


def test_the_kv_width_is_the_next_multiple_of_16(tmp_path: Path) -> None:
    assert load_text(tmp_path, MINIMAL, "rollout.prompt_width=17", "rollout.response_width=16").rollout.cache_width == 48


def test_the_last_batch_may_be_short(tmp_path: Path) -> None:
    config = load_text(tmp_path, MINIMAL, "run.steps=null", "run.total_groups=70", "batch_size=32")
    assert (config.total_groups, config.total_steps) == (70, 3)


def test_what_is_well_formed_and_not_built_yet_is_refused_at_the_start_not_ignored(tmp_path: Path) -> None:
    config = load_text(tmp_path, MINIMAL, "cluster.kind=cuda", "cluster.devices=4", "resources.trainer.devices=4")
    with pytest.raises(ConfigError, match=r"resources.trainer.devices = 4: workers compute on the CPU so far"):
        check_runnable(config)

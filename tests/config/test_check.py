"""Rules between settings: each broken one is refused before anything is started, naming key, value and fix."""

from __future__ import annotations

import inspect
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest

from asyncflow.config.check import check_runnable
from asyncflow.config.embedded import EmbeddedSettings
from asyncflow.config.errors import ConfigError
from asyncflow.config.evaluation import MOST_ITEMS
from asyncflow.engines.rollout.embedded.engine import EmbeddedRolloutEngine
from tests.config.recipes import MINIMAL, RUNNABLE, load_text

BROKEN = [
    (["rollout.slots=3"], ["rollout.slots = 3", "4"]),
    (["rollout.kv_width=72"], ["rollout.kv_width = 72", "multiple of 16"]),
    (["rollout.kv_width=48"], ["rollout.kv_width = 48", "prompt_width + response_width = 64"]),
    (["+rollout.options.steps_per_cal=2"], ["rollout.options.steps_per_cal", "Fix: rollout.options.steps_per_call=2"]),
    (["+rollout.options.slots=8"], ["rollout.options.slots"]),
    (["+rollout.options.prefill_rows=0"], ["rollout.options.prefill_rows = 0", "at least 1"]),
    (["+rollout.options.max_queued=20"], ["rollout.options.max_queued = 20", "a group could be refused"]),
    (["+rollout.options.max_queued=100", "evaluation.every=1", "evaluation.items=200"], ["rollout.options.max_queued = 100", "at least 200"]),
    (["batch_size=0"], ["batch_size = 0", "at least 1"]),
    (["staleness=-1"], ["staleness = -1", "at least 0"]),
    (["rollout.temperature=0"], ["rollout.temperature = 0", "above 0"]),
    (["run.steps=null"], ["run.steps = null", "exactly one"]),
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
    (["stages.reward.sampler.name=newest_frist"], ["stages.reward.sampler.name = 'newest_frist'", "did you mean 'newest_first'?", "no such sampler"]),
    (["+stages.reward.sampler.options.order=x"], ["stages.reward.sampler.options.order = 'x'", "no such option"]),
    (["stages.train.sampler.name=newest_first"], ["stages.train.sampler.name = 'newest_first'", "`wait`"]),
    (["stages.reward.sampler.name=rank_aware"], ["stages.reward.sampler.name = 'rank_aware'", "none names its rank"]),
    (["stages.train.sampler.name=replay"], ["stages.train.sampler.name = 'replay'", "trained before are for users of the queue itself"]),
    (["stages.rollout.sampler.name=in_order"], ["stages.rollout.sampler.name = 'in_order'", "prompts"]),
    (["stages.reward.sampler.name='json:'"], ["stages.reward.sampler.name = 'json:'", "module:name"]),
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
    (["+resources.idle.workers=1"], ["resources.idle.stages = []", "nothing to do"]),
    (["+resources.shard.workers=1"], ["resources.shard", "taken"]),
    (["resources.rollout.devices=1"], ["resources.rollout.devices = 1", "0 devices"]),
    (["queue.bind='tcp://0.0.0.0:0'"], ["queue.bind", "loopback", "key_file"]),
    (["weights.bind='tcp://10.0.0.1:0'"], ["weights.bind", "key_file"]),
    (["weights.backend=nccl"], ["weights.backend = 'nccl'", "cluster.kind = 'cpu'", "Fix: weights.backend=auto"]),
    (["weights.backend=hccl", "cluster.kind=cuda", "cluster.devices=1"], ["weights.backend = 'hccl'", "npu", "cluster.kind = 'cuda'"]),
    (["weights.backend=nccl", "cluster.kind=cuda", "cluster.devices=1"], ["weights.backend = 'nccl'", "resources.publisher.devices = 'cpu'"]),
    (["models.ref.dtype=floot32"], ["models.ref.dtype = 'floot32'", "float32, bfloat16, float16"]),
    (["rollout.samples_per_prompt=1"], ["rollout.samples_per_prompt = 1", "nothing to compare"]),
    (["algorithm.learning_rate=0"], ["algorithm.learning_rate = 0", "above 0"]),
    (["algorithm.learning_rate=inf"], ["algorithm.learning_rate = inf", "finite"]),
    (["algorithm.learning_rate=nan"], ["algorithm.learning_rate = nan", "finite"]),
    (["algorithm.warmup_steps=-1"], ["algorithm.warmup_steps = -1", "at least 0"]),
    (["algorithm.grad_clip=0"], ["algorithm.grad_clip = 0", "above 0"]),
    (["algorithm.clip_low=0"], ["algorithm.clip_low = 0", "above 0"]),
    (["algorithm.clip_low=1.5"], ["algorithm.clip_low = 1.5", "at most 1"]),
    (["+algorithm.options.price=1"], ["algorithm.options.price = 1", "of your own", "ignored"]),
    (["flow.requeue=true"], ["flow.requeue = true", "flow.policy=wait drops nothing", "Fix: flow.requeue=false"]),
    (["flow.requeue=true", "flow.policy=drop", "staleness=null"], ["flow.requeue = true", "staleness=null"]),
    (["+rollout.options.eager=false"], ["rollout.options.eager = false", "no such setting"]),
    (["+rollout.options.steps_per_cal=2"], ["rollout.options.steps_per_cal = 2", "did you mean 'steps_per_call'?"]),
    (["+rollout.options.prefill_rows=0"], ["rollout.options.prefill_rows = 0", "at least 1"]),
    (["algorithm.clip_high=-0.2"], ["algorithm.clip_high = -0.2", "above 0"]),
    (["algorithm.kl_coef=-0.1"], ["algorithm.kl_coef = -0.1", "at least 0"]),
    (["evaluation.items=0"], ["evaluation.items = 0", "at least 1"]),
    (["evaluation.items=16385"], ["evaluation.items = 16385", "at most 16384"]),
    (["queue.shards=2", "queue.shard_bytes=134217728"], ["268435456 + 256 × 1280", "2 × 134217728", "Fix: queue.shard_bytes=134381568"]),
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


def test_rewards_are_shuffled_within_exactly_one_batch(tmp_path: Path) -> None:
    plain = load_text(tmp_path, MINIMAL, "batch_size=24").stage("advantage")
    shuffled = load_text(tmp_path, MINIMAL, "batch_size=24", "algorithm.control=shuffle_rewards")
    assert (plain.at_least, plain.limit) == (1, 32)
    assert (shuffled.stage("advantage").at_least, shuffled.stage("advantage").limit) == (24, 24)
    assert shuffled.stage("reward").at_least == 1


@pytest.mark.parametrize(
    ("staleness", "at_least", "limit", "fine"),
    [("0", 4, 4, True), ("0", 2, 4, False), ("0", 3, 3, False), ("1", 5, 32, True), ("1", 6, 32, False), ("null", 30, 32, True)],
)
def test_what_a_lease_leaves_over_never_waits_for_what_it_holds_back(
    tmp_path: Path, staleness: str, at_least: int, limit: int, fine: bool
) -> None:
    lease = [f"stages.advantage.at_least={at_least}", f"stages.advantage.limit={limit}"]
    expected = nullcontext() if fine else pytest.raises(ConfigError, match=r"30 s in every batch")
    with expected:
        load_text(tmp_path, MINIMAL, "batch_size=4", f"staleness={staleness}", *lease)


def test_the_last_batch_may_be_short(tmp_path: Path) -> None:
    config = load_text(tmp_path, MINIMAL, "run.steps=null", "run.total_groups=70", "batch_size=32")
    assert (config.total_groups, config.total_steps) == (70, 3)


def test_a_budget_that_just_fits_into_the_shards_is_taken(tmp_path: Path) -> None:
    assert load_text(tmp_path, MINIMAL, "queue.shards=2", "queue.shard_bytes=134381568").queue.shards == 2


def test_a_group_of_one_is_fine_where_no_stage_compares_it(tmp_path: Path) -> None:
    config = load_text(tmp_path, MINIMAL, "rollout.samples_per_prompt=1", "stages.advantage.compute=asyncflow.stages.reward:make_reward")
    assert config.rollout.samples_per_prompt == 1


def test_an_evaluation_fits_into_the_queue_of_the_embedded_engine() -> None:
    assert EmbeddedSettings().max_queued == MOST_ITEMS


def test_the_settings_of_the_embedded_engine_are_its_own_arguments() -> None:
    own = {name: parameter.default for name, parameter in inspect.signature(EmbeddedRolloutEngine).parameters.items()}
    assert msgspec.structs.asdict(EmbeddedSettings()).items() <= own.items()


@pytest.mark.parametrize("override", ["cluster.kind=cuda", "models.policy.dtype=bfloat16", "models.ref.dtype=float16"])
def test_other_devices_and_types_are_refused_as_not_there_yet(tmp_path: Path, override: str) -> None:
    key, _, value = override.partition("=")
    with pytest.raises(ConfigError, match=rf"{key} = '{value}': .*not there yet"):
        check_runnable(load_text(tmp_path, RUNNABLE, override))


def test_code_that_is_all_there_is_not_refused(tmp_path: Path) -> None:
    check_runnable(load_text(tmp_path, RUNNABLE))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("task.path=nowhere.task:Task", "task.path = 'nowhere.task:Task': there is no module 'nowhere'"),
        ("task.path=''", "task.path = ''"),
        ("stages.reward.compute=nowhere:make", "stages.reward.compute = 'nowhere:make': there is no module 'nowhere'"),
        ("algorithm.loss=asyncflow.algorithms.los:PolicyLoss", "algorithm.loss = "),
        ("algorithm.loss=.loss:PolicyLoss", "algorithm.loss = '.loss:PolicyLoss'"),
        ("rollout.engine=vlm", "rollout.engine = 'vlm': it does not name module and name"),
        ("+models.judge={prepare: 'json.nothing:make', frozen: true}", "models.judge.prepare = 'json.nothing:make'"),
    ],
)
def test_code_that_is_not_there_is_refused_before_anything_starts(tmp_path: Path, override: str, words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_runnable(load_text(tmp_path, RUNNABLE, override))
    assert words in str(refusal.value)
    assert "package.module:name" in str(refusal.value)


def test_looking_for_the_code_of_a_recipe_does_not_load_torch() -> None:
    code = (
        "import sys; from asyncflow.config.check import check_runnable; from asyncflow.config.load import load; "
        "check_runnable(load('recipes/quickstart')); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2], timeout=60)


def test_what_is_well_formed_and_not_built_yet_is_refused_at_the_start_not_ignored(tmp_path: Path) -> None:
    config = load_text(tmp_path, MINIMAL, "cluster.kind=cuda", "cluster.devices=4", "resources.trainer.devices=4")
    with pytest.raises(ConfigError, match=r"resources.trainer.devices = 4: workers compute on the CPU so far"):
        check_runnable(config)

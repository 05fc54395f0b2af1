"""Broken configurations, each in one way, with what its message must name; and how the fix that a message offers is applied."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from asyncflow.config.errors import SettingError
from tests.config.recipes import RUNNABLE

Mend = Callable[[str], str]


class Broken(NamedTuple):
    """`key` and `value` as the message must show them (None: a key that has no value); `rule`: words of it."""

    key: str
    value: str | None
    rule: str
    overrides: tuple[str, ...] = ()
    text: str = ""  # lines of the recipe, below the minimal ones
    mend: Mend | None = None  # of the recipe's text, where no override mends it: what the message tells a person to do

    @property
    def name(self) -> str:
        return " ".join(self.overrides) or " ".join(self.text.split())


def by_override(*overrides: str, key: str, value: str | None, rule: str) -> Broken:
    return Broken(key, value, rule, overrides)


def by_text(text: str, *, key: str, value: str | None, rule: str, mend: Mend | None = None) -> Broken:
    return Broken(key, value, rule, (), text, mend)


def swap(old: str, new: str) -> Mend:
    return lambda text: text.replace(old, new)


INPUTS = "[prompt_ids,response_ids,rollout_logprobs,token_versions,finish,rewardz,old_logprobs,ref_logprobs,advantages]"
REWARDS, STAGES, LOSS = "stages.reward.outputs.rewards", "resources.scorer.stages", "algorithm.loss"
DEVICES, RANKS, ALGORITHMS = "resources.rollout.devices", "resources.trainer.devices", "asyncflow.algorithms"
GPUS = ("cluster.kind=cuda", "cluster.devices=4")

BROKEN = [
    # names that lead nowhere, at every depth
    by_override("stalenes=4", key="stalenes", value="4", rule="did you mean 'staleness'?"),
    by_override("rollout.slot=64", key="rollout.slot", value="64", rule="did you mean 'slots'?"),
    by_override("temperature=0.7", key="temperature", value="0.7", rule="did you mean 'rollout.temperature'?"),
    by_override("rollot.slots=64", key="rollot.slots", value="64", rule="did you mean 'rollout'?"),
    by_override("resources.rollout.worker=2", key="resources.rollout.worker", value="2", rule="did you mean 'workers'?"),
    by_override(f"{REWARDS}.dtyp=float64", key=f"{REWARDS}.dtyp", value="float64", rule="did you mean 'dtype'?"),
    by_override("resources.rolout.workers=2", key="resources.rolout.workers", value="2", rule="no such entry, did you mean 'rollout'?"),
    by_override("stages.rewart.limit=3", key="stages.rewart.limit", value="3", rule="no such entry, did you mean 'reward'?"),
    by_override("task.options.seed=3", key="task.options.seed", value="3", rule="no such entry"),
    by_override("+staleness=3", key="staleness", value="3", rule="a leading + adds an entry, and this one is there"),
    by_override("staleness", key="override 'staleness'", value=None, rule="KEY=VALUE"),
    by_text("rollout: {slot: 8}", key="rollout.slot", value="8", rule="did you mean 'slots'?", mend=swap("slot:", "slots:")),
    # values of the wrong kind
    by_override("flow.policy=wiat", key="flow.policy", value="'wiat'", rule="one of 'wait', 'drop', did you mean 'wait'?"),
    by_override("models.ref.dtype=float_32", key="models.ref.dtype", value="'float_32'", rule="did you mean 'float32'?"),
    by_override("rollout.slots=many", key="rollout.slots", value="'many'", rule="an integer"),
    by_override("staleness=1.5", key="staleness", value="1.5", rule="an integer or null"),
    by_override("batch_size=[1,2]", key="batch_size", value="[1, 2]", rule="an integer"),
    by_override("batch_size=null", key="batch_size", value="null", rule="(null is not allowed)"),
    by_override(f"{STAGES}=reward,advantage", key=STAGES, value="reward,advantage", rule="a list stands in brackets"),
    by_override("staleness=[1", key="staleness", value="[1", rule="cannot be read"),
    by_override("algorithm.learning_rate=nan", key="algorithm.learning_rate", value="nan", rule="finite"),
    by_override("algorithm.kl_coef=inf", key="algorithm.kl_coef", value="inf", rule="finite"),
    by_override("run.seed=1e40", key="run.seed", value="1e+40", rule="an integer"),
    by_text("rollout:", key="rollout", value="null", rule="a mapping", mend=swap("rollout:", "")),
    by_text("run: {name: '${nam}'}", key="run.name", value="'${nam}'", rule="cannot be resolved"),
    # numbers beyond their bounds
    by_override("staleness=-1", key="staleness", value="-1", rule="at least 0"),
    by_override("batch_size=0", key="batch_size", value="0", rule="at least 1"),
    by_override("rollout.slots=3", key="rollout.slots", value="3", rule="at least 4"),
    by_override("rollout.temperature=0", key="rollout.temperature", value="0.0", rule="above 0"),
    by_override("limits.lease_s=0", key="limits.lease_s", value="0.0", rule="above 0"),
    by_override("algorithm.betas=[0.9,1.0]", key="algorithm.betas", value="[0.9, 1.0]", rule="below 1"),
    by_override("evaluation.items=20000", key="evaluation.items", value="20000", rule="at most 16384"),
    by_override("rollout.kv_width=72", key="rollout.kv_width", value="72", rule="a multiple of 16"),
    by_override("run.steps=null", key="run.steps", value="null", rule="exactly one of it and run.total_groups"),
    by_override("run.total_groups=64", key="run.total_groups", value="64", rule="exactly one of it and run.steps"),
    by_override("flow.budget_bytes=1000", key="flow.budget_bytes", value="1000", rule="batch_size × worst-case group"),
    by_override("queue.shard_bytes=1000000", key="queue.shard_bytes", value="1000000", rule="must hold flow.budget_bytes"),
    # files
    by_text("rollout:\n\tslots: 8", key="recipe.yaml, line 4", value="'slots: 8'", rule="no YAML", mend=swap("\t", "  ")),
    by_text("rollout: {slots: 8", key="recipe.yaml, line 3", value="'rollout: {slots: 8'", rule="no YAML", mend=lambda text: f"{text}}}"),
    by_text("staleness: 1\nstaleness: 2", key="staleness", value="'2'", rule="stands twice", mend=swap("staleness: 1\n", "")),
    by_text("rollout: {slots: 8, slots: 9}", key="rollout.slots", value="'9'", rule="stands twice", mend=swap("slots: 8, ", "")),
    by_text("defaults: [bse]", key="defaults", value="'bse'", rule="there is no bse.yaml beside recipe.yaml", mend=swap("[bse]", "[]")),
    # stages, columns, models
    by_override("stages.reward.inputs=[item,advantages]", key="stages.reward.inputs", value="['item'", rule="reward → advantage → reward"),
    by_override(f"stages.train.inputs={INPUTS}", key="stages.train.inputs", value="['prompt_ids'", rule="no stage writes 'rewardz'"),
    by_override(f"{REWARDS}.dtype=float33", key=f"{REWARDS}.dtype", value="'float33'", rule="did you mean 'float32'?"),
    by_override("stages.ref_forward.model=reff", key="stages.ref_forward.model", value="'reff'", rule="did you mean 'ref'?"),
    by_override("stages.train.terminal=false", key="stages.train.terminal", value="false", rule="must be true"),
    by_override("stages.train.unit=row", key="stages.train.unit", value="'row'", rule="must be 'group'"),
    by_override("stages.reward.at_least=0", key="stages.reward.at_least", value="0", rule="at least 1"),
    by_override("stages.train.at_least=2", key="stages.train.at_least", value="2", rule="a loop of its own"),
    by_override("stages.reward.at_least=65", key="stages.reward.at_least", value="65", rule="at most stages.reward.limit = 64"),
    by_override("stages.advantage.at_least=3", "staleness=0", key="stages.advantage.at_least", value="3", rule="at most staleness × "),
    by_override("models.ref.same_as=polcy", key="models.ref.same_as", value="'polcy'", rule="did you mean 'policy'?"),
    by_override("models.policy.path=null", key="models.policy.path", value="null", rule="none of path, prepare, same_as"),
    by_override("models.policy.prepare=a:b", key="models.policy.prepare", value="'a:b'", rule="exactly one"),
    # code
    by_override(f"{LOSS}={ALGORITHMS}.los:PolicyLoss", key=LOSS, value=f"'{ALGORITHMS}", rule=f"did you mean {ALGORITHMS}.loss?"),
    by_override(f"{LOSS}={ALGORITHMS}.loss:PolicyLos", key=LOSS, value=f"'{ALGORITHMS}", rule="has no 'PolicyLos', did you mean 'PolicyLoss'?"),
    by_override("stages.reward.compute=rewards", key="stages.reward.compute", value="'rewards'", rule="package.module:name"),
    by_override(
        *GPUS,
        "rollout.engine=vllm",
        "resources.rollout.devices=2",
        key="rollout.options.tensor_parallel",
        value="1",
        rule="each of the 1 replicas has 2 devices",
    ),
    by_override("rollout.engine=nowhere:make", key="rollout.engine", value="'nowhere:make'", rule="there is no module 'nowhere'"),
    by_override("observe.writers=[tensorbord]", key="observe.writers", value="['tensorbord']", rule="did you mean 'tensorboard'?"),
    # roles, devices, addresses
    by_override("resources.rollout.workers=0", key="resources.rollout.workers", value="0", rule="at least 1"),
    by_override("resources.trainer=null", key="resources.trainer", value="null", rule="missing"),
    by_override("resources.scorer.stages=[reward]", key="stages.advantage", value=None, rule="no role serves it"),
    by_override(f"{DEVICES}=8", *GPUS, key=DEVICES, value="8", rule="only 4 devices are left"),
    by_override(f"{DEVICES}=3", "resources.rollout.workers=2", *GPUS, key=DEVICES, value="3", rule="do not divide"),
    by_override(f"{DEVICES}=[3,4]", *GPUS, key=DEVICES, value="[3, 4]", rule="device 4"),
    by_override(f"{DEVICES}=[0,1]", f"{RANKS}=[1]", *GPUS, key=RANKS, value="[1]", rule="which rollout has"),
    by_override("cluster.devices=4", key="cluster.devices", value="4", rule="cluster.kind = 'cpu'"),
    by_override("queue.bind=tcp://0.0.0.0:0", key="queue.bind", value="'tcp://0.0.0.0:0'", rule="beyond loopback"),
    by_override("weights.bind=localhost", key="weights.bind", value="'localhost'", rule="tcp://ADDRESS:PORT"),
]


def write(case: Broken, folder: Path) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(RUNNABLE + case.text)
    return path


def apply_fix(case: Broken, path: Path, error: SettingError) -> list[str]:
    """The case's overrides after the fix: those that the message offers take the place of what is said about the same key."""
    if case.mend is not None:
        path.write_text(case.mend(path.read_text()))
        return list(case.overrides)
    kept = [override for override in case.overrides if not _says(override, error.key)]
    return [*kept, *(fix.replace("DIRECTORY", "models/tiny") for fix in error.fix)]


def _says(override: str, key: str) -> bool:
    own = re.split("=", override, maxsplit=1)[0].lstrip("+~")
    return own == key or key == f"override {override!r}"

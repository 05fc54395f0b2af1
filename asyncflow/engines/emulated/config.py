"""From a cost table to the configuration of a whole emulated run: one function, so that a benchmark and a test run the same thing.

Workers are what the split says: a replica a `decode.devices`, one process a forward device, one trainer for all of its devices. The queue's settings
are those that `asyncflow.sizing.simulate` assumes, so that the two can be compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from asyncflow.config import (
    AlgorithmSettings,
    EvaluationSettings,
    FlowSettings,
    LimitSettings,
    ModelSettings,
    QueueSettings,
    ResourceSettings,
    RolloutSettings,
    RunConfig,
    RunSettings,
    StageSettings,
    TaskSettings,
    WeightsSettings,
)
from asyncflow.config.check import check
from asyncflow.config.resources import default_resources
from asyncflow.config.stages import default_stages
from asyncflow.engines.emulated.settings import Emulation
from asyncflow.flow.bytes import group_bytes
from asyncflow.sizing.costs import CostTable, Split

HERE = "asyncflow.engines.emulated"
SCORED_GROUPS = 8  # most groups in one lease of reward and advantage, which take no modelled time
UNBOUNDED_BATCHES = 16  # open at most, where staleness is null
PROGRESS_S = 1.0  # (real) renewals of leases; the emulated replicas cannot hang


def emulated_config(
    costs: CostTable,
    split: Split,
    *,
    staleness: int | None,
    policy: Literal["wait", "drop"],
    steps: int,
    time_scale: float,
    run_dir: Path,
    shards: int = 1,
) -> RunConfig:
    """A checked configuration. Raises ConfigError."""
    emulation = Emulation(msgspec.structs.replace(costs, split=split), time_scale)
    config = RunConfig(
        run=RunSettings(name=f"emulated-{split}", steps=steps, dir=str(run_dir), log_level="warning"),
        staleness=staleness,
        batch_size=costs.batch_groups,
        models={"policy": ModelSettings(prepare=f"{HERE}.weights:prepare"), "ref": ModelSettings(same_as="policy", frozen=True)},
        task=TaskSettings(path=f"{HERE}.task:EmulatedPrompts", options={"tokens": costs.lengths.prompt}, item_bytes=1),
        rollout=_rollout(emulation),
        algorithm=AlgorithmSettings(engine=f"{HERE}.train:make_training", micro_batch_groups=costs.train.minibatch_groups),
        stages=_stages(costs),
        resources=_resources(costs, split),
        evaluation=EvaluationSettings(every=None),
        weights=WeightsSettings(transport="pull", export_every=None),
        limits=_limits(costs, time_scale),
    )
    config = _with_room(config, policy, (UNBOUNDED_BATCHES if staleness is None else staleness + 1) * costs.batch_groups, shards)
    check(config)
    return config


def _rollout(emulation: Emulation) -> RolloutSettings:
    costs = emulation.costs
    return RolloutSettings(
        engine=f"{HERE}.rollout:make_rollout",
        slots=costs.decode.max_running,
        prompt_width=costs.lengths.prompt,
        response_width=costs.lengths.cap,
        samples_per_prompt=costs.group_rows,
        pull_groups=1,
        progress_s=PROGRESS_S,
        options=msgspec.to_builtins(emulation),
    )


def _stages(costs: CostTable) -> dict[str, StageSettings]:
    """The pipeline of GRPO with emulated computing. The advantage is the real one."""
    stages = default_stages()
    forward = {"compute": f"{HERE}.stages:make_forward", "unit": "row", "limit": costs.forward_rows, "inputs": ("response_ids",)}
    changed: dict[str, dict[str, Any]] = {
        "reward": {"compute": f"{HERE}.stages:make_reward", "unit": "group", "limit": SCORED_GROUPS, "inputs": ("response_ids", "finish")},
        "advantage": {"limit": SCORED_GROUPS},
        "actor_forward": forward,
        "ref_forward": forward,
    }
    return {name: msgspec.structs.replace(stage, **changed.get(name, {})) for name, stage in stages.items()}


def _resources(costs: CostTable, split: Split) -> dict[str, ResourceSettings]:
    workers = {
        "rollout": split.rollout // costs.decode.devices,
        "actor_forward": split.actor_forward,
        "ref_forward": split.ref_forward,
    }
    return {role: msgspec.structs.replace(settings, workers=workers.get(role, 1)) for role, settings in default_resources().items()}


def _limits(costs: CostTable, time_scale: float) -> LimitSettings:
    """With one straggler left nothing may happen for as long as the longest response takes."""
    longest_s = costs.lengths.cap * (costs.decode.step_s + costs.decode.per_running_s * costs.decode.max_running) / time_scale
    return LimitSettings(lease_s=60.0 + 2 * longest_s, stall_s=60.0 + 2 * longest_s, heartbeat_s=60.0)


def _with_room(config: RunConfig, policy: Literal["wait", "drop"], groups: int, shards: int) -> RunConfig:
    """Bytes are no limit here: the budget is so many groups at their worst, and the shards could hold them."""
    group = group_bytes(config)
    budget = groups * group
    return msgspec.structs.replace(
        config,
        flow=FlowSettings(policy=policy, budget_bytes=budget),
        queue=QueueSettings(shards=shards, shard_bytes=2 * budget + config.data.prompts_bound * group),
    )

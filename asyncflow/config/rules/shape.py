"""Rules between numbers: how long the run is, in what shapes it computes, how many bytes it may hold."""

from __future__ import annotations

from asyncflow.config.errors import SettingError, spelt
from asyncflow.config.rollout import KV_MULTIPLE, LEAST_SLOTS
from asyncflow.config.root import RunConfig
from asyncflow.config.rules.bounds import at_least
from asyncflow.flow.bytes import group_bytes, prompt_bytes


def length(config: RunConfig) -> None:
    steps, groups = config.run.steps, config.run.total_groups
    if (steps is None) == (groups is None):
        key, value, other = ("run.steps", steps, "run.total_groups") if steps is None else ("run.total_groups", groups, "run.steps")
        raise SettingError(
            key,
            value,
            rule=f"exactly one of it and {other} (= {spelt(groups if steps is None else steps)}) says how long the run is, the other is null",
            consequence=f"the run would have {'no end' if steps is None else 'two ends'}",
            fix=["run.steps=100"] if steps is None else [f"{key}=null"],
            advice="or whatever length you want" if steps is None else f"or {other}=null",
        )
    at_least("run.steps", steps, 1, "the run would be over before it begins")
    at_least("run.total_groups", groups, 1, "the run would be over before it begins")


def decode_shape(config: RunConfig) -> None:
    rollout = config.rollout
    if rollout.slots < LEAST_SLOTS:
        raise SettingError(
            "rollout.slots",
            rollout.slots,
            rule=f"it must be at least {LEAST_SLOTS}",
            consequence="1 to 3 rows take another matrix kernel, whose bits differ, so staleness 0 would not equal the synchronous loop",
            fix=[f"rollout.slots={LEAST_SLOTS}"],
            advice="or more",
        )
    width, need = rollout.cache_width, rollout.prompt_width + rollout.response_width
    if width % KV_MULTIPLE or width < need:
        raise SettingError(
            "rollout.kv_width",
            width,
            rule=f"it must be a multiple of {KV_MULTIPLE} that holds prompt_width + response_width = {need}",
            consequence="other widths differ in bits or cut sequences off",
            fix=["rollout.kv_width=null"],
            advice=f"which takes {-(-need // KV_MULTIPLE) * KV_MULTIPLE}",
        )


def requeue(config: RunConfig) -> None:
    if config.flow.requeue and (config.flow.policy == "wait" or config.staleness is None):
        why = "flow.policy=wait drops nothing" if config.flow.policy == "wait" else "staleness=null has no bound beyond which a group is dropped"
        rule, fix, advice = f"it says what becomes of dropped prompts, and {why}", ["flow.requeue=false"], "or flow.policy=drop with a staleness"
        raise SettingError("flow.requeue", True, rule=rule, consequence="it would be ignored", fix=fix, advice=advice)


def byte_budget(config: RunConfig) -> None:
    worst = group_bytes(config)
    need = config.batch_size * worst
    if config.flow.budget_bytes < need:
        raise SettingError(
            "flow.budget_bytes",
            config.flow.budget_bytes,
            rule=f"it must be at least batch_size × worst-case group = {config.batch_size} × {worst} = {need}",
            consequence="no batch could ever fill and the run would stand still",
            fix=_with_room(config, need),
            advice="or more",
        )


def byte_capacity(config: RunConfig) -> None:
    """What admission may let in, and the prompts that wait for it, fit in the shards: a put that a shard has no room for ends the run."""
    room, need = config.queue.shards * config.queue.shard_bytes, _stored(config, config.flow.budget_bytes)
    if need > room:
        waiting, prompt = config.data.prompts_bound, prompt_bytes(config)
        raise SettingError(
            "queue.shard_bytes",
            config.queue.shard_bytes,
            rule=f"queue.shards × it = {config.queue.shards} × {config.queue.shard_bytes} = {room} must hold flow.budget_bytes + "
            f"data.prompts_bound × one prompt = {config.flow.budget_bytes} + {waiting} × {prompt} = {need}",
            consequence="a put could find no room and end the run",
            fix=[f"queue.shard_bytes={-(-need // config.queue.shards)}"],
            advice="more shards, or a smaller flow.budget_bytes",
        )


def _stored(config: RunConfig, budget_bytes: int) -> int:
    """Most bytes in all shards under such a budget."""
    return budget_bytes + config.data.prompts_bound * prompt_bytes(config)


def _with_room(config: RunConfig, budget_bytes: int) -> list[str]:
    """Overrides for this budget, and for shards that hold it where today's do not."""
    need = _stored(config, budget_bytes)
    shards = [] if need <= config.queue.shards * config.queue.shard_bytes else [f"queue.shard_bytes={-(-need // config.queue.shards)}"]
    return [f"flow.budget_bytes={budget_bytes}", *shards]

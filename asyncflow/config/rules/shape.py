"""Rules on numbers: how long the run is, in what shapes it computes, how many bytes it may hold."""

from __future__ import annotations

import msgspec

from asyncflow.config.errors import ConfigError
from asyncflow.config.evaluation import MOST_ITEMS
from asyncflow.config.rollout import KV_MULTIPLE, LEAST_SLOTS
from asyncflow.config.root import RunConfig
from asyncflow.flow.bytes import group_bytes


def length(config: RunConfig) -> None:
    steps, groups = config.run.steps, config.run.total_groups
    if (steps is None) == (groups is None):
        raise ConfigError(
            f"run.steps = {steps} and run.total_groups = {groups}: exactly one of them says how long the run is, the other is null; "
            f"without that the run has no end. Fix: run.steps=100 run.total_groups=null"
        )
    at_least("run.steps", steps, 1)
    at_least("run.total_groups", groups, 1)


def numbers(config: RunConfig) -> None:
    at_least("staleness", config.staleness, 0)
    at_least("batch_size", config.batch_size, 1)
    at_least("rollout.samples_per_prompt", config.rollout.samples_per_prompt, 1)
    at_least("rollout.prompt_width", config.rollout.prompt_width, 1)
    at_least("rollout.response_width", config.rollout.response_width, 1)
    at_least("rollout.pull_groups", config.rollout.pull_groups, 1)
    at_least("algorithm.micro_batch_groups", config.algorithm.micro_batch_groups, 1)
    at_least("evaluation.every", config.evaluation.every, 1)
    at_least("evaluation.items", config.evaluation.items, 1)
    at_most("evaluation.items", config.evaluation.items, MOST_ITEMS, "an engine queues no more requests")
    at_least("weights.export_every", config.weights.export_every, 1)
    at_least("weights.bucket_bytes", config.weights.bucket_bytes, 4096)
    at_least("weights.cache_slots", config.weights.cache_slots, 1)
    at_least("queue.shards", config.queue.shards, 1)
    at_least("limits.restarts", config.limits.restarts, 0)
    at_least("data.prompts_bound", config.data.prompts_bound, 1)
    if config.rollout.temperature <= 0:
        raise ConfigError(
            f"rollout.temperature = {config.rollout.temperature}: sampling for training needs a temperature above 0; at 0 all samples of a "
            f"group are equal and nothing is learned. Fix: rollout.temperature=1.0 (evaluation is greedy anyway)"
        )
    if not 0 < config.weights.group_timeout_s <= 10:
        raise ConfigError(
            f"weights.group_timeout_s = {config.weights.group_timeout_s:g}: it must be above 0 and at most 10, for a killed peer is noticed only "
            f"then. Fix: weights.group_timeout_s=10"
        )


def at_least(key: str, value: float | None, least: int) -> None:
    if value is not None and value < least:
        raise ConfigError(f"{key} = {value}: it must be at least {least} (nothing was started). Fix: {key}={least} or more")


def at_most(key: str, value: float, most: int, reason: str) -> None:
    if value > most:
        raise ConfigError(f"{key} = {value}: it must be at most {most}, for {reason} (nothing was started). Fix: {key}={most} or less")


def decode_shape(config: RunConfig) -> None:
    rollout = config.rollout
    if rollout.slots < LEAST_SLOTS:
        raise ConfigError(
            f"rollout.slots = {rollout.slots}: at least {LEAST_SLOTS}; 1 to 3 rows take another matrix kernel, whose bits differ, so staleness 0 "
            f"would not equal the synchronous loop. Fix: rollout.slots={LEAST_SLOTS}"
        )
    width, need = rollout.cache_width, rollout.prompt_width + rollout.response_width
    if width % KV_MULTIPLE or width < need:
        raise ConfigError(
            f"rollout.kv_width = {width}: a multiple of {KV_MULTIPLE} that holds prompt_width + response_width = {need}; other widths differ in "
            f"bits or cut sequences off. Fix: rollout.kv_width=null, which takes {-(-need // KV_MULTIPLE) * KV_MULTIPLE}"
        )


def byte_budget(config: RunConfig) -> None:
    worst = group_bytes(config)
    need = config.batch_size * worst
    if config.flow.budget_bytes < need:
        raise ConfigError(
            f"flow.budget_bytes = {config.flow.budget_bytes}: below batch_size × worst-case group = {config.batch_size} × {worst} = {need}; no batch "
            f"could ever fill and the run would stand still. Fix: flow.budget_bytes={need} or more"
        )


def byte_capacity(config: RunConfig) -> None:
    """What admission may let in, and the prompts that wait for it, fit in the shards: a put that a shard has no room for ends the run."""
    without_rows = msgspec.structs.replace(config, rollout=msgspec.structs.replace(config.rollout, samples_per_prompt=0))
    waiting, prompt = config.data.prompts_bound, group_bytes(without_rows)  # a waiting prompt is a group that has no rows yet
    need, queue = config.flow.budget_bytes + waiting * prompt, config.queue
    if need > queue.shards * queue.shard_bytes:
        raise ConfigError(
            f"flow.budget_bytes + data.prompts_bound × one prompt = {config.flow.budget_bytes} + {waiting} × {prompt} = {need}: more than "
            f"queue.shards × queue.shard_bytes = {queue.shards} × {queue.shard_bytes} = {queue.shards * queue.shard_bytes}, so a put could find no "
            f"room and end the run. Fix: queue.shard_bytes={-(-need // queue.shards)}, more shards, or a smaller flow.budget_bytes"
        )

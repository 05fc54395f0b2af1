"""Rules on single numbers: for each the least or the most it may be, and what would become of the run beyond."""

from __future__ import annotations

import operator
from typing import Any

from asyncflow.config.errors import SettingError
from asyncflow.config.evaluation import MOST_ITEMS
from asyncflow.config.root import RunConfig
from asyncflow.config.rules.bounds import above, at_least, at_most
from transfer_queue.controller.schema import MOST_ROWS

AT_LEAST: tuple[tuple[str, int, str], ...] = (
    ("run.seed", 0, "generators of random numbers take no negative seed, and every worker would fail"),
    ("staleness", 0, "weights of a version that does not exist yet would be needed (to be bounded by bytes only: staleness=null)"),
    ("batch_size", 1, "a step without groups has no gradient"),
    ("flow.budget_bytes", 1, "nothing could be admitted"),
    ("data.prompts_bound", 1, "no prompt could wait for admission, so none would ever be generated from"),
    ("task.item_bytes", 0, "the worst case of a group would be counted too small"),
    ("rollout.samples_per_prompt", 1, "a group without rows can neither be scored nor trained"),
    ("rollout.prompt_width", 4, "fewer rows take another matrix kernel, whose bits differ"),
    ("rollout.response_width", 1, "no token could be generated"),
    ("rollout.pull_groups", 1, "no replica would ever ask for a prompt"),
    ("algorithm.micro_batch_groups", 1, "a pass over no group never ends the batch"),
    ("algorithm.warmup_steps", 0, "there is no course of the learning rate before the first step"),
    ("algorithm.kl_coef", 0, "the loss would reward drifting away from the reference"),
    ("algorithm.weight_decay", 0, "the weights would grow at each step"),
    ("evaluation.every", 1, "no version would ever be due (for no evaluation at all: evaluation.every=null)"),
    ("evaluation.items", 1, "an accuracy over nothing has no value (for no evaluation at all: evaluation.every=null)"),
    ("weights.export_every", 1, "no version would ever be due (to export the last one only: weights.export_every=null)"),
    ("weights.bucket_bytes", 4096, "a transfer would send more headers than weights"),
    ("weights.cache_slots", 1, "the version that is being read would be overwritten"),
    ("weights.receiver_slots", 1, "no version would have a place where it could arrive"),
    ("queue.shards", 1, "nobody would hold the samples"),
    ("queue.shard_bytes", 1, "a shard could hold nothing"),
    ("queue.keep_bytes", 0, "there is no such amount of memory (0 gives all of it back)"),
    ("cluster.devices", 0, "there is no such number of accelerators"),
    ("limits.restarts", 0, "a worker cannot be restarted less than never"),
)

ABOVE_0: tuple[tuple[str, str, str], ...] = (  # key, a value that serves, what would happen
    ("algorithm.grad_clip", "1.0", "all gradients would be cut to nothing"),
    ("algorithm.clip_low", "0.2", "the ratio would have no room to move"),
    ("algorithm.clip_high", "0.2", "the ratio would have no room to move"),
    ("algorithm.importance_cap", "null", "every sampled token would weigh nothing (null: no such correction)"),
    ("rollout.progress_s", "0.2", "leases are renewed by progress that is told, and it would be told without pause"),
    ("limits.restart_window_s", "60", "no restart would ever be counted"),
    ("limits.start_s", "120", "no process could be up in time"),
    ("limits.place_s", "60", "no worker could have a place in time"),
    ("limits.prepare_s", "600", "no model could be ready in time"),
    ("limits.drain_s", "15", "every worker would be killed at the end, with its last rows and weights"),
    ("limits.lease_s", "30", "every lease would run out at once, and nothing would ever be finished"),
    ("limits.heartbeat_s", "15", "every worker would count as dead at once"),
    ("limits.stall_s", "60", "the run would end as stalled at once"),
    ("limits.reward_s", "5", "no row could ever be scored"),
)


def numbers(config: RunConfig) -> None:
    for key, least, consequence in AT_LEAST:
        at_least(key, _value(config, key), least, consequence)
    for key, serves, consequence in ABOVE_0:
        above(key, _value(config, key), 0, serves, consequence)
    at_most("evaluation.items", config.evaluation.items, MOST_ITEMS, "an engine queues no more requests and would refuse the evaluation")
    at_most("rollout.samples_per_prompt", config.rollout.samples_per_prompt, MOST_ROWS, "the queue refuses groups with more rows")
    for name, stage in config.stages.items():
        at_least(f"stages.{name}.limit", stage.limit, 1, "a lease of nothing would be asked for, for ever")
        at_least(f"stages.{name}.at_least", stage.at_least, 1, "a lease of nothing would be asked for, for ever")
    _temperature(config)
    _group_timeout(config)


def _value(config: RunConfig, key: str) -> Any:
    return operator.attrgetter(key)(config)


def _temperature(config: RunConfig) -> None:
    above(
        "rollout.temperature",
        config.rollout.temperature,
        0,
        "1.0",
        "sampling for training needs it, at 0 all samples of a group are equal and nothing is learned (evaluation is greedy anyway)",
    )


def _group_timeout(config: RunConfig) -> None:
    timeout_s = config.weights.group_timeout_s
    if not 0 < timeout_s <= 10:
        rule = "it must be above 0 and at most 10"
        consequence = "a killed peer is noticed only then, and nobody would get new weights meanwhile"
        raise SettingError("weights.group_timeout_s", timeout_s, rule=rule, consequence=consequence, fix=["weights.group_timeout_s=10"])

"""What of verl the recipe does not serve yet: refused by name before anything starts, never ignored."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from asyncflow.config.errors import SettingError

# Whose advantage of a row depends on its group alone. The others look at the whole batch, which no stage but the trainer knows.
GROUP_WISE = ("grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "opo")
# Those that add up over micro-batches. geo_mean divides by the rows of each, clip_cov and kl_cov choose tokens by what else is in each, and
# bypass_mode needs rollout correction.
LOSSES = ("vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "dro", "cispo")
TRACKERS = ("console", "file", "tensorboard", "wandb")  # of the run's own: its lines, its metrics.jsonl, two writers
AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


class Limit(NamedTuple):
    key: str
    serves: Callable[[Any], bool]
    rule: str
    consequence: str
    fix: str  # a value that is served


def _off(value: Any) -> bool:
    return not value


def _is(served: Any) -> Callable[[Any], bool]:
    return partial(operator.eq, served)


def trackers(value: Any) -> set[str]:
    """Of `trainer.logger`, which may be one name."""
    return {value} if isinstance(value, str) else set(value or ())


LIMITS = (
    Limit("actor_rollout_ref.actor.strategy", _is("fsdp2"), "only fsdp2 is there so far", "no trainer could be built", "fsdp2"),
    Limit("actor_rollout_ref.actor.ppo_epochs", _is(1), "one pass over a batch is there so far", "others would be left out", "1"),
    Limit("actor_rollout_ref.actor.loss_agg_mode", AGGREGATIONS.__contains__, f"one of {', '.join(AGGREGATIONS)}: a sum over "
          "micro-batches is divided once by a count", "the gradient would depend on how the batch is cut", "token-mean"),
    Limit("actor_rollout_ref.actor.policy_loss.loss_mode", LOSSES.__contains__, f"one of {', '.join(LOSSES)}: a sum over micro-batches is divided "
          "once by a count", "the gradient would depend on how the batch is cut", "vanilla"),
    Limit("actor_rollout_ref.actor.use_prefix_grouper", _off, "it is not there yet", "it would be ignored", "false"),
    Limit("actor_rollout_ref.model.lora_rank", _is(0), "whole weights are published so far", "adapters would not reach the rollout", "0"),
    Limit("actor_rollout_ref.rollout.name", _is("vllm"), "only vllm is there so far", "no replica could start", "vllm"),
    Limit("actor_rollout_ref.rollout.multi_turn.enable", _off, "agent loops of several turns are not there yet", "tools would not run", "false"),
    Limit("actor_rollout_ref.rollout.agent.default_agent_loop", _is("single_turn_agent"), "other agent loops are not there yet",
          "it would be ignored", "single_turn_agent"),
    Limit("actor_rollout_ref.rollout.top_p", _is(1), "log-probabilities belong to the whole distribution", "they would belong to another", "1.0"),
    Limit("actor_rollout_ref.rollout.top_k", _is(-1), "log-probabilities belong to the whole distribution", "they would belong to another", "-1"),
    Limit("algorithm.adv_estimator", GROUP_WISE.__contains__, f"one of {', '.join(GROUP_WISE)}, whose advantages depend on a group alone",
          "they would not be of the batch that is trained, or need a critic, which is not there yet", "grpo"),
    Limit("algorithm.use_kl_in_reward", _off, "a penalty in the reward is not there yet", "it would be ignored", "false"),
    Limit("algorithm.filter_groups.enable", _off, "filtering of groups is not there yet", "groups without a signal would be trained", "false"),
    Limit("algorithm.rollout_correction.bypass_mode", _off, "it is not there yet", "it would be ignored", "false"),
    Limit("algorithm.rollout_correction.rollout_is", lambda value: value is None, "it is not there yet", "it would be ignored", "null"),
    Limit("algorithm.rollout_correction.rollout_rs", lambda value: value is None, "it is not there yet", "it would be ignored", "null"),
    Limit("reward.reward_model.enable", _off, "reward models are not there yet", "rewards would be those of the function alone", "false"),
    Limit("distillation.enabled", _off, "teachers are not there yet", "it would be ignored", "false"),
    Limit("trainer.nnodes", _is(1), "the trainer's ranks are on one node so far", "the others would stay idle", "1"),
    Limit("trainer.save_freq", lambda value: value is None or value <= 0, "saving a run is not there yet", "nothing would be saved", "-1"),
    Limit("trainer.resume_mode", _is("disable"), "resuming a run is not there yet", "it would begin anew", "disable"),
    Limit("trainer.logger", lambda value: trackers(value) <= set(TRACKERS), f"of {', '.join(TRACKERS)}: other trackers are not there yet",
          "nothing would be written there", "[console]"),
    Limit("trainer.critic_warmup", _is(0), "there is no critic", "it would be ignored", "0"),
)
PARTIAL = {"algorithm.rollout_correction.bypass_mode", "distillation.enabled"}  # keys that a configuration may lack


def refuse_unserved(conf: Mapping[str, Any]) -> None:
    """Raises SettingError for the first that is asked for."""
    for limit in LIMITS:
        value = at(conf, limit.key)
        if not limit.serves(value) and not (value is None and limit.key in PARTIAL):
            fix = [f"{limit.key}={limit.fix}"]
            consequence = f"{limit.consequence}, so nothing was started"
            raise SettingError(limit.key, value, rule=limit.rule, consequence=consequence, fix=fix)
    mode, aggregation = "actor_rollout_ref.actor.policy_loss.loss_mode", "actor_rollout_ref.actor.loss_agg_mode"
    if at(conf, mode) == "sapo" and at(conf, aggregation) != "seq-mean-token-mean":
        rule, consequence = "with loss_mode=sapo verl takes seq-mean-token-mean, whatever stands here", "the gradient would have another size"
        raise SettingError(aggregation, at(conf, aggregation), rule=rule, consequence=consequence, fix=[f"{aggregation}=seq-mean-token-mean"])
    key = "actor_rollout_ref.actor.loss_scale_factor"
    if at(conf, "actor_rollout_ref.actor.loss_agg_mode") == "seq-mean-token-sum-norm" and at(conf, key) is None:
        rule, consequence = "seq-mean-token-sum-norm needs a number here", "the longest response of a micro-batch would scale it"
        raise SettingError(key, None, rule=rule, consequence=consequence, fix=[f"{key}={at(conf, 'data.max_response_length')}"])


def at(conf: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; None where there is none."""
    node: Any = conf
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return None
        node = node[part]
    return node

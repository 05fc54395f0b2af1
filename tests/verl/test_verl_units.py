"""verl's knobs in AsyncFlow's units. No verl is needed: the configurations are plain data; `test_verl_recipe_config` reads verl's own."""

from __future__ import annotations

from typing import Any

import pytest

from asyncflow.config.errors import SettingError
from recipes.verl.units import Units, compare, read_knobs, to_units


def conf(**changes: Any) -> dict[str, Any]:
    """A configuration of 32 prompts a step, two mini-steps, at most two versions old; `changes` by their last names."""
    given = {
        "batch": 32, "mini": 16, "sync": 2, "epochs": 1, "threshold": 3, "strategy": "wait", "mode": "asyncflow", "own": {}, "fully": None, **changes
    }
    tree: dict[str, Any] = {
        "data": {"train_batch_size": given["batch"]},
        "actor_rollout_ref": {"actor": {"ppo_mini_batch_size": given["mini"], "ppo_epochs": given["epochs"]}},
        "trainer": {
            "v1": {
                "trainer_mode": given["mode"],
                given["mode"]: {"parameter_sync_step": given["sync"], **given["own"]},
                "sampler": {"max_off_policy_threshold": given["threshold"], "max_off_policy_strategy": given["strategy"]},
            }
        },
        "asyncflow": given.get("asyncflow", {}),
    }
    if given["fully"] is not None:
        tree["async_training"] = {"staleness_threshold": given["fully"]}
    return tree


def units(**changes: Any) -> Units:
    return to_units(read_knobs(conf(**changes)))


def refusal(**changes: Any) -> SettingError:
    with pytest.raises(SettingError) as caught:
        units(**changes)
    return caught.value


def test_a_step_is_a_version_and_a_span_counts_one_more_than_staleness() -> None:
    assert units() == Units(batch_size=32, mini_steps=2, staleness=2, policy="wait")
    assert units().permits == 96
    assert units(threshold=1).staleness == 0


def test_without_a_threshold_only_bytes_bound_the_run() -> None:
    found = units(threshold=None)
    assert (found.staleness, found.permits) == (None, None)


def test_what_is_submitted_ahead_is_a_bound_here() -> None:
    shown = {row.verl: row.ours for row in compare(read_knobs(conf(own={"num_warmup_batches": 1})), units())}
    assert shown["trainer.v1.asyncflow.num_warmup_batches"] == "permits = (k + 1) × batch_size = 96"
    assert shown["trainer.v1.sampler.max_off_policy_threshold"] == "staleness k = 2"
    assert len(shown) == 5


def test_the_knobs_of_a_mode_stand_under_its_name() -> None:
    assert read_knobs(conf(mode="separate_async", own={"num_warmup_batches": 2})).num_warmup_batches == 2


@pytest.mark.parametrize(
    ("changes", "key", "said"),
    [
        ({"batch": 24}, "data.train_batch_size", "16 × 2 = 32"),
        ({"threshold": 0}, "trainer.v1.sampler.max_off_policy_threshold", "from 1"),
        ({"threshold": True}, "trainer.v1.sampler.max_off_policy_threshold", "from 1"),
        ({"sync": 0}, "trainer.v1.asyncflow.parameter_sync_step", "from 1"),
        ({"mode": "synch"}, "trainer.v1.trainer_mode", "one of asyncflow, separate_async"),
        ({"mode": "sync"}, "trainer.v1.trainer_mode", "max_off_policy_threshold = 3 allows older ones"),
        ({"mode": "sync", "threshold": None}, "trainer.v1.trainer_mode", "null allows older ones"),
        ({"strategy": "keep"}, "trainer.v1.sampler.max_off_policy_strategy", "drop, wait"),
        ({"own": {"num_warmup_batches": 3}}, "trainer.v1.asyncflow.num_warmup_batches", "at most 2 versions"),
        ({"fully": 0.5}, "async_training.staleness_threshold", "a part of a batch is none"),
        ({"fully": 1}, "async_training.staleness_threshold", "says staleness 1"),
        ({"threshold": None, "fully": 1}, "async_training.staleness_threshold", "says null"),
        ({"asyncflow": {"staleness": 1}}, "asyncflow.staleness", "max_off_policy_threshold says 2"),
        ({"asyncflow": {"staleness": None}}, "asyncflow.staleness", "max_off_policy_threshold says 2"),
        ({"asyncflow": {"batch_size": 16}}, "asyncflow.batch_size", "train_batch_size says 32"),
        ({"asyncflow": {"flow": {"policy": "drop"}}}, "asyncflow.flow.policy", "says 'wait'"),
    ],
)
def test_what_contradicts_itself_is_refused_with_key_rule_and_fix(changes: dict[str, Any], key: str, said: str) -> None:
    error = refusal(**changes)
    assert error.key == key
    assert said in error.rule
    assert error.mend


def test_what_says_the_same_twice_is_no_contradiction() -> None:
    assert units(fully=2.0, asyncflow={"staleness": 2, "batch_size": 32, "flow": {"policy": "wait"}}) == units()


def test_the_fix_of_every_number_mends_it() -> None:
    assert refusal(batch=24).fix == ("data.train_batch_size=32",)
    assert refusal(fully=1).fix == ("trainer.v1.sampler.max_off_policy_threshold=2",)
    assert units(threshold=2, fully=1).staleness == 1
    assert refusal(own={"num_warmup_batches": 2.5}).mend.endswith("max_off_policy_threshold=4")
    assert refusal(mode="sync").fix == ("trainer.v1.sampler.max_off_policy_threshold=1",)
    assert units(mode="sync", threshold=1).staleness == 0
    assert units(threshold=4, own={"num_warmup_batches": 2.5}).staleness == 3


def test_a_missing_knob_is_named() -> None:
    tree = conf()
    del tree["data"]
    with pytest.raises(SettingError, match=r"data\.train_batch_size: it is missing"):
        read_knobs(tree)

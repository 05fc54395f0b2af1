"""Every key of verl's own configuration, as it is installed, is served, refused by name or listed as without meaning. verl itself is not imported."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest

from asyncflow.config.errors import SettingError
from recipes.verl.fates import KNOWN, Fate, entries, leaves, name_of
from recipes.verl.stock import refuse_changed, verls_own

pytestmark = pytest.mark.verl
ADDED = {  # verl reads them, or a user of ours writes them: its YAML lacks them
    "asyncflow.*",
    "async_training.staleness_threshold",
    "trainer.v1.asyncflow.*",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision.*",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision.*",
    "actor_rollout_ref.rollout.enable_sleep_mode",
    "data.cache_dir",
    "data.filter_prompts",
    "reward.reward_kwargs.*",
}


@pytest.fixture(scope="module")
def stock() -> dict[str, Any]:
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(verls_own(), resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def changed(stock: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    conf = copy.deepcopy(stock)
    *sections, last = key.split(".")
    node = conf
    for section in sections:
        node = node.setdefault(section, {})
    node[last] = value
    return conf


def test_every_key_of_verls_has_one_fate(stock: dict[str, Any]) -> None:
    keys = [key for key, _ in leaves(stock)]
    assert len(keys) > 700
    assert [key for key in keys if name_of(key) is None] == []
    assert [name for name, count in Counter(name for name, _, _ in entries()).items() if count > 1] == []


def test_no_name_is_left_of_what_verl_no_longer_has(stock: dict[str, Any]) -> None:
    used = {name_of(key) for key, _ in leaves(stock)}
    assert sorted(KNOWN.keys() - used - ADDED) == []


def test_verls_own_configuration_changes_nothing(stock: dict[str, Any]) -> None:
    refuse_changed(stock)


def test_every_key_to_be_left_alone_is_refused_when_it_is_not(stock: dict[str, Any]) -> None:
    refused = [key for key, _ in leaves(stock) if KNOWN[name_of(key) or ""][0] is Fate.REFUSED]
    assert len(refused) > 80
    for key in refused[::8]:
        with pytest.raises(SettingError, match="it would be ignored, so nothing was started") as found:
            refuse_changed(changed(stock, key, "another"))
        assert found.value.key == key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.max_response_length", 77),  # rollout.response_length follows it, and other keys of it
        ("actor_rollout_ref.rollout.n", 5),
        ("actor_rollout_ref.model.override_config", {"attn_implementation": "sdpa"}),
        ("critic.ppo_epochs", 3),
        ("asyncflow.launch", "ray"),
    ],
)
def test_what_follows_a_change_and_what_is_served_or_without_meaning_is_not_refused(key: str, value: Any) -> None:
    from omegaconf import OmegaConf

    own = verls_own()
    OmegaConf.update(own, key, value, force_add=True)
    plain = OmegaConf.to_container(own, resolve=True)
    assert isinstance(plain, dict)
    refuse_changed({str(name): node for name, node in plain.items()})


def test_a_value_that_no_longer_follows_is_refused_with_what_it_would_be(stock: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=r"actor_rollout_ref\.rollout\.prompt_length = 100: it must stay 512: .* Fix: .*prompt_length=512"):
        refuse_changed(changed(stock, "actor_rollout_ref.rollout.prompt_length", 100))


def test_a_key_that_nobody_knows_is_refused_and_a_section_that_another_serves_is_not(stock: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=r"data\.suffle = true: neither verl's .* did you mean data\.shuffle"):
        refuse_changed(changed(stock, "data.suffle", True))
    with pytest.raises(SettingError, match="ray_kwargs"):
        refuse_changed(changed(stock, "ray_kwargs.ray_init.num_cpus", 4))
    refuse_changed(changed(stock, "ray_kwargs.ray_init.num_cpus", 4), besides=("ray_kwargs",))


@pytest.mark.parametrize(("seed", "is_here"), [(None, 1), (0, 0), (7, 7)])
def test_a_seed_of_zero_is_a_seed(stock: dict[str, Any], seed: int | None, is_here: int) -> None:
    from recipes.verl.translate import translated

    conf = stock
    for key, value in (
        ("trainer.v1.trainer_mode", "asyncflow"),
        ("trainer.total_training_steps", 3),
        ("actor_rollout_ref.actor.ppo_mini_batch_size", stock["data"]["train_batch_size"]),
        ("actor_rollout_ref.rollout.nnodes", 1),
        ("data.seed", seed),
    ):
        conf = changed(conf, key, value)
    assert translated(conf)["run"]["seed"] == is_here

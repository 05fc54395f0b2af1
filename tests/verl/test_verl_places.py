"""How many replicas and ranks verl's numbers make, and those that make none. No verl is needed: the configurations are plain data."""

from __future__ import annotations

from typing import Any

import pytest

from asyncflow.config.errors import SettingError
from recipes.verl.served import LIMITS
from recipes.verl.translate import COUNTS, _places


def conf(key: str = "", value: Any = None) -> dict[str, Any]:
    """Two nodes of 4 devices for replicas of 2, and 3 ranks; `key`: set to `value`."""
    tree: dict[str, Any] = {
        "trainer": {"n_gpus_per_node": 3, "device": "cuda"},
        "actor_rollout_ref": {"actor": {"use_kl_loss": True}, "rollout": {"nnodes": 2, "n_gpus_per_node": 4, "tensor_model_parallel_size": 2}},
    }
    if key:
        *sections, last = key.split(".")
        node = tree
        for section in sections:
            node = node[section]
        node[last] = value
    return tree


def test_replicas_ranks_and_both_kinds_of_forward_workers_have_devices_of_their_own() -> None:
    found = _places(conf())
    assert found["cluster"] == {"kind": "cuda", "devices": 8 + 3 + 1 + 1}
    assert found["resources"]["rollout"] == {"workers": 4, "devices": 8}
    assert found["resources"]["trainer"] == {"devices": 3}


@pytest.mark.parametrize("value", [0, -1, None, 1.5, True, "2"])
@pytest.mark.parametrize("key", COUNTS)
def test_a_number_of_places_that_is_none_is_refused_with_a_fix(key: str, value: Any) -> None:
    with pytest.raises(SettingError, match="it must be a whole number from 1") as caught:
        _places(conf(key, value))
    assert (caught.value.key, caught.value.fix) == (key, (f"{key}=1",))


@pytest.mark.parametrize(("every", "is_served"), [(None, True), (-1, True), (0, True), (5, False)])
def test_saving_is_refused_only_where_it_is_asked_for(every: int | None, is_served: bool) -> None:
    limit = next(limit for limit in LIMITS if limit.key == "trainer.save_freq")
    assert limit.serves(every) is is_served

"""How engines cut their rows is asked before anything starts. No verl is needed: the configurations are plain data."""

from __future__ import annotations

from typing import Any

import pytest

from asyncflow.config.errors import SettingError
from recipes.verl.cuts import refuse_cuts
from recipes.verl.served import LOSSES

ACTOR, REF, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout"


def conf(**changes: Any) -> dict[str, Any]:
    """Prompts of 512 tokens and responses of 1,024; `changes`: keys of verl's, with __ for a dot."""
    forward = {"log_prob_use_dynamic_bsz": True, "log_prob_micro_batch_size_per_gpu": None, "log_prob_max_token_len_per_gpu": 1536}
    training = {"use_dynamic_bsz": True, "ppo_micro_batch_size_per_gpu": None, "ppo_max_token_len_per_gpu": 1536, "use_kl_loss": True}
    tree: dict[str, Any] = {
        "data": {"max_prompt_length": 512, "max_response_length": 1024},
        "actor_rollout_ref": {"actor": training, "ref": dict(forward), "rollout": dict(forward)},
    }
    for key, value in changes.items():
        section, last = key.split("__")
        (tree["data"] if section == "data" else tree["actor_rollout_ref"][section])[last] = value
    return tree


def test_the_longest_row_fits_and_so_does_a_number_of_rows() -> None:
    refuse_cuts(conf())
    refuse_cuts(conf(actor__use_dynamic_bsz=False, actor__ppo_micro_batch_size_per_gpu=1))
    refuse_cuts(conf(actor__use_kl_loss=False, ref__log_prob_max_token_len_per_gpu=1))  # nobody computes with the reference


@pytest.mark.parametrize(
    ("changes", "key", "fix"),
    [
        ({"actor__ppo_max_token_len_per_gpu": 1535}, f"{ACTOR}.ppo_max_token_len_per_gpu", f"{ACTOR}.ppo_max_token_len_per_gpu=1536"),
        ({"data__max_response_length": 1025}, f"{ACTOR}.ppo_max_token_len_per_gpu", f"{ACTOR}.ppo_max_token_len_per_gpu=1537"),
        ({"rollout__log_prob_max_token_len_per_gpu": 1}, f"{ROLLOUT}.log_prob_max_token_len_per_gpu", None),
        ({"ref__log_prob_max_token_len_per_gpu": None}, f"{REF}.log_prob_max_token_len_per_gpu", None),
        ({"actor__use_dynamic_bsz": False}, f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.ppo_micro_batch_size_per_gpu=8"),
        ({"rollout__log_prob_use_dynamic_bsz": False}, f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", None),
        ({"ref__log_prob_use_dynamic_bsz": False}, f"{REF}.log_prob_micro_batch_size_per_gpu", None),
        ({"rollout__log_prob_use_dynamic_bsz": False, "rollout__log_prob_micro_batch_size_per_gpu": 0},
         f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", None),
    ],
)
def test_an_engine_that_could_not_cut_its_rows_is_refused_with_key_and_fix(changes: dict[str, Any], key: str, fix: str | None) -> None:
    with pytest.raises(SettingError) as caught:
        refuse_cuts(conf(**changes))
    assert caught.value.key == key
    assert fix is None or caught.value.fix == (fix,)
    assert "would end the run" in str(caught.value)


def test_losses_that_choose_tokens_by_what_else_is_in_a_micro_batch_are_not_served() -> None:
    assert not {"clip_cov", "kl_cov", "geo_mean"} & set(LOSSES)

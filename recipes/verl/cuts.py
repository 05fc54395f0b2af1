"""How each engine cuts its rows into micro-batches, asked before anything starts: verl's engines say it at the first batch only. Needs no verl."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from asyncflow.config.errors import SettingError, spelt
from recipes.verl.served import at

ACTOR, REF, ROLLOUT = (f"actor_rollout_ref.{part}" for part in ("actor", "ref", "rollout"))


class Cut(NamedTuple):
    """Keys of verl's that say how one engine cuts."""

    by_tokens: str  # whether it cuts by tokens
    rows: str
    tokens: str


TRAINING = Cut(f"{ACTOR}.use_dynamic_bsz", f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.ppo_max_token_len_per_gpu")


def _log_probs(section: str) -> Cut:
    return Cut(f"{section}.log_prob_use_dynamic_bsz", f"{section}.log_prob_micro_batch_size_per_gpu", f"{section}.log_prob_max_token_len_per_gpu")


def _cuts(conf: Mapping[str, Any]) -> Iterator[Cut]:
    yield TRAINING
    yield _log_probs(ROLLOUT)  # the forward worker that follows the trainer
    if at(conf, f"{ACTOR}.use_kl_loss"):
        yield _log_probs(REF)


def refuse_cuts(conf: Mapping[str, Any]) -> None:
    """Raises SettingError for an engine that has no number to cut by, or one that its longest row does not fit into."""
    longest = at(conf, "data.max_prompt_length") + at(conf, "data.max_response_length")
    for cut in _cuts(conf):
        if at(conf, cut.by_tokens):
            tokens = at(conf, cut.tokens)
            if tokens is None or tokens < longest:
                rule = f"with {cut.by_tokens}=true it must be at least data.max_prompt_length + data.max_response_length = {longest}"
                raise SettingError(
                    cut.tokens, tokens, rule=rule, consequence="the first row that is longer would end the run", fix=[f"{cut.tokens}={longest}"]
                )
        elif not (rows := at(conf, cut.rows)) or rows < 1:
            rule = f"with {cut.by_tokens} = {spelt(at(conf, cut.by_tokens))} it must be a number from 1"
            fix, advice = [f"{cut.rows}=8"], f"or {ACTOR}.use_dynamic_bsz=true, which cuts by tokens"
            raise SettingError(cut.rows, rows, rule=rule, consequence="its first batch would end the run", fix=fix, advice=advice)

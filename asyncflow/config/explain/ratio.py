"""Where the denominator of the policy ratio, the column `old_logprobs`, comes from."""

from __future__ import annotations

import msgspec

from asyncflow.config.root import POLICY, RunConfig


class OldLogprobs(msgspec.Struct, frozen=True):
    source: str  # as algorithm.old_logprobs spells it
    column: str | None  # that carries them; None: no column
    computed_by: str
    with_weights: str
    importance: str  # the correction from what was sampled


def old_logprobs(config: RunConfig) -> OldLogprobs:
    source, cap = config.algorithm.old_logprobs, config.algorithm.importance_cap
    column = {"forward": "old_logprobs", "behaviour": "rollout_logprobs", "recompute": None}[source]
    producer = next((name for name, stage in config.stages.items() if column in stage.outputs), "train")
    role = next((role for role, settings in config.resources.items() if producer in settings.stages), {"train": "trainer"}.get(producer, producer))
    weights = {
        "forward": f"weights of {POLICY!r} at least as new as the row's newest token and at most the trainer's; the mixture is logged",
        "behaviour": "the weights that sampled each token",
        "recompute": "the trainer's own at the start of the update: the ratio is 1 in the first pass over a batch",
    }[source]
    importance = "none" if cap is None else f"behaviour-to-old importance, truncated at {cap:g}"
    return OldLogprobs(source, column, f"stage {producer}, role {role}", weights, importance)

"""verl's knobs of asynchronous training in AsyncFlow's units, and what of them contradicts itself. Needs no verl.

verl counts a step when it has trained `train_batch_size` prompts and synchronised weights, and marks a prompt with the step that submitted it. So its
`global_steps` after a step is AsyncFlow's version, and a prompt of step s' that is trained in step s has weights of version s' - 1 or newer where the
trainer has s - 1: staleness s - s', one less than what verl calls the span.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from asyncflow.config.errors import SettingError, spelt

BATCH, MINI, EPOCHS = "data.train_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size", "actor_rollout_ref.actor.ppo_epochs"
THRESHOLD, STRATEGY = "trainer.v1.sampler.max_off_policy_threshold", "trainer.v1.sampler.max_off_policy_strategy"
FULLY = "async_training"  # verl's fully asynchronous recipe has its knobs there
STRATEGIES = ("drop", "wait")
SYNC = "sync"  # verl's mode that trains what it has just sampled
MODES = ("asyncflow", "separate_async", "colocate_async", SYNC)
ABSENT = "absent"  # of a knob that the configuration does not have


class Knobs(msgspec.Struct, frozen=True):
    """What verl is told. Prompts, not trajectories, are counted."""

    mode: str  # of trainer.v1: its own knobs stand under that name
    train_batch_size: int
    ppo_mini_batch_size: int
    ppo_epochs: int
    parameter_sync_step: int  # optimizer steps between two synchronisations of weights
    max_off_policy_threshold: int | None  # most steps that a prompt spans, its own and that of its training included; None: any number
    max_off_policy_strategy: str
    num_warmup_batches: float | None  # batches submitted ahead; None: the mode has no such knob
    staleness_threshold: float | None  # of the fully asynchronous recipe; None: it is not used
    asked: dict[str, Any]  # `staleness`, `batch_size`, `flow.policy`, as far as `asyncflow:` names them


class Units(msgspec.Struct, frozen=True):
    """The same in AsyncFlow's terms."""

    batch_size: int  # groups of a global batch: one commit, one version
    mini_steps: int  # optimizer steps in it
    staleness: int | None
    policy: str

    @property
    def permits(self) -> int | None:
        """Most groups under way; None: bounded by bytes only."""
        return None if self.staleness is None else (self.staleness + 1) * self.batch_size


class Row(msgspec.Struct, frozen=True):
    """One line of the comparison."""

    verl: str
    value: str
    ours: str
    means: str


def read_knobs(conf: Mapping[str, Any]) -> Knobs:
    """Out of verl's configuration as plain data. Raises SettingError for a knob that is missing."""
    mode = _at(conf, "trainer.v1.trainer_mode")
    own = _at(conf, f"trainer.v1.{mode}", {}) or {}
    asked = {key: value for key in ("staleness", "batch_size", "flow.policy") if (value := _at(conf, f"asyncflow.{key}", ABSENT)) != ABSENT}
    return Knobs(
        mode=mode,
        train_batch_size=_at(conf, BATCH),
        ppo_mini_batch_size=_at(conf, MINI),
        ppo_epochs=_at(conf, EPOCHS, 1),
        parameter_sync_step=own.get("parameter_sync_step", 1),
        max_off_policy_threshold=_at(conf, THRESHOLD),
        max_off_policy_strategy=_at(conf, STRATEGY),
        num_warmup_batches=own.get("num_warmup_batches"),
        staleness_threshold=_at(conf, f"{FULLY}.staleness_threshold", None),
        asked=asked,
    )


def to_units(knobs: Knobs) -> Units:
    """Raises SettingError for the first knob that contradicts another one."""
    _refuse_numbers(knobs)
    _refuse_modes(knobs)
    _refuse_batches(knobs)
    threshold = knobs.max_off_policy_threshold
    units = Units(
        batch_size=knobs.train_batch_size,
        mini_steps=knobs.parameter_sync_step * knobs.ppo_epochs,
        staleness=None if threshold is None else threshold - 1,
        policy=knobs.max_off_policy_strategy,
    )
    _refuse_thresholds(knobs, units)
    _refuse_asked(knobs, units)
    _refuse_warmup(knobs, units)
    return units


def compare(knobs: Knobs, units: Units) -> list[Row]:
    """Every knob beside what it is here."""
    sync = f"trainer.v1.{knobs.mode}.parameter_sync_step"
    warmup = f"trainer.v1.{knobs.mode}.num_warmup_batches"
    permits = "groups under way: bounded by bytes only" if units.permits is None else f"permits = (k + 1) × batch_size = {units.permits}"
    bound = "staleness = null" if units.staleness is None else f"staleness k = {units.staleness}"
    rows = [
        Row(BATCH, spelt(knobs.train_batch_size), f"batch_size = {units.batch_size}", "groups of one global batch: one commit, one version"),
        Row(sync, spelt(knobs.parameter_sync_step), f"{units.mini_steps} optimizer steps a version", "mini-steps of one batch are no versions"),
        Row(THRESHOLD, spelt(knobs.max_off_policy_threshold), bound, "a span counts its first and its last step, so k is one less"),
        Row(STRATEGY, knobs.max_off_policy_strategy, f"flow.policy = {units.policy}", _policy(units.policy)),
        Row(warmup, spelt(knobs.num_warmup_batches), permits, "verl submits ahead, here it is a bound"),
    ]
    if knobs.staleness_threshold is not None:
        threshold = f"{FULLY}.staleness_threshold"
        rows.append(Row(threshold, spelt(knobs.staleness_threshold), bound, "prompts under way beyond one batch, in batches: k"))
    return rows


def _policy(policy: str) -> str:
    if policy == "drop":
        return "verl drops finished groups that are too old, here what still runs is cancelled too"
    return "nothing is lost: what is about to become too old is waited for"


def _at(conf: Mapping[str, Any], key: str, default: Any = ...) -> Any:
    node: Any = conf
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            if default is ...:
                rule, advice = "it is missing", "compose the configuration over verl's (config/asyncflow.yaml)"
                raise SettingError(key, rule=rule, consequence="what it means here is not known, so nothing was started", advice=advice)
            return default
        node = node[part]
    return node


def _refuse_numbers(knobs: Knobs) -> None:
    counts = {
        BATCH: knobs.train_batch_size,
        MINI: knobs.ppo_mini_batch_size,
        EPOCHS: knobs.ppo_epochs,
        f"trainer.v1.{knobs.mode}.parameter_sync_step": knobs.parameter_sync_step,
    }
    for key, value in counts.items():
        if not whole(value) or value < 1:
            raise SettingError(key, value, rule="it must be a whole number from 1", consequence="there would be no step", fix=[f"{key}=1"])
    threshold = knobs.max_off_policy_threshold
    if threshold is not None and (not whole(threshold) or threshold < 1):
        rule = "it must be a whole number from 1 (1: on-policy), or null: a prompt spans at least the step that trains it"
        raise SettingError(THRESHOLD, threshold, rule=rule, consequence="no prompt could ever be trained", fix=[f"{THRESHOLD}=1"])
    if knobs.max_off_policy_strategy not in STRATEGIES:
        rule, consequence = f"it must be one of {', '.join(STRATEGIES)}", "nobody would know what becomes of what is too old"
        raise SettingError(STRATEGY, knobs.max_off_policy_strategy, rule=rule, consequence=consequence, fix=[f"{STRATEGY}=wait"])


def _refuse_modes(knobs: Knobs) -> None:
    """A mode of verl's that is not named here may mean anything; `sync` means that nothing is ever older than the trainer."""
    key = "trainer.v1.trainer_mode"
    if knobs.mode not in MODES:
        rule, consequence = f"it must be one of {', '.join(MODES)}", "its knobs would be ignored, so nothing was started"
        raise SettingError(key, knobs.mode, rule=rule, consequence=consequence, fix=[f"{key}=asyncflow"])
    threshold = knobs.max_off_policy_threshold
    if knobs.mode == SYNC and threshold != 1:
        rule = f"it trains each batch with the weights that sampled it, and {THRESHOLD} = {spelt(threshold)} allows older ones"
        consequence = "nobody could say which of them bounds the run"
        raise SettingError(key, knobs.mode, rule=rule, consequence=consequence, fix=[f"{THRESHOLD}=1"], advice=f"or {key}=asyncflow")


def _refuse_batches(knobs: Knobs) -> None:
    batch, mini, steps = knobs.train_batch_size, knobs.ppo_mini_batch_size, knobs.parameter_sync_step
    if batch == mini * steps:
        return
    raise SettingError(
        BATCH,
        batch,
        rule=f"it must be {MINI} × parameter_sync_step = {mini} × {steps} = {mini * steps}",
        consequence="a global batch would not be cut into whole mini-batches",
        fix=[f"{BATCH}={mini * steps}"],
        advice=f"or another {MINI}",
    )


def _refuse_thresholds(knobs: Knobs, units: Units) -> None:
    """The fully asynchronous recipe allows (1 + s) batches under way: for a whole s that is k = s."""
    given = knobs.staleness_threshold
    if given is None:
        return
    key = f"{FULLY}.staleness_threshold"
    if given < 0 or given != int(given):
        rule = "it must be a whole number from 0: staleness is counted in versions, and a part of a batch is none"
        fix = [f"{key}={max(round(given), 0)}"]
        raise SettingError(key, given, rule=rule, consequence="the bound would be another one than either says", fix=fix)
    if units.staleness != int(given):
        rule = f"it says staleness {int(given)}, and {THRESHOLD} = {spelt(knobs.max_off_policy_threshold)} says {spelt(units.staleness)}"
        fix = [f"{THRESHOLD}={int(given) + 1}"]
        raise SettingError(key, given, rule=rule, consequence="nobody could say which of them bounds the run", fix=fix, advice="or remove it")


def _refuse_asked(knobs: Knobs, units: Units) -> None:
    says = {"staleness": (units.staleness, THRESHOLD), "batch_size": (units.batch_size, BATCH), "flow.policy": (units.policy, STRATEGY)}
    for key, asked in knobs.asked.items():
        ours, theirs = says[key]
        if asked != ours:
            rule = f"{theirs} says {spelt(ours)} (see the table in docs/verl.md)"
            consequence = "nobody could say which of them the run goes by"
            raise SettingError(f"asyncflow.{key}", asked, rule=rule, consequence=consequence, fix=[f"~asyncflow.{key}"], advice=f"and set {theirs}")


def _refuse_warmup(knobs: Knobs, units: Units) -> None:
    warmup = knobs.num_warmup_batches
    if warmup is None or units.staleness is None or warmup <= units.staleness:
        return
    key = f"trainer.v1.{knobs.mode}.num_warmup_batches"
    raise SettingError(
        key,
        warmup,
        rule=f"with {THRESHOLD} = {knobs.max_off_policy_threshold} a batch may be at most {units.staleness} versions old when it is trained",
        consequence="what is submitted ahead beyond that would be too old before its turn came",
        fix=[f"{key}={units.staleness}"],
        advice=f"or {THRESHOLD}={-int(-warmup // 1) + 1}",
    )


def whole(value: Any) -> bool:
    """An int, which True is not."""
    return isinstance(value, int) and not isinstance(value, bool)

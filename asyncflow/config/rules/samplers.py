"""Rules on `stages.NAME.sampler`: the queue would refuse at start what is refused here with the key that is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncflow.config.errors import SettingError, as_value
from asyncflow.config.stages import SamplerSettings, StageSettings
from transfer_queue.messages import Consumer, Sampler, TopicSpec, Window
from transfer_queue.samplers import RANKED, REPLAYS, SamplerError, plan_of

if TYPE_CHECKING:
    from asyncflow.config.root import RunConfig

CONSEQUENCE = "the queue could not say what the stage gets next"


def built_in(config: RunConfig) -> None:
    for name, stage in config.stages.items():
        if name == "rollout" and stage.sampler != SamplerSettings():
            rule = "it gets prompts, and those are handed out in the order in which they were put"
            raise _refusal(name, "name", stage.sampler.name, rule, "set the stage's that reads its rows instead")
        if stage.sampler.name in RANKED:
            rule = "a stage's workers take leases of their own here, and none names its rank; ranked samplers are for users of the queue itself"
            raise _refusal(name, "name", stage.sampler.name, rule)
        if stage.sampler.name in REPLAYS:
            rule = "its trainer takes the loss over groups that are new to it, each once; groups trained before are for users of the queue itself"
            raise _refusal(name, "name", stage.sampler.name, rule)
        if ":" not in stage.sampler.name:
            _check(config, name, stage)


def own(config: RunConfig) -> None:
    """Imports them: only where a run would start."""
    for name, stage in config.stages.items():
        if ":" in stage.sampler.name:
            _check(config, name, stage)


def _check(config: RunConfig, name: str, stage: StageSettings) -> None:
    consumer = Consumer(name, stage.inputs, unit=stage.unit, terminal=stage.terminal, sampler=Sampler(stage.sampler.name, stage.sampler.options))
    window = Window(batch=config.batch_size, staleness=config.staleness, policy=config.flow.policy)
    try:
        plan_of(consumer, TopicSpec(name=name, model=name, columns=(), consumers=(consumer,), window=window))
    except SamplerError as error:
        raise _refusal(name, error.key, error.value, error.rule, error.fix, error.meant) from error


def _refusal(name: str, key: str, value: object, rule: str, advice: str = "", meant: str = "") -> SettingError:
    where = f"stages.{name}.sampler"
    if key == "name":
        fix = [f"{where}.name={as_value(meant or SamplerSettings().name)}"]
    else:
        fix = [f"~{where}.{key}"] + ([f"+{where}.options.{meant}={as_value(value)}"] if meant else [])
    return SettingError(f"{where}.{key}", value, rule=rule, consequence=CONSEQUENCE, fix=fix, advice=advice[:1].lower() + advice[1:])

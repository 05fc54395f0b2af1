"""Rules on roles: every stage is served by one, every one has workers, devices and something to do; and on where they listen."""

from __future__ import annotations

from asyncflow.config.errors import ConfigError, did_you_mean
from asyncflow.config.resources import LOOP_ROLES, RESERVED_ROLES, ROLE_OF_STAGE
from asyncflow.config.root import RunConfig
from asyncflow.config.rules.shape import at_least
from transfer_queue.security import is_loopback


def roles(config: RunConfig) -> None:
    """Every stage has exactly one role that serves it, and every role has workers and something to do."""
    served: dict[str, str] = {stage: role for stage, role in ROLE_OF_STAGE.items() if role in config.resources}
    for role, settings in config.resources.items():
        _role(config, role)
        for stage in settings.stages:
            if stage in served:
                raise ConfigError(f"resources.{role}.stages names {stage!r}, which {served[stage]!r} serves too: one role a stage. Remove one")
            if stage not in config.stages:
                raise ConfigError(f"resources.{role}.stages names {stage!r}: no such stage, {did_you_mean(stage, config.stages)}")
            served[stage] = role
    for role in LOOP_ROLES:
        if role not in config.resources:
            raise ConfigError(f"resources.{role}: it is missing, and no run works without that role. Fix: resources.{role}.workers=1")
    for stage in config.stages:
        if stage not in served:
            raise ConfigError(f"stages.{stage}: no role serves it, so its rows would wait for ever. Fix: name it in `stages` of a role")


def _role(config: RunConfig, role: str) -> None:
    settings = config.resources[role]
    if role in RESERVED_ROLES:
        raise ConfigError(f"resources.{role}: the name is taken by a process of the queue or the launcher; take another (shards: queue.shards)")
    at_least(f"resources.{role}.workers", settings.workers, 1)
    at_least(f"resources.{role}.threads", settings.threads, 1)
    if role in LOOP_ROLES and settings.stages:
        raise ConfigError(f"resources.{role}.stages = {settings.stages}: that role has a loop of its own. Give the stages to another role")
    if role not in LOOP_ROLES and not settings.stages:
        raise ConfigError(f"resources.{role}.stages is empty: its workers would have nothing to do. Name the stages, or set resources.{role}=null")


def devices(config: RunConfig) -> None:
    try:
        config.places()
    except ValueError as error:
        raise ConfigError(str(error)) from None


def wires(config: RunConfig) -> None:
    """Beyond loopback, keys are required."""
    binds = {"queue.bind": config.queue.bind, "queue.shard_bind": config.queue.shard_bind, "weights.bind": config.weights.bind}
    for key, url in binds.items():
        if not is_loopback(url) and config.queue.key_file is None:
            raise ConfigError(
                f"{key} = {url!r} is not loopback: whoever reaches the port could take part in the run. Fix: `python -m transfer_queue keys DIR`, "
                f"then queue.key_file=DIR/server.key"
            )

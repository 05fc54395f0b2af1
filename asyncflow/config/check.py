"""Whether a typed configuration can be run: the rules between settings, checked before anything is started."""

from __future__ import annotations

from collections.abc import Callable

from asyncflow.config.errors import ConfigError
from asyncflow.config.models import COMPUTED
from asyncflow.config.root import POLICY, RunConfig
from asyncflow.config.rules import paths, roles, shape, stages, update

RULES: tuple[Callable[[RunConfig], None], ...] = (
    shape.length,
    shape.numbers,
    update.optimizer,
    update.group_size,
    shape.decode_shape,
    stages.models,
    stages.stage_entries,
    stages.stage_columns,
    stages.stage_order,
    stages.old_logprobs,
    roles.roles,
    roles.devices,
    roles.wires,
    shape.byte_budget,
    shape.byte_capacity,
)


def check(config: RunConfig) -> None:
    """Raises ConfigError for the first rule that is broken. Says nothing on whether this machine can run it: see `check_runnable`."""
    for rule in RULES:
        rule(config)


def check_runnable(config: RunConfig) -> None:
    """Refuse what is well formed but not built yet, and code that is not there. Raises ConfigError."""
    _refuse_unbuilt_places(config)
    _refuse_unbuilt_models(config)
    paths.import_paths(config)


def _refuse_unbuilt_places(config: RunConfig) -> None:
    workers = config.resources["trainer"].workers
    if workers > 1:
        raise ConfigError(f"resources.trainer.workers = {workers}: training on several ranks is not there yet; set it to 1")
    placed = [role for role, settings in config.resources.items() if settings.devices != "cpu"]
    if placed:
        where = f"resources.{placed[0]}.devices = {config.resources[placed[0]].devices}"
        raise ConfigError(f'{where}: workers compute on the CPU so far, so the device would stay idle; set it to "cpu"')
    if config.cluster.kind != "cpu":
        raise ConfigError(f"cluster.kind = {config.cluster.kind!r}: accelerators are not there yet, so they would stay idle. Fix: cluster.kind=cpu")
    publishers = config.resources["publisher"].workers
    if publishers != 1:
        raise ConfigError(f"resources.publisher.workers = {publishers}: there is one publisher a trained model; set it to 1")


def _refuse_unbuilt_models(config: RunConfig) -> None:
    for name, model in config.models.items():
        if model.dtype != COMPUTED:
            raise ConfigError(
                f"models.{name}.dtype = {model.dtype!r}: computing in it is not there yet, so the model would run in {COMPUTED} all the same. "
                f"Fix: models.{name}.dtype={COMPUTED}"
            )
    followed = {stage.model for stage in config.stages.values() if stage.model is not None and not config.models[stage.model].frozen}
    if followed != {POLICY}:
        raise ConfigError(f"models {sorted(followed)} are trained: training several in one run is not there yet; freeze all but one")

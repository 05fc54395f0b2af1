"""Rule on import paths: code that is named in YAML exists, so that no worker has to start to find out that it does not."""

from __future__ import annotations

from collections.abc import Iterator

from asyncflow.config.errors import ConfigError
from asyncflow.config.rollout import EMBEDDED
from asyncflow.config.root import RunConfig
from asyncflow.config.stages import LOOP_STAGES
from asyncflow.data.named import check_named


def import_paths(config: RunConfig) -> None:
    """Raises ConfigError for the first setting that names a module which this environment does not have."""
    for setting, path in _named(config):
        try:
            check_named(path, setting)
        except ValueError as error:
            raise ConfigError(str(error)) from None


def _named(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Setting and "module:name" of everything that is loaded by name."""
    yield "task.path", config.task.path
    for name, model in config.models.items():
        if model.prepare is not None:
            yield f"models.{name}.prepare", model.prepare
    for name, stage in config.stages.items():
        if name not in LOOP_STAGES:
            yield f"stages.{name}.compute", stage.compute
    yield "algorithm.loss", config.algorithm.loss
    if config.rollout.engine != EMBEDDED:
        yield "rollout.engine", config.rollout.engine

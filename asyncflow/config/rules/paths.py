"""Rules on import paths: code that is named in YAML exists, so that no worker has to start to find out that it does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from asyncflow.config.algorithm import TORCH, AlgorithmSettings
from asyncflow.config.errors import SettingError
from asyncflow.config.rollout import EMBEDDED
from asyncflow.config.root import RunConfig
from asyncflow.config.stages import LOOP_STAGES, default_stages
from asyncflow.data.lookup import Missing, missing

RULE = "it must be package.module:name of code that is there"
CONSEQUENCE = "the worker that needs it could not start"
ELSEWHERE = "package.module:name, installed here or in a folder that PYTHONPATH names"


class Named(NamedTuple):
    setting: str
    path: str
    default: str | None  # what stands there where nobody names anything


def shapes(config: RunConfig) -> None:
    """What is named can be an import path at all, whatever this environment has."""
    for named in _named(config):
        module, colon, name = named.path.partition(":")
        if not (module and colon and name):
            raise _refusal(named, Missing("it does not name module and name"))


def import_paths(config: RunConfig) -> None:
    """Raises SettingError for the first setting that names code which this environment does not have."""
    for named in _named(config):
        lost = missing(named.path)
        if lost is not None:
            raise _refusal(named, lost)


def named_task(config: RunConfig) -> None:
    """A run without a task has neither prompts nor scores."""
    if not config.task.path:
        raise _refusal(Named("task.path", "", None), Missing("no task is named"))


def _refusal(named: Named, lost: Missing) -> SettingError:
    meant = lost.meant or named.default
    fix = [f"{named.setting}={meant}"] if meant in (EMBEDDED, TORCH) or (meant is not None and missing(meant) is None) else []
    advice = f"or {ELSEWHERE}" if fix else f"{named.setting}={ELSEWHERE}"
    return SettingError(named.setting, named.path, rule=f"{lost.why}; {RULE}", consequence=CONSEQUENCE, fix=fix, advice=advice)


def _named(config: RunConfig) -> Iterator[Named]:
    """Everything that is loaded by name, where a name is given."""
    if config.task.path:
        yield Named("task.path", config.task.path, None)
    for name, model in config.models.items():
        if model.prepare is not None:
            yield Named(f"models.{name}.prepare", model.prepare, None)
    defaults = default_stages()
    for name, stage in config.stages.items():
        if name not in LOOP_STAGES:
            yield Named(f"stages.{name}.compute", stage.compute, defaults[name].compute if name in defaults else None)
        if ":" in stage.sampler.name:
            yield Named(f"stages.{name}.sampler.name", stage.sampler.name, None)
    yield Named("algorithm.loss", config.algorithm.loss, AlgorithmSettings().loss)
    if config.algorithm.engine != TORCH:
        yield Named("algorithm.engine", config.algorithm.engine, TORCH)
    if config.rollout.engine != EMBEDDED:
        yield Named("rollout.engine", config.rollout.engine_path, EMBEDDED)

"""Whether a typed configuration can be run: the rules between settings, checked before anything is started."""

from __future__ import annotations

from collections.abc import Callable

from asyncflow.config.errors import SettingError
from asyncflow.config.root import RunConfig
from asyncflow.config.rules import engine, keys, models, numbers, observe, paths, places, roles, samplers, shape, stages, unbuilt, update

Rule = Callable[[RunConfig], None]
"""Raises SettingError for the first thing that breaks it."""

RULES: tuple[Rule, ...] = (
    shape.length,
    paths.shapes,
    numbers.numbers,
    update.optimizer,
    update.clip,
    update.options,
    update.group_size,
    shape.decode_shape,
    models.models,
    stages.stage_entries,
    stages.stage_columns,
    stages.stage_order,
    stages.lease_sizes,
    stages.old_logprobs,
    samplers.built_in,
    roles.roles,
    places.beside,
    places.cluster,
    roles.devices,
    roles.backend,
    roles.wires,
    shape.requeue,
    shape.byte_budget,
    shape.byte_capacity,
    observe.observe,
    engine.options,
    engine.tensor_parallel,
)

RUNNABLE: tuple[Rule, ...] = (
    unbuilt.ranks,
    unbuilt.devices,
    unbuilt.cluster,
    unbuilt.publishers,
    unbuilt.dtypes,
    unbuilt.trained_models,
    paths.named_task,
)

OWN_ENGINES: tuple[Rule, ...] = (unbuilt.devices, unbuilt.cluster, unbuilt.dtypes)
"""Those of RUNNABLE that speak of AsyncFlow's own engines only."""


def check(config: RunConfig) -> None:
    """Raises SettingError for the first rule that is broken. Says nothing on whether this machine can run it: see `check_runnable`."""
    for rule in RULES:
        rule(config)


def check_runnable(config: RunConfig, engines_of_its_own: bool = False) -> None:
    """Refuse what is well formed but not built yet, and code that is not there. Raises SettingError.

    `engines_of_its_own`: of a recipe whose engines compute on accelerators, which AsyncFlow's own do not yet."""
    for rule in (*_built(engines_of_its_own), paths.import_paths, samplers.own, observe.packages, engine.package, places.package, keys.key_files):
        rule(config)


def _built(engines_of_its_own: bool) -> list[Rule]:
    return [rule for rule in RUNNABLE if not (engines_of_its_own and rule in OWN_ENGINES)]


def refusals(config: RunConfig, engines_of_its_own: bool = False) -> list[str]:
    """Every reason for which `train` would refuse a configuration that is well formed: one a rule, in the order in which `train` names them."""
    found = []
    for rule in _built(engines_of_its_own):
        try:
            rule(config)
        except SettingError as error:
            found.append(str(error))
    return found

"""What was changed in verl's configuration and nobody here reads: refused by name, measured against verl's own YAML as it is installed."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from asyncflow.config.errors import ConfigError, SettingError, as_value, closest, spelt
from recipes.verl.fates import KNOWN, Fate, leaves, name_of


def verls_own() -> Any:
    """verl's `ppo_trainer` as a DictConfig, its interpolations unresolved. Does not import verl."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    spec = find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("verl is not installed here, so its configuration cannot be read. Fix: pip install asyncflow[verl]")
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(Path(spec.submodule_search_locations[0]) / "trainer/config")):
        return compose(config_name="ppo_trainer")


@functools.cache
def _stock() -> dict[str, Any]:
    """Dotted key → verl's value, interpolations as they stand there."""
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(verls_own(), resolve=False)
    assert isinstance(plain, dict)
    return dict(leaves(plain))


def refuse_changed(conf: Mapping[str, Any], besides: Collection[str] = ()) -> None:
    """Raises SettingError for the first key that is not as verl has it though its fate is to be left alone, and for one that nobody here knows.

    `conf`: resolved, as plain data; `besides`: sections that somebody else serves. What verl interpolates is as verl has it where it still follows.
    """
    from omegaconf import OmegaConf

    stock = _stock()
    given = OmegaConf.create(dict(conf))
    for key, value in leaves(conf):
        if key.split(".")[0] in besides:
            continue
        name = name_of(key)
        if name is None:
            _refuse_unknown(key, value, stock)
        elif KNOWN[name][0] is Fate.REFUSED and value != (usual := _usual(key, stock, given)):
            rule, consequence = f"it must stay {spelt(usual)}: {KNOWN[name][1]}", "it would be ignored, so nothing was started"
            raise SettingError(key, value, rule=rule, consequence=consequence, fix=[f"{key}={as_value(usual)}"])


def _usual(key: str, stock: Mapping[str, Any], given: Any) -> Any:
    """verl's value; an interpolation is followed in the configuration that was given. None for a key that verl does not have."""
    from omegaconf import OmegaConf

    value = stock.get(key)
    if not (isinstance(value, str) and "${" in value):
        return value
    probe = OmegaConf.masked_copy(given, list(given))
    OmegaConf.update(probe, key, value)
    found = OmegaConf.select(probe, key)
    return OmegaConf.to_container(found) if OmegaConf.is_config(found) else found


def _refuse_unknown(key: str, value: Any, stock: Mapping[str, Any]) -> None:
    section, _, last = key.rpartition(".")
    near = closest(last, [name.removeprefix(f"{section}.") for name in stock if name.startswith(f"{section}.")])
    rule = f"neither verl's configuration nor the recipe has it{f', did you mean {section}.{near}?' if near is not None else ''}"
    raise SettingError(key, value, rule=rule, consequence="it would be ignored, so nothing was started", advice="remove it")

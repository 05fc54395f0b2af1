"""Read a recipe with Hydra: defaults of every part, then the recipe's YAML, then the command line; then typed and checked.

A recipe is a folder with a `config.yaml`, or a YAML file. It needs no `defaults:` list: the parts' own defaults are always beneath it. Every
name of the tree can be overridden (`staleness=4`, `resources.rollout.workers=2`); `+a.b=c` adds an entry, `~a.b` removes one.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import msgspec
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException, HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from asyncflow.config.check import check
from asyncflow.config.errors import ABSENT, SettingError
from asyncflow.config.overrides import blame, check_keys
from asyncflow.config.recipe import check_yaml, find_recipe
from asyncflow.config.root import RunConfig
from asyncflow.config.typed import fix_of, setting_at, typed

FAULTS = (HydraException, ConfigCompositionException, OmegaConfBaseException, yaml.YAMLError, OSError)  # what composing may raise
BASE, ROOT = "asyncflow_defaults", "asyncflow_run"  # names of the two generated nodes in Hydra's config store


def load(recipe: str | Path, overrides: list[str] | None = None) -> RunConfig:
    """A checked configuration. Raises ConfigError for whatever the user can put right."""
    config = typed(compose_plain(find_recipe(recipe), overrides or []))
    check(config)
    return config


def compose_plain(path: Path, overrides: list[str]) -> dict[str, Any]:
    """Defaults, YAML and overrides merged by Hydra into plain data, interpolations resolved."""
    check_yaml(path)
    check_keys(overrides)
    _store_defaults()
    ConfigStore.instance().store(name=ROOT, node=OmegaConf.create({"defaults": [BASE, path.stem, "_self_"]}))
    try:
        composed = _compose(path, overrides)
    except FAULTS as error:
        raise _blamed(path, overrides, error) from None
    try:
        return _plain(OmegaConf.to_container(composed, resolve=True, throw_on_missing=True))
    except OmegaConfBaseException as error:
        raise _unresolved(composed, error) from None


@functools.cache
def _store_defaults() -> None:
    """Once a process: Hydra copies what it takes from its store."""
    ConfigStore.instance().store(name=BASE, node=OmegaConf.create(msgspec.to_builtins(RunConfig())))


def _compose(path: Path, overrides: list[str]) -> DictConfig:
    """Hydra's merge. Raises what Hydra raises."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(path.parent)):
        return compose(config_name=ROOT, overrides=overrides)


def _plain(tree: Any) -> dict[str, Any]:
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def _blamed(path: Path, overrides: list[str], error: BaseException) -> SettingError:
    """Apply one override after the other: the first that fails is to blame, else it is the file."""
    tree: dict[str, Any] | None = None
    for count in range(len(overrides) + 1):
        try:
            tree = _plain(OmegaConf.to_container(_compose(path, overrides[:count])))
        except FAULTS as fault:
            if tree is not None:
                return blame(tree, overrides[count - 1], _first_lines(fault))
            break
    return SettingError(
        f"recipe {path.name!r}", rule=_first_lines(error), consequence="it cannot be composed, so nothing was started", advice="mend the file"
    )


def _unresolved(composed: DictConfig, error: OmegaConfBaseException) -> SettingError:
    """An interpolation that leads nowhere, or a value that is still to be given (???)."""
    key = str(error.full_key or "")
    kind, default = setting_at(key)
    mended = fix_of(key, "", kind, default) if kind is not None else {"advice": f"give {key} a value"}
    rule = f"it cannot be resolved ({_first_lines(error)}); ${{KEY}} names another setting, all of them: docs/configuration.md"
    return SettingError(key, _raw(composed, key), rule=rule, consequence="its value is not known, so nothing was started", **mended)


def _raw(composed: DictConfig, key: str) -> Any:
    """The value as it is written, unresolved."""
    node: Any = OmegaConf.to_container(composed)
    for part in key.split("."):
        node = node[part] if isinstance(node, dict) and part in node else ABSENT
    return node


def _first_lines(error: BaseException) -> str:
    """What Hydra says, without its advice on debugging Hydra."""
    causes = [error] if error.__cause__ is None else [error, error.__cause__]
    noise = ("HYDRA_FULL_ERROR", "full_key", "object_type", "hydra.cc")
    lines = [line.strip() for cause in causes for line in str(cause).splitlines()]
    return "; ".join(line for line in lines if line and not any(word in line for word in noise))

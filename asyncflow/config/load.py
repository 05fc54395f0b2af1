"""Read a recipe with Hydra: defaults of every part, then the recipe's YAML, then the command line; then typed and checked.

A recipe is a folder with a `config.yaml`, or a YAML file. It needs no `defaults:` list: the parts' own defaults are always beneath it. Every
name of the tree can be overridden (`staleness=4`, `resources.rollout.workers=2`); `+a.b=c` adds an entry, `~a.b` removes one.
"""

from __future__ import annotations

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
from asyncflow.config.errors import ConfigError, did_you_mean
from asyncflow.config.overrides import check_keys, is_addition, refuse_missing_entry
from asyncflow.config.root import RunConfig
from asyncflow.config.typed import typed

BASE, ROOT = "asyncflow_defaults", "asyncflow_run"  # names of the two generated nodes in Hydra's config store


def load(recipe: str | Path, overrides: list[str] | None = None) -> RunConfig:
    """A checked configuration. Raises ConfigError for whatever the user can put right."""
    config = typed(compose_plain(find_recipe(recipe), overrides or []))
    check(config)
    return config


def find_recipe(recipe: str | Path) -> Path:
    """The YAML file of a recipe: the file itself, or `config.yaml` of a folder."""
    path = Path(recipe)
    path = path / "config.yaml" if path.is_dir() else path
    if path.is_file():
        if path.suffix == ".yaml":
            return path.resolve()
        raise ConfigError(f"recipe {str(recipe)!r}: a recipe is a YAML file NAME.yaml, or a folder with a config.yaml; nothing was started. Name one")
    recipes = [str(found.parent) for found in sorted(Path("recipes").glob("*/config.yaml"))]
    hint = f"; {did_you_mean(str(recipe), recipes)}" if recipes else "; give a folder with a config.yaml, or a YAML file"
    raise ConfigError(f"recipe {str(recipe)!r}: there is no such file or folder with a config.yaml{hint}")


def compose_plain(path: Path, overrides: list[str]) -> dict[str, Any]:
    """Defaults, YAML and overrides merged by Hydra into plain data, interpolations resolved."""
    check_keys(overrides)
    store = ConfigStore.instance()
    store.store(name=BASE, node=OmegaConf.create(msgspec.to_builtins(RunConfig())))
    store.store(name=ROOT, node=OmegaConf.create({"defaults": [BASE, path.stem, "_self_"]}))
    try:
        plain = OmegaConf.to_container(_compose(path, overrides), resolve=True, throw_on_missing=True)
    except (HydraException, ConfigCompositionException, OmegaConfBaseException, yaml.YAMLError) as error:
        _explain(path, overrides)
        raise ConfigError(f"{path.name}: {_first_lines(error)}") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error}") from None
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _compose(path: Path, overrides: list[str]) -> DictConfig:
    """Hydra's merge. Raises what Hydra raises."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(path.parent)):
        return compose(config_name=ROOT, overrides=overrides)


def _explain(path: Path, overrides: list[str]) -> None:
    """Compose without the overrides that want something to be there, and refuse the one that does not find it."""
    try:
        tree = OmegaConf.to_container(_compose(path, [override for override in overrides if is_addition(override)]))
    except (HydraException, OmegaConfBaseException, yaml.YAMLError):
        return  # something else is wrong too, and the caller says what
    assert isinstance(tree, dict)
    refuse_missing_entry({str(key): value for key, value in tree.items()}, overrides)


def _first_lines(error: BaseException) -> str:
    """What Hydra says, without its advice on debugging Hydra."""
    causes = [error] if error.__cause__ is None else [error, error.__cause__]
    noise = ("HYDRA_FULL_ERROR", "full_key", "object_type", "hydra.cc")
    lines = [line.strip() for cause in causes for line in str(cause).splitlines()]
    return "; ".join(line for line in lines if line and not any(word in line for word in noise))

"""verl's resolved configuration as it travels in a run's own: plain data under `task.options.verl`, which every worker gets on joining."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from asyncflow.config import RunConfig

OPTION = "verl"


def verl_conf(config: RunConfig) -> DictConfig:
    """Of a run that `translate` made. To be called before verl is imported: it says which platform verl takes."""
    return as_conf(config.task.options[OPTION])


def as_conf(plain: Mapping[str, Any]) -> DictConfig:
    """verl decides on its platform when it is imported: on a CPU ours is the only one, and it must be asked for by name."""
    from omegaconf import OmegaConf

    if plain["trainer"]["device"] == "cpu":
        os.environ["VERL_PLATFORM"] = "cpu"
    return OmegaConf.create(dict(plain))

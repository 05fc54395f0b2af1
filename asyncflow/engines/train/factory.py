"""From the settings to what the trainer's loop drives: the torch engine, or one of your own by its import path."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from asyncflow.config.algorithm import TORCH
from asyncflow.contracts.train import Training
from asyncflow.data.named import load_named

if TYPE_CHECKING:
    from asyncflow.config import RunConfig


def make_training(config: RunConfig, model_dir: Path) -> Training:
    """`algorithm.engine` names "torch" or "module:function", which is called as this function is."""
    if config.algorithm.engine != TORCH:
        training: Training = load_named(config.algorithm.engine, "algorithm.engine")(config, model_dir)
        return training
    from asyncflow.engines.train.padded import make_padded

    return make_padded(config, model_dir)

"""Recipes for tests: the smallest YAML that is complete, and a way to load variations of it."""

from __future__ import annotations

from pathlib import Path

from asyncflow.config import RunConfig
from asyncflow.config.load import load

MINIMAL = "models: {policy: {path: /models/tiny}}\n"
RUNNABLE = MINIMAL + "task: {path: 'asyncflow.data.number_sorting:NumberSorting'}\n"  # all its code is there


def load_text(folder: Path, text: str = MINIMAL, *overrides: str) -> RunConfig:
    """Load `text` as a recipe file with command-line overrides."""
    path = folder / "recipe.yaml"
    path.write_text(text)
    return load(path, list(overrides))

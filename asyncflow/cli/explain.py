"""`asyncflow explain CONFIG` and `asyncflow train … --dry-run`: what a configuration means. No process, no directory, no file."""

from __future__ import annotations

import sys

import msgspec

from asyncflow.config.explain.explanation import explain as explained
from asyncflow.config.explain.text import show
from asyncflow.config.load import load


def explain(recipe: str, overrides: list[str], as_json: bool = False, run_dir: str | None = None) -> int:
    """Print it: as text, or as one JSON object (`Explanation`). `run_dir`: the directory that the run would be given. Returns 0.

    Raises ConfigError.
    """
    config = load(recipe, overrides)
    if run_dir is not None:
        config = msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, dir=run_dir))
    explanation = explained(config)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(explanation), indent=2).decode() + "\n")
    else:
        show(explanation)
    return 0

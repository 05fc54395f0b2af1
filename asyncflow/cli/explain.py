"""`asyncflow explain CONFIG` and `asyncflow train … --dry-run`: what a configuration means. No process, no directory, no file."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from asyncflow.cli.run_dir import refuse_a_run
from asyncflow.config.check import check_runnable
from asyncflow.config.explain.explanation import explain as explained
from asyncflow.config.explain.text import show
from asyncflow.config.load import load


def explain(recipe: str, overrides: list[str], as_json: bool = False) -> int:
    """Print it: as text, or as one JSON object (`Explanation`). Returns 0, also for what `train` would refuse: it says so. Raises ConfigError."""
    explanation = explained(load(recipe, overrides))
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(explanation), indent=2).decode() + "\n")
    else:
        show(explanation)
    return 0


def dry_run(recipe: str, overrides: list[str], run_dir: str | None) -> int:
    """Print it for the run as `train` would start it. Raises ConfigError, after that, for what `train` would refuse."""
    config = load(recipe, overrides)
    if run_dir is not None:
        config = msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, dir=run_dir))
    show(explained(config))
    check_runnable(config)
    if run_dir is not None:
        refuse_a_run(Path(run_dir))
    return 0

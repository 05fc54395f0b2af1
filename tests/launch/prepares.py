"""Preparations for launcher tests."""

from __future__ import annotations

from pathlib import Path

from asyncflow.config import RunConfig


def ready(config: RunConfig, name: str) -> Path:
    directory = Path(config.run.cache) / name
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text("{}")
    return directory


def broken(config: RunConfig, name: str) -> Path:
    raise ValueError("no weights today")

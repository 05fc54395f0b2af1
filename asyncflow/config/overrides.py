"""Overrides of the command line that lead nowhere are refused with what was meant; Hydra itself does not say it."""

from __future__ import annotations

from typing import Any

from asyncflow.config.errors import ConfigError, did_you_mean
from asyncflow.config.typed import unknown_override


def check_keys(overrides: list[str]) -> None:
    """Refuse what is no KEY=VALUE and keys that no record has. Raises ConfigError."""
    for override in overrides:
        if "=" not in override and not override.startswith("~"):
            raise ConfigError(f"override {override!r}: it has no '='; write KEY=VALUE, e.g. staleness=4")
        unknown_override(key_of(override))


def is_addition(override: str) -> bool:
    return override.startswith("+")


def key_of(override: str) -> str:
    """'resources.rollout.workers' of '+resources.rollout.workers=2'."""
    return override.partition("=")[0].lstrip("+~").split("@")[0]


def refuse_missing_entry(tree: dict[str, Any], overrides: list[str]) -> None:
    """Refuse the first override of an entry that `tree` (defaults, YAML and the additions) does not have. Raises ConfigError."""
    for override in overrides:
        if is_addition(override):
            continue
        node: Any = tree
        path = ""
        for part in key_of(override).split("."):
            if not isinstance(node, dict):
                raise ConfigError(f"{override}: {path} = {node!r}, which has no entries (nothing was started). Fix: {path}=VALUE")
            if part not in node:
                raise ConfigError(_missing(override, path, part, [str(known) for known in node]))
            node, path = node[part], f"{path}.{part}" if path else part


def _missing(override: str, path: str, part: str, known: list[str]) -> str:
    said = f"{path}.{part}: there is no such entry, {did_you_mean(part, known)} (nothing was started)"
    return said if override.startswith("~") else f"{said}. A new one is added with a leading +: +{override}"

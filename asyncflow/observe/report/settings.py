"""The resolved configuration, flat, beside the defaults. Read as plain JSON, so that the configuration of an older program opens too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from asyncflow.config import RunConfig
from asyncflow.observe.report.data import Setting
from asyncflow.observe.report.files import Whole

CONFIG = "config.json"


def flat(tree: Any, path: str = "") -> dict[str, str]:
    """Dotted key → value as JSON. Lists are values; so are empty mappings."""
    if isinstance(tree, dict) and tree:
        return {key: value for name, inner in tree.items() for key, value in flat(inner, f"{path}.{name}" if path else str(name)).items()}
    return {path: msgspec.json.encode(tree).decode()}


def read_settings(run_dir: Path) -> tuple[list[Setting], dict[str, Any], str]:
    """Settings in the order of the file, the file as a tree (empty where it cannot be read), and what is to be said about it."""
    found: Whole[dict[str, Any]] = Whole(run_dir / CONFIG, dict[str, Any])
    if found.value is None:
        return [], {}, found.note or f"{CONFIG}: there is none"
    defaults = flat(msgspec.to_builtins(RunConfig()))
    return [Setting(key, value, defaults.get(key)) for key, value in flat(found.value).items()], found.value, ""


def facts(tree: dict[str, Any]) -> list[tuple[str, str]]:
    """What a run was, in a few words, for the page's head. What the file lacks is left out."""
    if not tree:
        return []
    staleness = tree.get("staleness", "")
    shown = {
        "staleness": "unbounded" if staleness is None else str(staleness),
        "policy": _at(tree, "flow", "policy"),
        "batch": f"{tree.get('batch_size', '?')} × {_at(tree, 'rollout', 'samples_per_prompt')}",
        "engine": _at(tree, "rollout", "engine"),
        "seed": _at(tree, "run", "seed"),
        "workers": workers(tree),
    }
    return [(name, value) for name, value in shown.items() if value]


def workers(tree: dict[str, Any]) -> str:
    """"rollout 2, trainer 1, …"; "" where the file does not say."""
    resources = tree.get("resources")
    if not isinstance(resources, dict):
        return ""
    counts = {str(role): entry.get("workers") for role, entry in resources.items() if isinstance(entry, dict)}
    return ", ".join(f"{role} {count}" for role, count in counts.items() if count is not None and role not in ("source", "publisher"))


def steps_planned(tree: dict[str, Any]) -> int | None:
    """Versions that the run was to make; None where the file does not say."""
    try:
        return msgspec.convert(tree, RunConfig).total_steps if tree else None
    except (msgspec.ValidationError, AssertionError, ZeroDivisionError):
        return None  # another program's configuration


def _at(tree: dict[str, Any], part: str, key: str) -> str:
    inner = tree.get(part)
    value = inner.get(key) if isinstance(inner, dict) else None
    return "" if value is None else str(value)

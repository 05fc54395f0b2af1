"""Reads a cost table from YAML and refuses what cannot be meant, with a message that a user can act on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import yaml

from asyncflow.config.errors import ConfigError, did_you_mean
from asyncflow.config.typed import refuse_wrong
from asyncflow.sizing.costs import CostTable

TABLES = Path(__file__).parent / "tables"
DEFAULT_TABLE = TABLES / "published_64_devices_7b.yaml"


def load_costs(table: str | Path) -> CostTable:
    """A table from a YAML file, or one of the stored ones by its name. `lengths.trace` becomes an absolute path. Raises ConfigError."""
    path = _find(table)
    try:
        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path}: it cannot be read as YAML ({' '.join(str(error).split())}). Nothing was computed; mend the file") from None
    if not isinstance(plain, dict):
        raise ConfigError(f"{path}: a cost table is a mapping of keys, this file holds {type(plain).__name__}. See {DEFAULT_TABLE.name} for one")
    return _in_file(path, plain)


def stored_tables() -> list[str]:
    return sorted(path.stem for path in TABLES.glob("*.yaml"))


def _find(table: str | Path) -> Path:
    path = Path(table)
    if path.is_file():
        return path
    if (stored := TABLES / f"{path.stem if path.suffix == '.yaml' else path}.yaml").is_file() and path.parent == Path():
        return stored
    hint = did_you_mean(str(table), stored_tables())
    raise ConfigError(f"COSTS = {str(table)!r}: there is no such file and no stored table of that name; nothing was computed. {hint.capitalize()}")


def _in_file(path: Path, plain: dict[str, Any]) -> CostTable:
    try:
        refuse_wrong(plain, CostTable)
        costs = msgspec.convert(plain, CostTable)
        check(costs)
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}") from None
    if costs.lengths.trace is None:
        return costs
    trace = str((path.parent / costs.lengths.trace).resolve())
    return msgspec.structs.replace(costs, lengths=msgspec.structs.replace(costs.lengths, trace=trace))


RATES = ("decode.step_s", "actor_forward.tokens_per_s", "ref_forward.tokens_per_s", "train.tokens_per_s", "lengths.mean")
TIMES = ("decode.per_running_s", "decode.prefill_s", "actor_forward.call_s", "ref_forward.call_s", "train.minibatch_s", "pause.seconds", "switch_s")
COUNTS = ("decode.max_running", "decode.devices", "forward_rows", "train.minibatch_groups", "batch_groups", "group_rows", "lengths.cap")


LARGEST, MOST = 1e12, 10**9  # of a number and of a count; what is beyond is a slip of the pen, and arithmetic ends there


def check(costs: CostTable) -> None:
    """Refuse values that no machine can have. Raises ConfigError naming key, value, rule, consequence and fix."""
    for key in (*RATES, *TIMES):
        _refuse(costs, key, value_of(costs, key) <= LARGEST, f"<= {LARGEST:g}", "no machine is like that, and nothing could be computed")
    for key in COUNTS:
        _refuse(costs, key, value_of(costs, key) <= MOST, f"<= {MOST:g}", "no machine is like that, and nothing could be computed")
    for key in RATES:
        _refuse(costs, key, value_of(costs, key) > 0, "> 0", "that work would take no time at all, or never end")
        _refuse(costs, key, value_of(costs, key) >= 1 / LARGEST, f">= {1 / LARGEST:g}", "that work would take no time at all, or never end")
    for key in (*TIMES, "lengths.sigma", "lengths.prompt", "switches"):
        _refuse(costs, key, value_of(costs, key) >= 0, ">= 0", "time would run backwards")
    for key in COUNTS:
        _refuse(costs, key, value_of(costs, key) >= 1, ">= 1", "nothing could be computed")
    _refuse(costs, "split.trainer", costs.split.trainer >= 1, ">= 1", "nothing would be trained")
    for key in ("split.actor_forward", "split.ref_forward"):
        _refuse(costs, key, value_of(costs, key) >= 0, ">= 0", "devices would be owed (0: the pipeline has no such stage)")
    _check_replicas(costs)
    _check_lengths(costs)


def _check_lengths(costs: CostTable) -> None:
    law, rows, slots = costs.lengths, costs.group_rows, costs.decode.max_running
    if law.mean > law.cap or (law.law == "lognormal" and law.mean == law.cap):
        raise ConfigError(f"lengths.mean = {law.mean}: it must be below lengths.cap = {law.cap}, which no response exceeds. Fix: a lower mean")
    if slots < rows:
        raise ConfigError(
            f"decode.max_running = {slots}: it must be at least group_rows = {rows}, for a group's responses start together on one replica; "
            f"none would ever start. Fix: decode.max_running: {rows}"
        )


def _check_replicas(costs: CostTable) -> None:
    replica, devices = costs.decode.devices, costs.split.rollout
    if devices < replica or devices % replica:
        raise ConfigError(
            f"split.rollout = {devices}: it must be a multiple of decode.devices = {replica}, one replica's; devices would be left over. "
            f"Fix: split.rollout = {max(replica, devices // replica * replica)}"
        )


def value_of(costs: CostTable, key: str) -> float:
    """The number under a dotted key."""
    value: Any = costs
    for part in key.split("."):
        value = getattr(value, part)
    assert isinstance(value, int | float), key
    return value


def _refuse(costs: CostTable, key: str, holds: bool, rule: str, consequence: str) -> None:
    if not holds:
        raise ConfigError(f"{key} = {value_of(costs, key)}: it must be {rule}, else {consequence}. Fix: {key}: <a number {rule}>")

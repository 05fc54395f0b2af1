"""TransferQueue's configuration, which verl passes from its own YAML: each key is used, or ignored for a reason, or refused by name."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transfer_queue.messages import Record

log = logging.getLogger(__name__)

MOST_SHARDS, MOST_BYTES, MOST_PORT = 256, 1 << 44, 65535
CPUS_A_SHARD = 8  # a shard is one process, whose memory the members of its machine map: more of them than this serve nobody
SHARE = 0.5  # of this machine's memory, for all shards together
CGROUP = Path("/sys/fs/cgroup/memory.max")

STORAGE = "backend.SimpleStorage"
IGNORED = {  # key, or section → why it has no meaning here
    "enable": "verl's own switch",
    "metrics.endpoint": "get_metrics_endpoint() tells it",
    "controller.polling_mode": "get_meta waits at the controller, which answers when rows are there: nobody polls",
    "controller.zmq_info": "init() finds the queue",
    f"{STORAGE}.zmq_info": "init() finds the queue",
    f"{STORAGE}.total_storage_size": "it counts samples; a queue is bounded by bytes, see asyncflow.capacity_bytes",
    f"{STORAGE}.ssd_offload": "nothing is written to a disk",
    "backend.MooncakeStore": "settings of a backend that is not chosen",
    "backend.Yuanrong": "settings of a backend that is not chosen",
    "backend.RayStore": "settings of a backend that is not chosen",
}
ONLY = {  # key → (the one value that can be kept to, why)
    "backend.storage_backend": ("SimpleStorage", "bytes lie in this queue's own shards"),
    "controller.sampler": ("SequentialSampler", "no sampler of theirs runs here; rows are found by key"),
    f"{STORAGE}.required_node_resource": (None, "shards run beside the controller"),
    f"{STORAGE}.ssd_offload.enabled": (False, "bytes lie in memory only"),
}
UNITS, CAPACITY = f"{STORAGE}.num_data_storage_units", "asyncflow.capacity_bytes"
USED = ("metrics.enabled", "metrics.port", UNITS, CAPACITY)


class Settings(Record, frozen=True):
    """What a queue of our own is started with."""

    shards: int
    capacity_bytes: int  # of each shard
    metrics_port: int | None  # None: no endpoint; 0: any free port


def settings_of(conf: Any = None) -> Settings:
    """conf: a mapping, a DictConfig or None. Raises ValueError naming key, value, rule and fix."""
    given = dict(_leaves(_plain(conf)))
    for key, value in given.items():
        _check(key, value)
    units = _whole(UNITS, given.get(UNITS), 1, MOST_SHARDS) or 1
    shards = min(units, max(1, (os.cpu_count() or 1) // CPUS_A_SHARD))
    capacity = _whole(CAPACITY, given.get(CAPACITY), 1, MOST_BYTES) or int(_memory() * SHARE) // shards
    port = _whole("metrics.port", given.get("metrics.port"), 0, MOST_PORT) or 0
    return Settings(shards, capacity, port if given.get("metrics.enabled") else None)


def _plain(conf: Any) -> Mapping[str, Any]:
    if conf is None:
        return {}
    if not isinstance(conf, Mapping):  # OmegaConf's
        from omegaconf import OmegaConf

        conf = OmegaConf.to_container(conf, resolve=True) if OmegaConf.is_config(conf) else conf
    if not isinstance(conf, Mapping):
        raise ValueError(f"conf is a {type(conf).__name__}: pass a mapping, a DictConfig, or None for the defaults; nothing was started")
    return conf


def _leaves(section: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value; a section that is ignored as a whole is one of them, but for what is refused inside."""
    for name, value in section.items():
        key = f"{above}{name}"
        inside = any(only.startswith(f"{key}.") for only in (*ONLY, *USED))
        if isinstance(value, Mapping) and (inside or key not in IGNORED):
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def _check(key: str, value: Any) -> None:
    if key in ONLY:
        only, why = ONLY[key]
        if value != only:
            raise ValueError(f"transfer_queue.{key}={value!r}: {why}; nothing was started. Write {key}={only!r}")
    elif key in USED:
        return
    elif any(key == ignored or key.startswith(f"{ignored}.") for ignored in IGNORED):
        log.debug("transfer_queue.%s=%r has no meaning here", key, value)
    else:
        close = difflib.get_close_matches(key, [*USED, *ONLY, *IGNORED], n=1)
        meant = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted((*USED, *ONLY, *IGNORED)))}"
        raise ValueError(f"transfer_queue.{key}={value!r}: there is no such key, so it would change nothing; nothing was started; {meant}")


def _whole(key: str, value: Any, least: int, most: int) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most):
        raise ValueError(f"transfer_queue.{key}={value!r} must be a whole number in [{least}, {most}], or null; nothing was started")
    return value


def _memory() -> int:
    """Bytes that this machine, or this container, has."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(found, int(CGROUP.read_text()))
    except (OSError, ValueError):  # no such group, or "max"
        return found

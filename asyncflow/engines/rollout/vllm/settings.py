"""What `rollout.options` may say when `rollout.engine` is vLLM."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from asyncflow.config.errors import SettingError, as_value
from asyncflow.config.settings import Settings
from asyncflow.config.typed import refuse_wrong

WHERE = "rollout.options"


class VllmSettings(Settings, frozen=True):
    """Settings of the vLLM engine."""

    tensor_parallel: int = 1  # Processes (on accelerators: devices) that share one copy of the model.
    eager: bool = True  # Run operations one by one; false: compiled and captured by vLLM, which takes minutes at the start.
    kv_cache_bytes: int | None = None  # Memory of the keys and values of each process; null: what vLLM chooses.
    prefix_caching: bool = True  # Requests with the same beginning share its keys and values, within one version of the weights.
    on_update: Literal["keep", "recompute"] = "keep"  # Keys and values of running requests at new weights: kept, or computed anew.
    max_queued: int = 1 << 14  # Most requests that run or wait.
    start_s: float = 600.0  # Most seconds from the start of vLLM's processes to the first answer.
    reply_s: float = 120.0  # Most seconds for a pause, an abort, a load.
    silent_s: float = 300.0  # With running requests and no token for so long, vLLM counts as hung and is started anew.
    restarts: int = 3  # How often vLLM's processes are started anew within `restart_window_s` before the worker gives up.
    restart_window_s: float = 900.0  # See `restarts`, seconds.
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)  # More arguments of vLLM's AsyncEngineArgs, by its names.
    environment: dict[str, str] = msgspec.field(default_factory=dict)  # Environment variables of vLLM's processes.


def vllm_settings(options: dict[str, Any]) -> VllmSettings:
    """Raises SettingError that names the key, the rule and the fix."""
    refuse_wrong(options, VllmSettings, WHERE, VllmSettings())
    settings = msgspec.convert(options, VllmSettings)
    for name in ("tensor_parallel", "max_queued", "kv_cache_bytes"):
        if getattr(settings, name) is not None:
            _at_least(name, getattr(settings, name), 1)
    _at_least("restarts", settings.restarts, 0)
    for name in ("start_s", "reply_s", "silent_s", "restart_window_s"):
        if getattr(settings, name) <= 0:
            _refuse(name, getattr(settings, name), "it must be above 0", "the wait would be over before it began")
    return settings


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        _refuse(name, value, f"it must be at least {least}", "vLLM would not start")


def _refuse(name: str, value: object, rule: str, consequence: str) -> None:
    default = getattr(VllmSettings(), name)
    raise SettingError(f"{WHERE}.{name}", value, rule=rule, consequence=consequence, fix=[f"{WHERE}.{name}={as_value(default)}"])

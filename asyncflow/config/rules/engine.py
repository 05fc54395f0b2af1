"""Rules on the rollout engine: its own settings are right, and what it needs is installed."""

from __future__ import annotations

from importlib.util import find_spec

from asyncflow.config.errors import SettingError
from asyncflow.config.rollout import EMBEDDED, VLLM
from asyncflow.config.root import RunConfig


def options(config: RunConfig) -> None:
    """`rollout.options` of vLLM and of the embedded engine. What they may say stands on the configuration, so it is no part of it."""
    if config.rollout.engine == VLLM:
        from asyncflow.engines.rollout.vllm.settings import vllm_settings

        vllm_settings(config.rollout.options)
    elif config.rollout.engine == EMBEDDED:
        from asyncflow.engines.rollout.embedded_options import embedded_settings

        embedded_settings(config.rollout.options)


def tensor_parallel(config: RunConfig) -> None:
    """vLLM uses as many devices as processes share a copy of the model."""
    rollout = config.resources["rollout"]
    each = next(len(place.devices) for place in config.places() if place.role == "rollout")
    if config.rollout.engine != VLLM or not each:
        return
    given = config.rollout.options.get("tensor_parallel", 1)
    if given != each:
        key = "rollout.options.tensor_parallel"
        raise SettingError(
            key,
            given,
            rule=f"each of the {rollout.workers} replicas has {each} devices, and vLLM uses one a process",
            consequence="devices would stay idle, or vLLM would find too few",
            fix=[f"++{key}={each}"],
            advice="or another number of resources.rollout.workers or devices",
        )


def package(config: RunConfig) -> None:
    if config.rollout.engine == VLLM and find_spec("vllm") is None:
        raise SettingError(
            "rollout.engine",
            VLLM,
            rule="the package vllm is not installed in this environment",
            consequence="no replica could start",
            fix=[f"rollout.engine={EMBEDDED}"],
            advice="or use an environment that has it (on the CPU: make venv-vllm)",
        )

"""Rules on the rollout engine: its own settings are right, and what it needs is installed."""

from __future__ import annotations

from importlib.util import find_spec

from asyncflow.config.errors import SettingError
from asyncflow.config.rollout import EMBEDDED, VLLM
from asyncflow.config.root import RunConfig


def options(config: RunConfig) -> None:
    """`rollout.options` of vLLM; those of the embedded engine are checked where it is built."""
    if config.rollout.engine == VLLM:
        from asyncflow.engines.rollout.vllm.settings import vllm_settings  # it stands on the configuration, so it is no part of it

        vllm_settings(config.rollout.options)


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

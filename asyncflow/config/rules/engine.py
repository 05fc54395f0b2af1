"""Rules on the rollout engine: its own settings are right, and what it needs is installed."""

from __future__ import annotations

from importlib.util import find_spec

from asyncflow.config.embedded import embedded_settings
from asyncflow.config.errors import SettingError
from asyncflow.config.rollout import EMBEDDED, VLLM
from asyncflow.config.root import RunConfig
from asyncflow.config.rules.bounds import at_least


def options(config: RunConfig) -> None:
    """`rollout.options` of the engines that are ours."""
    if config.rollout.engine == VLLM:
        from asyncflow.engines.rollout.vllm.settings import vllm_settings  # it stands on the configuration, so it is no part of it

        _queue_holds(config, vllm_settings(config.rollout.options).max_queued)
    elif config.rollout.engine == EMBEDDED:
        _queue_holds(config, embedded_settings(config.rollout.options).max_queued)


def _queue_holds(config: RunConfig, most: int) -> None:
    """What a replica may hand over at once: all of an evaluation, or a group on top of what runs."""
    rollout, evaluation = config.rollout, config.evaluation
    at_least("rollout.options.max_queued", most, rollout.slots + rollout.samples_per_prompt, "a group could be refused, which ends the run")
    if evaluation.every is not None:
        at_least("rollout.options.max_queued", most, evaluation.items, "an evaluation hands all of its items over at once and would be refused")


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

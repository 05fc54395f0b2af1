"""Rules on the update: numbers of the optimizer and the loss with which something can be learned."""

from __future__ import annotations

from asyncflow.config.errors import ConfigError
from asyncflow.config.root import RunConfig
from asyncflow.config.rules.shape import at_least
from asyncflow.config.stages import DEFAULT_ADVANTAGE


def optimizer(config: RunConfig) -> None:
    settings = config.algorithm
    if settings.learning_rate <= 0:
        raise ConfigError(
            f"algorithm.learning_rate = {settings.learning_rate}: it must be above 0, or no step would change the weights for the better. "
            f"Fix: algorithm.learning_rate=3e-4 (to learn nothing on purpose: algorithm.control=zero_advantages)"
        )
    _above_0("algorithm.grad_clip", settings.grad_clip, "all gradients would be cut to nothing", "1.0")
    _above_0("algorithm.clip_low", settings.clip_low, "the ratio would have no room to move", "0.2")
    _above_0("algorithm.clip_high", settings.clip_high, "the ratio would have no room to move", "0.2")
    at_least("algorithm.warmup_steps", settings.warmup_steps, 0)
    at_least("algorithm.kl_coef", settings.kl_coef, 0)


def _above_0(key: str, value: float, consequence: str, fix: str) -> None:
    if value <= 0:
        raise ConfigError(f"{key} = {value}: it must be above 0, else {consequence} (nothing was started). Fix: {key}={fix}")


def group_size(config: RunConfig) -> None:
    """The advantage of a row compares it with the others of its group."""
    samples = config.rollout.samples_per_prompt
    compared = [name for name, stage in config.stages.items() if stage.compute == DEFAULT_ADVANTAGE]
    if compared and samples < 2:
        raise ConfigError(
            f"rollout.samples_per_prompt = {samples}: stages.{compared[0]} compares the rows of a group, and a group of one has nothing to compare: "
            f"every advantage would be 0 and nothing learned. Fix: rollout.samples_per_prompt=2 or more, or an advantage stage of your own"
        )

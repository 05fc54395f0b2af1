"""Rules on the update: numbers of the optimizer and the loss with which something can be learned."""

from __future__ import annotations

from asyncflow.config.algorithm import TORCH, AlgorithmSettings
from asyncflow.config.errors import SettingError
from asyncflow.config.root import RunConfig
from asyncflow.config.rules.bounds import above
from asyncflow.config.stages import DEFAULT_ADVANTAGE


def optimizer(config: RunConfig) -> None:
    consequence = "no step would change the weights for the better (to learn nothing on purpose: algorithm.control=zero_advantages)"
    above("algorithm.learning_rate", config.algorithm.learning_rate, 0, "3e-4", consequence)
    if not all(0 <= beta < 1 for beta in config.algorithm.betas):
        rule = "each must be at least 0 and below 1"
        consequence = "AdamW's averages would grow without end, and it refuses to start"
        raise SettingError("algorithm.betas", config.algorithm.betas, rule=rule, consequence=consequence, fix=["algorithm.betas=[0.9,0.99]"])


def clip(config: RunConfig) -> None:
    """The ratio of two probabilities is never below 0."""
    low = config.algorithm.clip_low
    if low > 1:
        consequence = "the ratio is never below 0, so it would not be clipped below at all (at 1 it is not either)"
        raise SettingError("algorithm.clip_low", low, rule="it must be at most 1", consequence=consequence, fix=["algorithm.clip_low=0.2"])


def options(config: RunConfig) -> None:
    """The loss and the engine that are built in have no settings beside those of `algorithm`."""
    settings = config.algorithm
    if settings.options and settings.engine == TORCH and settings.loss == AlgorithmSettings().loss:
        name, value = next(iter(settings.options.items()))
        raise SettingError(
            f"algorithm.options.{name}",
            value,
            rule=f"algorithm.options are of a loss or engine of your own, and {settings.loss} has none",
            consequence="it would be ignored",
            fix=["algorithm.options={}"],
            advice="or name the loss that reads it: algorithm.loss=package.module:name",
        )


def group_size(config: RunConfig) -> None:
    """The advantage of a row compares it with the others of its group."""
    samples = config.rollout.samples_per_prompt
    compared = [name for name, stage in config.stages.items() if stage.compute == DEFAULT_ADVANTAGE]
    if compared and samples < 2:
        raise SettingError(
            "rollout.samples_per_prompt",
            samples,
            rule=f"it must be at least 2, for stages.{compared[0]} compares the rows of a group",
            consequence="a group of one has nothing to compare: every advantage would be 0 and nothing learned",
            fix=["rollout.samples_per_prompt=2"],
            advice="or more, or an advantage stage of your own",
        )

"""The run's topic: columns and consumers read off the configured stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncflow.config.stages import LOOP_STAGES, SOURCE_COLUMNS, StageSettings
from asyncflow.flow.window import window
from transfer_queue.messages import Consumer, Sampler, TopicSpec

if TYPE_CHECKING:
    from asyncflow.config.root import RunConfig


def topic_spec(config: RunConfig, model: str = "policy") -> TopicSpec:
    """The topic whose clock is `model`'s. Producers are the source, the rollout and every stage; every stage but the rollout consumes."""
    columns = SOURCE_COLUMNS + tuple(column for name, stage in config.stages.items() for column in stage.columns(name))
    return TopicSpec(
        name=model,
        model=model,
        columns=columns,
        consumers=tuple(_consumer(config, name, stage) for name, stage in config.stages.items() if name != "rollout"),
        window=window(config),
        prompts_bound=config.data.prompts_bound,
        rows_per_group=config.rollout.samples_per_prompt,
        rewinds=True,  # a prompt is a function of its position
    )


def _consumer(config: RunConfig, name: str, stage: StageSettings) -> Consumer:
    """A stage that follows trained weights takes a row only with weights at least as new as the row's newest token."""
    follows = name not in LOOP_STAGES and stage.model is not None and not config.models[stage.model].frozen
    return Consumer(
        name=name,
        inputs=stage.inputs,
        outputs=tuple(stage.outputs),
        unit=stage.unit,
        terminal=stage.terminal,
        sampler=Sampler(stage.sampler.name, stage.sampler.options),
        needs_weights=follows,
    )

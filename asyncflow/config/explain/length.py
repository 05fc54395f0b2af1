"""How long the run is, in steps, groups and rows."""

from __future__ import annotations

import msgspec

from asyncflow.config.root import RunConfig
from transfer_queue.controller.terminal import size_of
from transfer_queue.messages import TopicSpec


class Length(msgspec.Struct, frozen=True):
    """A step is one global batch, one optimizer step and one version."""

    steps: int
    groups: int  # that are trained in all
    rows: int
    batch_groups: int
    batch_rows: int
    last_batch_groups: int  # only the last batch may be short
    micro_batch_groups: int  # in one forward and backward pass of the trainer
    most_response_tokens: int  # of all rows together, each at its longest


def length(config: RunConfig, topic: TopicSpec) -> Length:
    steps, groups, rows = config.total_steps, config.total_groups, topic.rows_per_group
    return Length(
        steps=steps,
        groups=groups,
        rows=groups * rows,
        batch_groups=topic.window.batch,
        batch_rows=topic.window.batch * rows,
        last_batch_groups=_last_batch(topic, steps, groups),
        micro_batch_groups=config.algorithm.micro_batch_groups,
        most_response_tokens=groups * rows * config.rollout.response_width,
    )


def _last_batch(topic: TopicSpec, steps: int, groups: int) -> int:
    """What the controller will say in the last step, when all steps before it are trained."""
    return size_of(topic.window.batch, held=0, trained=(steps - 1) * topic.window.batch, target=groups)

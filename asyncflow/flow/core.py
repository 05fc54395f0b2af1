"""What the queue's controller is told about a run: topics, duties, deadlines."""

from __future__ import annotations

from asyncflow.config import POLICY, RunConfig
from asyncflow.flow.topic import topic_spec
from transfer_queue.controller.core import CoreConfig
from transfer_queue.controller.duties import Duty


def core_config(config: RunConfig) -> CoreConfig:
    """The configuration of the controller; `config` itself travels in it to every worker that registers."""
    every = config.evaluation.every
    duties = [] if every is None else [Duty(name="evaluate", role="rollout", model=POLICY, every=every)]
    return CoreConfig(
        topics=[topic_spec(config)],
        config=config.encode(),
        duties=duties,
        lease_s=config.limits.lease_s,
        heartbeat_s=config.limits.heartbeat_s,
        stall_s=config.limits.stall_s,
    )

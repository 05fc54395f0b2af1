"""What the queue's controller is told about a run: topics, duties, deadlines."""

from __future__ import annotations

from asyncflow.config import POLICY, RunConfig
from asyncflow.config.resources import ROLE_OF_STAGE
from asyncflow.flow.topic import topic_spec
from transfer_queue.controller.core import CoreConfig
from transfer_queue.controller.duties import Duty
from transfer_queue.controller.scene import PUBLISH

COMEBACK_S = 25.0  # how long a run waits for a controller that is started again: less than anybody waits for an answer of it


def core_config(config: RunConfig) -> CoreConfig:
    """The configuration of the controller; `config` itself travels in it to every worker that registers."""
    every = config.evaluation.every
    duties = [] if every is None else [Duty(name="evaluate", role="rollout", model=POLICY, every=every)]
    return CoreConfig(
        topics=[topic_spec(config)],
        config=config.encode(),
        roles={role: _stages(config, role) for role in config.resources},
        duties=duties,
        lease_s=config.limits.lease_s,
        heartbeat_s=config.limits.heartbeat_s,
        stall_s=config.limits.stall_s,
        comeback_s=COMEBACK_S if config.queue.journal else 0.0,
    )


def _stages(config: RunConfig, role: str) -> list[str]:
    """What the role's workers do in the queue: the stages they list, or those that its loop is made for."""
    if role == "publisher":
        return [PUBLISH]
    own = [stage for stage, server in ROLE_OF_STAGE.items() if server == role]
    return [*config.resources[role].stages, *own] or [role]

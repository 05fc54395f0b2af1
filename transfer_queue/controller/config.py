"""What a controller is started with."""

from __future__ import annotations

import msgspec

from transfer_queue.controller.duties import Duty
from transfer_queue.messages import Record, TopicSpec


class CoreConfig(Record, frozen=True):
    """A run as the controller sees it."""

    topics: list[TopicSpec]  # one a model
    keyed_only: bool = False  # no topics: a store of keyed partitions, which never completes or stalls, and whose members may be silent
    config: bytes = b""  # handed to every member that joins, opaque
    duties: list[Duty] = msgspec.field(default_factory=list)
    lease_s: float = 30.0  # a lease without progress ends after this
    heartbeat_s: float = 10.0  # a member without a message is dead after this
    stall_s: float = 60.0  # a run without progress is stopped after this
    roles: dict[str, list[str]] = msgspec.field(default_factory=dict)  # role → stages that it serves, for stall reports
    duty_s: float = 600.0  # a member at work on its duty counts as progress for so long, and no longer
    comeback_s: float = 0.0  # members wait for a controller that is gone for so long: as long as it takes to start it again; 0 without a journal


def check_config(config: CoreConfig) -> None:
    """Raises ValueError for a run that could not work; topics check themselves (`Schema`)."""
    names = [topic.name for topic in config.topics]
    models = [topic.model for topic in config.topics]
    if config.keyed_only and names:
        raise ValueError(f"keyed_only=true with topics {names}: their stages would be waited for without end; leave keyed_only or the topics out")
    if (not names and not config.keyed_only) or len(set(names)) < len(names) or len(set(models)) < len(models):
        raise ValueError(
            f"topics {names} of models {models}: a run needs at least one, each with a name and a model of its own, whose commits are its clock"
        )
    for key in ("lease_s", "heartbeat_s", "stall_s", "duty_s"):
        if not getattr(config, key) > 0:
            raise ValueError(f"{key}={getattr(config, key)} must be > 0 seconds: everything would end at once")
    if not config.comeback_s >= 0:
        raise ValueError(f"comeback_s={config.comeback_s} must be >= 0 seconds, 0 for a controller that does not come back")
    for duty in config.duties:
        if duty.model not in models or duty.every < 0:
            raise ValueError(
                f"duty {duty.name!r} with model={duty.model!r}, every={duty.every}: the model must be one of {models} and every >= 0 versions "
                "(0: only the final one); it would never be due"
            )

"""The staleness window of a run: `staleness` and `batch_size` of the YAML in the queue's terms.

The queue enforces it (admission, `wait`, `drop`); flow control here only configures it, so that there is no second counter that could drift.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncflow.flow.bytes import group_bytes
from transfer_queue.messages import Window

if TYPE_CHECKING:
    from asyncflow.config.root import RunConfig


def window(config: RunConfig) -> Window:
    """At most (staleness + 1) × batch_size groups are open at once; `staleness: null` is bounded by bytes only."""
    return Window(
        batch=config.batch_size,
        staleness=config.staleness,
        policy=config.flow.policy,
        budget_bytes=config.flow.budget_bytes,
        group_bytes=group_bytes(config),
        requeue=config.flow.requeue,
    )

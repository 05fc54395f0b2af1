"""A shard's process, with the bind and the bytes that the configuration gives it."""

from __future__ import annotations

import sys
from pathlib import Path

from asyncflow.contracts.worker import EXPELLED
from transfer_queue.errors import QueueError
from transfer_queue.security import Security
from transfer_queue.shard.server import serve

HELD_FOR_DEAD = "stale_incarnation"  # the controller's word for a shard that was not heard of for too long


def run(name: str, controller: str, key: str | None, bind: str, capacity_bytes: int, keep_bytes: int) -> int:
    """Process entry: serve until the run has stopped and only shards are left. EXPELLED: the controller holds it for dead, and a new one may join."""
    security = Security.load(Path(key)) if key is not None else None
    try:
        serve(name, controller, security, bind=bind, capacity_bytes=capacity_bytes, keep_bytes=keep_bytes)
    except QueueError as error:
        if error.code != HELD_FOR_DEAD:
            raise
        print(f"{name}: {error}", file=sys.stderr)
        return EXPELLED
    return 0

"""A shard's process, with the bind and the bytes that the configuration gives it."""

from __future__ import annotations

from pathlib import Path

from transfer_queue.security import Security
from transfer_queue.shard.server import serve


def run(name: str, controller: str, key: str | None, bind: str, capacity_bytes: int, keep_bytes: int) -> int:
    """Process entry: serve until the run has stopped and only shards are left."""
    security = Security.load(Path(key)) if key is not None else None
    serve(name, controller, security, bind=bind, capacity_bytes=capacity_bytes, keep_bytes=keep_bytes)
    return 0

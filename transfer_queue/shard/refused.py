"""How a shard says no."""

from __future__ import annotations


class Refused(Exception):
    """A request that breaks a rule; nothing changed. Becomes a ShardError with this code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

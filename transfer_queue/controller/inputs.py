"""What the server tells a journal: every input of the state machine before it is handled, and when something is about to leave.

Without a journal nothing is kept, and a controller that ends is gone.
"""

from __future__ import annotations

from typing import Protocol

from transfer_queue.messages import Reply, Request


class Inputs(Protocol):
    """Each call notes one input, at the time that the core's clock shows."""

    def request(self, connection: bytes, frame: bytes, request: Request) -> None:
        """`frame` is what `request` was decoded from."""
        ...

    def tick(self) -> None: ...

    def frozen(self, seconds: float) -> None: ...

    def undelivered(self, connection: bytes, reply: Reply) -> None: ...

    def unreachable(self, shard: str, cause: str) -> None: ...

    def keep(self, replies: list[tuple[bytes, Reply]]) -> None:
        """Everything noted is kept when this returns: now these replies may leave, and what shards are told."""
        ...

    def rest(self) -> None:
        """Between two inputs, with nothing left to be sent: a moment for a snapshot."""
        ...

    @property
    def in_groups(self) -> bool:
        """`keep` is dear: as many requests as have come are to be handled before it."""
        ...

    @property
    def life(self) -> bytes:
        """Which start of this controller it is: connections of earlier ones have other names. b"" without a journal."""
        ...


class Forgotten:
    """No journal."""

    in_groups = False
    life = b""

    def request(self, connection: bytes, frame: bytes, request: Request) -> None: ...

    def tick(self) -> None: ...

    def frozen(self, seconds: float) -> None: ...

    def undelivered(self, connection: bytes, reply: Reply) -> None: ...

    def unreachable(self, shard: str, cause: str) -> None: ...

    def keep(self, replies: list[tuple[bytes, Reply]]) -> None: ...

    def rest(self) -> None: ...

"""What can go wrong for a user of the queue. Nothing else is raised on purpose, except ValueError and TypeError for wrong arguments."""

from __future__ import annotations

from collections.abc import Iterable


class QueueError(RuntimeError):
    """The controller or a shard refused a request; `code` is for programs, the message for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} [{code}]")
        self.code, self._message = code, message

    def __reduce__(self) -> tuple[type[QueueError], tuple[str, str]]:
        """For copies, and for other processes."""
        return type(self), (self.code, self._message)


class QueueTimeout(TimeoutError):
    """No reply by the deadline. The request may still have been carried out; sending it again is safe."""


class QueueGone(ConnectionError):
    """The peer closed an established connection (it ended or was killed) and did not come back within the grace time."""


class QueueRefused(ConnectionError):
    """The handshake failed for good: the keys of the two sides do not fit."""


class Gone(LookupError):
    """Bytes of these groups were freed meanwhile (trained, dropped): leave the groups out and go on."""

    def __init__(self, gids: Iterable[int]) -> None:
        self.gids = sorted(set(gids))
        super().__init__(f"the bytes of groups {self.gids[:16]} were freed: they ended (trained or dropped) after they were leased; leave them out")

    def __reduce__(self) -> tuple[type[Gone], tuple[list[int]]]:
        return type(self), (self.gids,)

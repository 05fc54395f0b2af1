"""What can go wrong for a user of the queue. Nothing else is raised on purpose, except ValueError and TypeError for wrong arguments."""

from __future__ import annotations

from collections.abc import Iterable


class QueueError(RuntimeError):
    """The controller or a shard refused a request; `code` is for programs, the message for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} [{code}]")
        self.code, self.message = code, message

    def __reduce__(self) -> tuple[type[QueueError], tuple[str, str]]:
        """For copies, and for other processes."""
        return type(self), (self.code, self.message)


class QueueTimeout(TimeoutError):
    """No reply by the deadline. The request may still have been carried out; sending it again is safe."""


class QueueGone(ConnectionError):
    """The peer closed an established connection (it ended or was killed) and did not come back within the grace time."""


class QueueRefused(ConnectionError):
    """The handshake failed for good: the keys of the two sides do not fit."""


class KeysChanged(LookupError):
    """Rows of a keyed partition were overwritten or cleared again and again while they were read."""

    def __init__(self, partition: str, keys: list[str], times: int) -> None:
        self.partition, self.keys, self.times = partition, keys, times
        super().__init__(
            f"keys {keys[:8]} of partition {partition!r} were overwritten or cleared {times} times while they were read: read them when their "
            "writers are through, or fewer at once"
        )

    def __reduce__(self) -> tuple[type[KeysChanged], tuple[str, list[str], int]]:
        return type(self), (self.partition, self.keys, self.times)


class Gone(LookupError):
    """Bytes of these groups were freed meanwhile (trained, dropped): leave the groups out and go on."""

    def __init__(self, gids: Iterable[int]) -> None:
        self.gids = sorted(set(gids))
        super().__init__(f"the bytes of groups {self.gids[:16]} were freed: they ended (trained or dropped) after they were leased; leave them out")

    def __reduce__(self) -> tuple[type[Gone], tuple[list[int]]]:
        return type(self), (self.gids,)

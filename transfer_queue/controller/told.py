"""What a shard was told and has not confirmed: told again by a controller that comes back, for `Free` and `Sweep` have no replies.

They are counted, blocks and sweeps each for itself: every message says how many it makes, and the shard says with its heartbeat how many it has seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from transfer_queue.shard.messages import FREED, SWEPT

MOST = 1 << 20  # blocks and sweeps of a shard: one that never confirms anything keeps no more, and the rest goes when it ends


@dataclass(slots=True)
class Told:
    """Of one life of one shard."""

    freed: int = 0  # blocks that it confirmed, from the beginning
    frees: list[int] = field(default_factory=list)  # those after them
    swept: int = 0  # the same of ended owners
    sweeps: list[str] = field(default_factory=list)

    @property
    def all_freed(self) -> int:
        return self.freed + len(self.frees)

    @property
    def all_swept(self) -> int:
        return self.swept + len(self.sweeps)

    def free(self, blocks: Iterable[int]) -> None:
        self.frees.extend(blocks)
        self._confirm_frees(self.all_freed - MOST)

    def sweep(self, owner: str) -> None:
        self.sweeps.append(owner)
        self._confirm_sweeps(self.all_swept - MOST)

    def confirm(self, counts: dict[str, float]) -> None:
        """What the shard says it has seen. Numbers that are none confirm nothing."""
        self._confirm_frees(_whole(counts.get(FREED, 0.0)))
        self._confirm_sweeps(_whole(counts.get(SWEPT, 0.0)))

    def _confirm_frees(self, count: int) -> None:
        if count > self.freed:
            more = min(count, self.all_freed) - self.freed
            del self.frees[:more]
            self.freed += more

    def _confirm_sweeps(self, count: int) -> None:
        if count > self.swept:
            more = min(count, self.all_swept) - self.swept
            del self.sweeps[:more]
            self.swept += more


def _whole(count: float) -> int:
    return int(count) if 0 <= count < 1 << 53 else 0

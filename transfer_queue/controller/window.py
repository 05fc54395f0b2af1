"""The staleness window as arithmetic: permits, bytes, the oldest weights a group may start from, and what is stale.

Design decision 4. v: the topic's clock; B: batch; k: staleness (None: bounded by bytes only); open: groups neither trained nor dropped.
"""

from __future__ import annotations

from transfer_queue.messages import Window


class WindowRules:
    def __init__(self, window: Window, set_aside: int = 0) -> None:
        """`set_aside`: bytes of the budget that admission does not get."""
        self.spec = window
        self.budget_bytes = window.budget_bytes - set_aside
        self.batch = window.batch
        self.staleness = window.staleness
        self.capacity = None if window.staleness is None else (window.staleness + 1) * window.batch

    @property
    def ordered(self) -> bool:
        """Batches are filled in strictly ascending version. Without a bound there is nothing that waiting would protect."""
        return self.spec.policy == "wait" and self.staleness is not None

    @property
    def expires(self) -> bool:
        return self.spec.policy == "drop" and self.staleness is not None

    def has_permit(self, open_groups: int, groups: int = 1) -> bool:
        """So many more groups may be admitted: permits, and room for their worst case in bytes."""
        if self.capacity is not None and open_groups + groups > self.capacity:
            return False
        return (open_groups + groups) * self.spec.group_bytes <= self.budget_bytes

    def min_version(self, clock: int, ahead: int) -> int:
        """v - k + floor(ahead / B), at least 0: with `ahead` groups before it, a group is trained at most this + k versions on."""
        if self.staleness is None:
            return 0
        return max(0, clock - self.staleness + ahead // self.batch)

    def restart_version(self, clock: int, open_groups: int, min_version: int) -> int:
        """What a reissued attempt needs, itself being one of the `open_groups`; never above the clock.

        max(min_version, v - k) is not enough: while the lost attempt had tokens newer than `min_version`, later groups may have overtaken the group.
        So its place is counted anew, as at admission.
        """
        return max(min_version, self.min_version(clock, open_groups - 1))

    def oldest(self, clock: int) -> int | None:
        """Version of the oldest group that may be trained at this clock; None: any may."""
        return None if self.staleness is None else clock - self.staleness

    def is_stale(self, version: int, clock: int) -> bool:
        return self.staleness is not None and version < clock - self.staleness

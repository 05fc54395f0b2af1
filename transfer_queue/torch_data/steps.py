"""The step of a terminal consumer from both sides: what a worker may still take of it, and what of it has come to whoever commits it."""

from __future__ import annotations

from transfer_queue import messages as m
from transfer_queue.errors import QueueError
from transfer_queue.torch_data.membership import Membership
from transfer_queue.torch_data.receipts import Receipt
from transfer_queue.torch_data.settings import Source


def part_of(total: int, part: int, parts: int) -> int:
    """How many of `total` are the share of `part`, 0-based: all shares add up to the total, and none differs from another by more than one."""
    return total * (part + 1) // parts - total * part // parts


class Steps:
    """The step of a terminal consumer from which rows are taken, and how much of it is this worker's where ranks share it out."""

    def __init__(self, source: Source, spec: m.TopicSpec, worker: int, workers: int) -> None:
        self.number = 0
        self._source, self._spec = source, spec
        rank, ranks = source.share or (0, 1)
        self._part = (rank * workers + worker, ranks * workers)
        self._taken: set[int] = set()  # gids of this step

    def room(self, membership: Membership) -> int:
        """Most groups that may be taken now. Where our part of a step was handed out, it waits for the commit first."""
        if self._source.share is None:
            return self._source.limit
        part = part_of(self._spec.window.batch, *self._part)
        if len(self._taken) >= part:
            membership.wait_beyond(self._spec.model, self.number)
        return max(1, part - len(self._taken))

    def note(self, taken: m.OkTaken) -> None:
        if taken.version != self.number:
            self.number, self._taken = taken.version, set()
        self._taken.update(m.unpacked(taken.rows.gids).tolist())
        if self._source.share is not None and 0 < taken.batch < self._spec.window.batch:
            raise QueueError(
                "short_batch",
                f"share={self._source.share}: the last step has {taken.batch} groups instead of {self._spec.window.batch}, and nobody can know which "
                "rank has how many of them: ranks would wait for one another for ever; close the topic with a multiple of its batch",
            )


class OpenStep:
    """The step of a terminal consumer that is being trained: what has come of its batch, and the leases that its commit must name."""

    def __init__(self, share: tuple[int, int] | None = None) -> None:
        """`share`: (rank, ranks), where ranks share a step out among them and each has its own part to come."""
        self._rank, self._ranks = share or (0, 1)
        self.number: int | None = None  # None: nothing of it has come
        self.leases: list[int] = []
        self._seen: set[int] = set()
        self._expected = 0

    def add(self, receipt: Receipt) -> None:
        """A batch was handed over. One of a newer step: somebody else has committed this one."""
        if receipt.version != self.number:
            self.forget()
            self.number = receipt.version
        self.leases += receipt.leases
        self._seen.update(receipt.gids.tolist())
        self._expected = part_of(receipt.groups, self._rank, self._ranks)

    def forget(self) -> None:
        """It was committed."""
        self.number, self.leases, self._seen, self._expected = None, [], set(), 0

    @property
    def groups(self) -> int:
        """Whose rows have come."""
        return len(self._seen)

    @property
    def complete(self) -> bool:
        """Everything has come: with shares, of this rank's part."""
        return self.number is not None and self.groups == self._expected

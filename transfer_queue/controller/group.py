"""The group record: all trajectories of one prompt, the unit of flow control. An open record is a permit."""

from __future__ import annotations

from dataclasses import dataclass, field

from transfer_queue.controller.blocks import BlockId
from transfer_queue.controller.timers import Timer
from transfer_queue.messages import PromptPut, Slice, State

SERVED = -1
OPEN: tuple[State, ...] = ("admitted", "generating", "complete", "leased")


@dataclass(slots=True, eq=False)
class Row:
    """One finished trajectory row: where its columns are, and what each consumer still misses."""

    index: int
    tokens: int
    oldest: int
    newest: int
    columns: dict[str, Slice]
    missing: list[int]  # [consumers] required columns not yet there; SERVED once the consumer has acknowledged the row


@dataclass(slots=True, eq=False)
class Group:
    """One life of a prompt. `gid` is the identity; a prompt that is requeued after a drop starts another life as a new record.

    `version` is that of the oldest surviving token, else `min_version`; only `TopicState.reversion` may set it.
    """

    gid: int
    life: int
    prompt: PromptPut
    wanted: int  # rows asked for
    min_version: int
    version: int
    since: float  # entered its state, seconds of the controller's clock
    pending: list[int]  # [consumers] rows that are not ready for it
    state: State = "admitted"
    open: bool = True
    holder: str | None = None  # "name#incarnation" that generates it
    fence: int = -1  # of the present attempt
    held_version: int = -1  # the holder's loaded version at hand-out, or a newer one that it had before the first token: none of the attempt is older
    deadline: float = 0.0  # of the generation lease
    timer: Timer | None = None  # asks at the deadline
    lapses: int = 0  # attempts that made no progress for `lease_s`
    attempt_tokens: int = 0
    attempt_oldest: int | None = None
    rows: dict[int, Row] = field(default_factory=dict)
    closed: bool = False
    leased_by: set[int] = field(default_factory=set)  # terminal consumers
    acked_by: set[int] = field(default_factory=set)  # terminal consumers that trained it
    blocks: set[BlockId] = field(default_factory=set)  # of the rows' columns

    def missing_rows(self) -> list[int]:
        return [index for index in range(self.wanted) if index not in self.rows]

    def measured_version(self) -> int:
        oldest = [row.oldest for row in self.rows.values()]
        if self.attempt_oldest is not None:
            oldest.append(self.attempt_oldest)
        return min(oldest, default=self.min_version)

    def served(self, number: int, row: Row | None) -> bool:
        """Whether consumer `number` has acknowledged this row (None: the group), maybe under another lease."""
        return any(part.missing[number] == SERVED for part in ([row] if row is not None else self.rows.values()))

    def newest(self) -> int:
        """Version of the newest token in its rows; 0 without rows."""
        return max((row.newest for row in self.rows.values()), default=0)

    def tokens(self) -> int:
        """Tokens in finished rows."""
        return sum(row.tokens for row in self.rows.values())

    def started_version(self) -> int | None:
        """What expiry looks at: the oldest surviving token, else the weights that make its first, else None (not started)."""
        if self.rows or self.attempt_oldest is not None:
            return self.version
        return self.held_version if self.holder is not None else None

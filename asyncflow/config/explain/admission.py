"""Flow control: how many groups may be open, what weights a group may start from, and whether the window or the bytes bind first."""

from __future__ import annotations

import bisect
from typing import Literal

import msgspec

from transfer_queue.controller.window import WindowRules
from transfer_queue.messages import TopicSpec

MOST_LINES = 8  # of the worked table
CEILING = 1 << 40  # groups: beyond it nothing is counted


class MinVersion(msgspec.Struct, frozen=True):
    """One line of the worked table: with this many groups open, the next one asks for weights of this version."""

    open_from: int
    open_to: int
    version: int


class Admission(msgspec.Struct, frozen=True):
    """Rules of the window with this run's numbers in them."""

    policy: str
    staleness: int | None  # k; None: bounded by bytes only
    batch_groups: int  # B
    capacity_groups: int | None  # (k + 1) × B; None without a bound
    capacity_rows: int | None
    byte_groups: int  # groups that the byte budget lets in
    permits: int  # most groups open at once: the smaller of the two
    bound_by: Literal["window", "bytes"]
    min_version: str  # the rule, in words and numbers
    reissue: str  # the same for an attempt that was lost
    worked_at: int | None  # the trainer's version in the table below
    worked: list[MinVersion]
    reissue_example: str
    expiry: str


def admission(topic: TopicSpec) -> Admission:
    rules = WindowRules(topic.window)
    unbounded = WindowRules(msgspec.structs.replace(topic.window, staleness=None))
    permits, by_bytes = most_open(rules), most_open(unbounded)
    k, batch = rules.staleness, rules.batch
    return Admission(
        policy=topic.window.policy,
        staleness=k,
        batch_groups=batch,
        capacity_groups=rules.capacity,
        capacity_rows=None if rules.capacity is None else rules.capacity * topic.rows_per_group,
        byte_groups=by_bytes,
        permits=permits,
        bound_by="window" if permits == rules.capacity else "bytes",
        min_version="none: any weights will do" if k is None else f"v − {k} + ⌊open / {batch}⌋, never below 0",
        reissue="none: any weights will do" if k is None else f"the larger of its own min_version and v − {k} + ⌊(open − 1) / {batch}⌋",
        worked_at=None if k is None else _clock(k),
        worked=[] if k is None else _table(rules, _clock(k), permits),
        reissue_example="" if k is None else _reissue(rules, _clock(k), permits),
        expiry=_expiry(rules),
    )


def most_open(rules: WindowRules) -> int:
    """Groups that can be open at once: the first count at which the controller gives no permit any more."""
    return bisect.bisect_left(range(CEILING), True, key=lambda count: not rules.has_permit(count))


def _clock(staleness: int) -> int:
    """A version at which no min_version is cut off at 0."""
    return max(10, staleness + 1)


def _table(rules: WindowRules, clock: int, permits: int) -> list[MinVersion]:
    """Counts of open groups below the last permit, in stretches of one min_version; the middle is left out where there are many."""
    starts = range(0, permits, rules.batch)
    shown = [*starts] if len(starts) <= MOST_LINES else [*starts[: MOST_LINES - 2], *starts[-2:]]
    return [MinVersion(start, min(start + rules.batch, permits) - 1, rules.min_version(clock, start)) for start in shown]


def _reissue(rules: WindowRules, clock: int, permits: int) -> str:
    admitted = rules.min_version(clock - 1, 0)
    needed = rules.restart_version(clock, permits, admitted)
    return (
        f"at v = {clock} with {permits} groups open, a lost attempt of a group that was admitted at v = {clock - 1} with min_version {admitted} "
        f"starts again from version {needed} or newer"
    )


def _expiry(rules: WindowRules) -> str:
    if rules.expires:
        assert rules.staleness is not None
        first = next(clock for clock in range(rules.staleness + 2) if rules.is_stale(0, clock))
        what = "its prompt is handed out again" if rules.spec.requeue else "the source's next prompt takes its place"
        return f"a started group that no trainer holds is dropped at the commit that makes version (its own + {first}); {what}"
    return "nothing expires: nobody overtakes, so nothing gets too old" if rules.ordered else "nothing expires: nothing is too old without a bound"

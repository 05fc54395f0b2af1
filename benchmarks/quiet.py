"""Goals are judged only where the machine had nothing else to do: a speed measured beside others is theirs as much as ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import msgspec

from benchmarks.harness import Row
from benchmarks.processes import idle_share, usage

BUSY = 0.2  # share of the CPU that others may take before and after a part; beyond it nothing is claimed


def judged(part: Callable[[], Iterable[Row]], *, is_quick: bool, timed: bool) -> list[Row]:
    """The rows of one part. `timed` False: what it measures does not depend on who else computes."""
    if is_quick:
        return [unclaimed(row, "--quick") for row in part()]
    before = others_share()
    rows = list(part())
    busy = max(before, others_share())
    if busy > BUSY and timed:
        return [unclaimed(row, f"others took {busy:.0%} of the CPU") for row in rows]
    return rows


def unclaimed(row: Row, why: str) -> Row:
    return msgspec.structs.replace(row, met=None, note="; ".join(filter(None, [row.note, f"not claimed: {why}"])))


def others_share() -> float:
    """Of the machine's CPU, looked at for a second in which this benchmark does nothing."""
    before = usage({})
    time.sleep(1.0)
    return 1.0 - idle_share(before, usage({}))

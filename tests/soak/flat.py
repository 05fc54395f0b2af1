"""Memory and descriptors that grow, told from those that only go up and down.

The rule. Of a process that is WARM_S old or more, a sample is taken every few seconds. Over the run: the median of a kind's samples (all processes
and their lives) in the last third of the time must not exceed that of the middle third by more than the slack. Over a life: the same of each single
life that lasts half of the run or longer; some processes are never killed for this. The first third is left out: it fills caches and warm memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import msgspec

WARM_S = 10.0
LEAST = 4  # samples of a third
MEMORY_SHARE, MEMORY_BYTES = 0.05, 2 << 20  # slack: so much of the median, and so much besides
DESCRIPTORS = 8  # slack: a connection here or there


class Sample(msgspec.Struct, frozen=True):
    t: float
    kind: str
    life: str  # "shard-1.3": a process
    age_s: float
    pss_bytes: int
    descriptors: int


class Growth(msgspec.Struct, frozen=True):
    """Of a kind, or of a life: medians of the middle third and of the last."""

    of: str
    pss_bytes: tuple[float, float]
    descriptors: tuple[float, float]

    def problems(self) -> list[str]:
        found = []
        before, after = self.pss_bytes
        if after > before * (1 + MEMORY_SHARE) + MEMORY_BYTES:
            found.append(f"memory of {self.of} grows: {before / 1e6:.1f} MB in the middle of its time, {after / 1e6:.1f} at its end")
        before, after = self.descriptors
        if after > before + DESCRIPTORS:
            found.append(f"descriptors of {self.of} grow: {before:g} in the middle of its time, {after:g} at its end")
        return found


def growths(samples: Sequence[Sample], begin: float, end: float) -> list[Growth]:
    """Of the load from `begin` to `end`; kinds and lives of which there are too few samples are left out."""
    warm = [sample for sample in samples if sample.age_s >= WARM_S and begin <= sample.t <= end]
    kinds, lives = defaultdict[str, list[Sample]](list), defaultdict[str, list[Sample]](list)
    for sample in warm:
        kinds[sample.kind].append(sample)
        lives[sample.life].append(sample)
    found = [_growth(f"all of kind {kind}", mine, begin, end) for kind, mine in sorted(kinds.items())]
    for life, mine in sorted(lives.items()):
        if mine[-1].t - mine[0].t >= (end - begin) / 2:
            found.append(_growth(life, mine, mine[0].t, mine[-1].t))
    return [growth for growth in found if growth is not None]


def _growth(of: str, samples: Sequence[Sample], begin: float, end: float) -> Growth | None:
    third = (end - begin) / 3
    middle = [sample for sample in samples if begin + third <= sample.t < begin + 2 * third]
    last = [sample for sample in samples if begin + 2 * third <= sample.t]
    if min(len(middle), len(last)) < LEAST:
        return None
    before, after = [(median(sample.pss_bytes for sample in part), median(sample.descriptors for sample in part)) for part in (middle, last)]
    return Growth(of, (before[0], after[0]), (before[1], after[1]))

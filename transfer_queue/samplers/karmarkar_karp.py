"""A batch cut into parts of equal counts and of nearly equal sums: a data-parallel step lasts as long as its longest rank.

Karmarkar and Karp, "The differencing method of set partitioning" (1982), with equal counts as in Michiels et al., "Performance ratios for
the differencing method applied to the balanced number partitioning problem" (2003). Neither it nor the greedy rule wins always: the better is taken.
"""

from __future__ import annotations

import heapq

import numpy as np

Parts = list[list[int]]


def balanced(weights: np.ndarray, parts: int) -> list[np.ndarray]:
    """`weights` [n] integers → places of each part, ascending. Counts differ by at most one. Deterministic."""
    values = weights.tolist()
    heaviest_first = np.argsort(-weights.astype(np.int64), kind="stable").tolist()
    found = min((_differencing(values, heaviest_first, parts), _greedy(values, heaviest_first, parts)), key=lambda cut: spread(values, cut))
    return [np.array(sorted(part), dtype=np.int64) for part in found]


def spread(values: list[int], parts: Parts) -> int:
    """Heaviest less lightest part."""
    sums = [sum(values[place] for place in part) for part in parts]
    return max(sums) - min(sums)


def _differencing(values: list[int], heaviest_first: list[int], parts: int) -> Parts:
    """Items of nearly the same weight are dealt one to each part; of what came out, the two most uneven deals are laid together, heavy on light,
    until one is left. A deal gives a part at most one item, and only the last deal is short: so counts differ by at most one."""
    heap: list[tuple[int, int, list[tuple[int, list[int]]]]] = []  # (-spread, serial, parts by weight, heaviest first)
    for serial, begin in enumerate(range(0, len(heaviest_first), parts)):
        deal = [(values[place], [place]) for place in heaviest_first[begin : begin + parts]]
        deal += [(0, []) for _ in range(parts - len(deal))]
        heapq.heappush(heap, (deal[-1][0] - deal[0][0], serial, deal))
    serial = len(heap)
    while len(heap) > 1:
        uneven, other = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
        laid = [(a + b, mine + theirs) for (a, mine), (b, theirs) in zip(uneven, reversed(other), strict=True)]
        laid.sort(key=lambda part: -part[0])
        heapq.heappush(heap, (laid[-1][0] - laid[0][0], serial, laid))
        serial += 1
    return [part for _, part in heap[0][2]] if heap else [[] for _ in range(parts)]


def _greedy(values: list[int], heaviest_first: list[int], parts: int) -> Parts:
    """The heaviest that is left goes to the lightest part that may still have one."""
    least, longer = divmod(len(heaviest_first), parts)  # so many parts may have one more
    cut: Parts = [[] for _ in range(parts)]
    heap = [(0, part) for part in range(parts)]
    for place in heaviest_first:
        weight, part = heapq.heappop(heap)
        while len(cut[part]) == least and not longer:  # it is full
            weight, part = heapq.heappop(heap)
        longer -= len(cut[part]) == least
        cut[part].append(place)
        if len(cut[part]) <= least:
            heapq.heappush(heap, (weight + values[place], part))
    return cut

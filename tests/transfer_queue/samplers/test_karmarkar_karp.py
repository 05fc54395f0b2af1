"""Parts of equal counts and nearly equal sums."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transfer_queue.samplers import balanced

LENGTHS = st.lists(st.integers(0, 9000), max_size=80)


def sums(lengths: list[int], parts: list[np.ndarray]) -> list[int]:
    return [sum(lengths[place] for place in part.tolist()) for part in parts]


def greedy(lengths: list[int], ranks: int) -> list[int]:
    """Sums where the longest that is left goes to the lightest part that has room, counts equal but for one."""
    totals, counts = [0] * ranks, [0] * ranks
    least, longer = divmod(len(lengths), ranks)
    for length in sorted(lengths, reverse=True):
        room = [rank for rank in range(ranks) if counts[rank] < least or (counts[rank] == least and sum(c > least for c in counts) < longer)]
        rank = min(room, key=lambda rank: (totals[rank], rank))
        totals[rank] += length
        counts[rank] += 1
    return totals


@given(LENGTHS, st.integers(1, 9))
def test_every_place_is_in_one_part_and_counts_differ_by_at_most_one(lengths: list[int], ranks: int) -> None:
    parts = balanced(np.array(lengths, dtype=np.int64), ranks)
    assert len(parts) == ranks
    assert sorted(itertools.chain.from_iterable(part.tolist() for part in parts)) == list(range(len(lengths)))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert all((np.diff(part) > 0).all() for part in parts)


@given(LENGTHS, st.integers(1, 9))
def test_the_spread_is_never_worse_than_that_of_greedy(lengths: list[int], ranks: int) -> None:
    found, plain = sums(lengths, balanced(np.array(lengths, dtype=np.int64), ranks)), greedy(lengths, ranks)
    assert max(found) - min(found) <= max(plain) - min(plain)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 30), min_size=2, max_size=8).filter(lambda lengths: len(lengths) % 2 == 0))
def test_two_halves_are_at_most_the_longest_item_further_apart_than_the_best_ones(lengths: list[int]) -> None:
    """Differences of neighbours are what is left to be laid together, so no spread exceeds the largest of them."""
    best = min(abs(sum(lengths) - 2 * sum(half)) for half in itertools.combinations(lengths, len(lengths) // 2))
    found = sums(lengths, balanced(np.array(lengths), 2))
    assert best <= max(found) - min(found) <= best + max(lengths)


def test_lengths_of_a_real_kind_are_balanced_to_a_fraction_of_what_dealing_in_turn_leaves() -> None:
    lengths = np.minimum(8192, np.random.default_rng(7).lognormal(6.5, 1.0, 256)).astype(np.int64)
    totals = [int(lengths[part].sum()) for part in balanced(lengths, 8)]
    dealt = [int(lengths[rank::8].sum()) for rank in range(8)]
    assert max(totals) - min(totals) < 0.01 * (max(dealt) - min(dealt))


@pytest.mark.parametrize("order", [1, -1])
def test_equal_lengths_are_cut_the_same_way_every_time(order: int) -> None:
    lengths = np.array([5, 5, 5, 5, 3, 3, 3, 3])[::order]
    first, again = balanced(lengths, 4), balanced(lengths.copy(), 4)
    assert [part.tolist() for part in first] == [part.tolist() for part in again]
    assert {int(lengths[part].sum()) for part in first} == {8}

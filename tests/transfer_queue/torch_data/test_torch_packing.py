"""Rows into batches by tokens, and steps into shares: nothing lost, nothing twice, nothing too large, for any leases and any numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from transfer_queue.messages import RowRef, Slice
from transfer_queue.torch_data import OpenStep, Receipt
from transfer_queue.torch_data.packing import ByLease, ByTokens, Unit
from transfer_queue.torch_data.receipts import Part
from transfer_queue.torch_data.steps import part_of

LEASES = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=8), max_size=8)  # tokens of the rows of each lease


def ref(gid: int, row: int, tokens: int) -> RowRef:
    return RowRef(gid, row, 0, 0, [Slice(0, 0, 0, tokens)])


def tokens(row: RowRef) -> int:
    (piece,) = row.columns
    assert piece is not None
    return piece.stop


def leases_of(numbers: list[list[int]], rows_per_group: int) -> list[list[RowRef]]:
    """A group is never in two leases."""
    return [[ref(1000 * turn + at // rows_per_group, at % rows_per_group, size) for at, size in enumerate(row)] for turn, row in enumerate(numbers)]


@given(LEASES, st.integers(1, 20), st.integers(1, 3), st.booleans(), st.lists(st.booleans(), min_size=8, max_size=8))
def test_batches_keep_order_groups_and_the_bound_whenever_more_comes(
    numbers: list[list[int]], most: int, rows_per_group: int, groups: bool, rests: list[bool]
) -> None:
    packing, batches = ByTokens(most, tokens, groups), list[list[Unit]]()
    leases = leases_of(numbers, rows_per_group)
    for lease, rows in enumerate(leases):
        packing.add(lease, rows)
        while units := packing.next(rest=rests[lease]):
            batches.append(units)
        assert not (rests[lease] and packing.waiting)
    while units := packing.next(rest=True):
        batches.append(units)
    units = [unit for batch in batches for unit in batch]
    assert [row for unit in units for row in unit.rows] == [row for rows in leases for row in rows]
    assert [unit.lease for unit in units if unit.last] == list(range(len(leases)))
    for batch in batches:
        assert len(batch) == 1 or sum(unit.tokens for unit in batch) <= most
        assert all(unit.tokens == sum(map(tokens, unit.rows)) for unit in batch)
    if groups:
        assert all(len({row.gid for row in unit.rows}) == 1 for unit in units)
        assert len(units) == len({row.gid for rows in leases for row in rows})
    else:
        assert all(len(unit.rows) == 1 for unit in units)


@given(LEASES.filter(bool), st.integers(1, 20))
def test_a_batch_that_is_let_go_for_its_size_could_not_have_held_one_row_more(numbers: list[list[int]], most: int) -> None:
    packing = ByTokens(most, tokens, groups=False)
    for lease, rows in enumerate(leases_of(numbers, 1)):
        packing.add(lease, rows)
    batches = []
    while units := packing.next(rest=True):
        batches.append(sum(unit.tokens for unit in units))
        first = packing._units[0].tokens if packing.waiting else None
        assert first is None or batches[-1] + first > most


def test_by_lease_a_batch_is_what_was_taken() -> None:
    packing = ByLease()
    assert packing.next(rest=True) == []
    rows = [ref(0, 0, 1)]
    packing.add(5, rows)
    (unit,) = packing.next(rest=False)
    assert (unit.lease, unit.last, packing.waiting) == (5, True, False)
    assert unit.rows is rows


@given(st.integers(0, 200), st.integers(1, 16))
def test_shares_add_up_and_differ_by_at_most_one(total: int, parts: int) -> None:
    shares = [part_of(total, part, parts) for part in range(parts)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


def receipt(step: int, size: int, gids: list[int], lease: int, last: bool = True) -> Receipt:
    numbers = np.array(gids, dtype=np.int64)
    return Receipt("w", 0, numbers, numbers, numbers, numbers, (Part(lease, len(gids), last),), step, size)


def test_a_step_is_complete_with_its_last_group_and_names_every_lease_that_has_ended() -> None:
    step = OpenStep()
    assert not step.complete
    step.add(receipt(3, 4, [1, 1, 2], 7, last=False))
    step.add(receipt(3, 4, [3], 7))
    assert (step.number, step.groups, step.leases, step.complete) == (3, 3, [7], False)
    step.add(receipt(3, 4, [4, 4], 9))
    assert (step.leases, step.complete) == ([7, 9], True)
    step.add(receipt(4, 4, [5], 11))  # somebody else has committed it
    assert (step.number, step.groups, step.leases, step.complete) == (4, 1, [11], False)
    step.forget()
    assert step.number is None


def test_a_rank_has_its_share_of_a_step_when_its_own_part_has_come() -> None:
    step = OpenStep(share=(1, 3))  # of 4 groups: 1, 1, 2
    step.add(receipt(0, 4, [9], 1))
    assert step.complete

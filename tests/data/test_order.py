"""The endless order of a finite file."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncflow.data.order import EndlessOrder


@given(st.integers(1, 40), st.integers(0, 5), st.integers(0, 4))
def test_every_epoch_holds_every_row_once(count: int, seed: int, epoch: int) -> None:
    order = EndlessOrder(count, seed)
    assert sorted(order(epoch * count + place) for place in range(count)) == list(range(count))


def test_epochs_and_seeds_have_orders_of_their_own_and_any_position_can_be_asked_again() -> None:
    order = EndlessOrder(50, 1)
    first, second = ([order(epoch * 50 + place) for place in range(50)] for epoch in (0, 1))
    assert first != second
    assert EndlessOrder(50, 2).first(50) != first
    assert [order(150), order(3), order(99)] == [EndlessOrder(50, 1)(150), first[3], second[49]]


def test_the_order_is_the_same_on_every_machine() -> None:
    assert EndlessOrder(8, 7).first(16) == PINNED


PINNED = [3, 4, 7, 0, 1, 2, 5, 6, 1, 0, 6, 3, 7, 5, 2, 4]

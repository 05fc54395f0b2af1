"""Cells one by one, as one row is put, and many at once: the same in both ways."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfer_queue import messages as m
from transfer_queue.controller.errors import RequestError
from transfer_queue.controller.keyed import cells as module
from transfer_queue.controller.keyed.cells import Cells, check_cells

TYPES = (m.CellType("scalar", "float32"), m.CellType("per_token", "int32", (2,)), m.CellType("text", "uint8"))
SLOTS = 6
place = st.tuples(st.integers(0, 1), st.integers(0, 9), st.integers(0, 8), st.integers(0, 24))
row = st.tuples(place, st.integers(0, len(TYPES) - 1))


def message(rows: list[tuple[tuple[int, int, int, int], int]]) -> m.Cells:
    return m.Cells(TYPES, m.packed([place for place, _ in rows]), m.packed([which for _, which in rows]))


def held(cells: Cells) -> tuple[object, ...]:
    return cells.type.tolist(), cells.places.tolist(), cells.types, cells.count, cells.nbytes_named


@given(st.lists(st.tuples(st.dictionaries(st.integers(0, SLOTS - 1), row, min_size=1), st.sets(st.integers(0, SLOTS - 1)))))
def test_cells_that_are_written_one_by_one_are_those_that_are_written_at_once(writes: list[tuple[dict[int, tuple[object, int]], set[int]]]) -> None:
    one, many = Cells(), Cells()
    for each in (one, many):
        each.cover(SLOTS)
    for rows, lost in writes:
        told = message(list(rows.values()))  # type: ignore[arg-type]
        slots, table = np.array(list(rows), dtype=np.int64), m.places(told.places)
        replaced = many.write(slots, table, told, np.arange(len(rows)))
        singly = [one.write_one(slot, table[at].tolist(), told, at) for at, slot in enumerate(rows)]
        assert [place for place in singly if place is not None] == replaced.tolist()
        for each in (one, many):
            each.lose(np.array([slot for slot in sorted(lost) if each.type[slot] > module.NOTHING], dtype=np.int64))
        assert held(one) == held(many)


@given(st.lists(st.tuples(st.tuples(*[st.integers(-1, 24)] * 4), st.integers(0, len(TYPES) - 1)), min_size=1, max_size=module.FEW))
def test_what_is_wrong_with_a_few_cells_is_what_is_wrong_with_them_among_many(rows: list[tuple[tuple[int, int, int, int], int]]) -> None:
    good = [((0, 1, 0, 4), 0)] * module.FEW
    found = []
    for told in (rows, rows + good):
        try:
            found.append(check_cells("x", message(told), len(told))[: len(rows)].tolist())
        except RequestError as error:
            found.append(error.message)
    assert found[0] == found[1]


@pytest.mark.parametrize("which", [-1, len(TYPES)])
def test_a_type_that_is_not_among_those_of_the_message_is_refused_in_one_row_too(which: int) -> None:
    with pytest.raises(RequestError, match="which"):
        check_cells("x", message([((0, 1, 0, 4), which)]), 1)

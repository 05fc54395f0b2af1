"""The arrays under the controller agree with plain Python: pages, references to blocks, slots and their generations."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from transfer_queue.controller.blocks import Blocks
from transfer_queue.controller.paged import Paged
from transfer_queue.controller.shelf import Shelf
from transfer_queue.controller.tables import FIRST, STEP, RowTable, Table, spread

KEYS = st.one_of(st.integers(0, 600), st.integers(2**62, 2**62 + 300))
PLACES = st.tuples(st.sampled_from([-1, 0, 1, 2**40]), st.integers(0, 5), st.just(0), st.just(1))


@given(batches=st.lists(st.dictionaries(KEYS, st.integers(-1, 3), max_size=30), max_size=20), asked=st.lists(KEYS, max_size=20))
@settings(max_examples=100, deadline=None)
def test_pages_agree_with_a_dict_and_hold_nothing_when_nothing_is_left(batches: list[dict[int, int]], asked: list[int]) -> None:
    paged, model = Paged(-1), dict[int, int]()
    for batch in batches:
        paged.set(np.array(list(batch), dtype=np.int64), np.array(list(batch.values()), dtype=np.int64))
        model.update(batch)
    model = {key: value for key, value in model.items() if value != -1}
    assert paged.get(np.array(asked, dtype=np.int64)).tolist() == [model.get(key, -1) for key in asked] == [paged.find(key) for key in asked]
    assert paged.keys() == sorted(model)
    left = np.array(sorted(model), dtype=np.int64)
    paged.set(left, np.full(len(left), -1))
    assert not paged


@given(held=st.lists(st.lists(st.lists(PLACES, min_size=2, max_size=2), max_size=6), max_size=8), refused=st.lists(PLACES, max_size=6))
@settings(max_examples=100, deadline=None)
def test_a_block_is_freed_once_when_its_last_reference_goes_and_never_by_a_refused_message(
    held: list[list[list[tuple[int, ...]]]], refused: list[tuple[int, ...]]
) -> None:
    """Batches of rows of two columns are held, then released in order; half way through a message is refused."""
    blocks, counts, freed = Blocks(), Counter[tuple[int, int]](), list[tuple[int, int]]()

    def drain() -> list[tuple[int, int]]:
        found = [(shard, block) for shard, numbers in blocks.frees.items() for block in numbers]
        blocks.frees.clear()
        return found

    tables = [np.array(batch, dtype=np.int64).reshape(-1, 2, 4) for batch in held]
    for table in tables:
        blocks.hold(table)
        counts.update((shard, block) for shard, block, *_ in table.reshape(-1, 4).tolist() if shard >= 0)
    assert all(blocks.live(shard) == sorted(block for owner, block in counts if owner == shard) for shard in (0, 1, 2**40))
    for at, table in enumerate(tables):
        if at == len(tables) // 2:
            blocks.refuse(np.array(refused, dtype=np.int64).reshape(-1, 4))
            strangers = {(shard, block) for shard, block, *_ in refused if shard >= 0 and not counts[shard, block]}
            assert sorted(drain()) == sorted(strangers)
        blocks.release(table)
        counts.subtract((shard, block) for shard, block, *_ in table.reshape(-1, 4).tolist() if shard >= 0)
        found = drain()
        assert all(counts[block] == 0 for block in found)
        freed += found
    assert len(freed) == len(set(freed))
    assert set(freed) == set(counts)
    assert not blocks._counts


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(1, 400)), max_size=30))
@settings(max_examples=60, deadline=None)
def test_a_slot_is_used_again_only_under_its_next_generation(steps: list[tuple[bool, int]]) -> None:
    table, mine = Table(), dict[int, int]()  # slot → generation under which we got it
    gone: list[tuple[int, int]] = []
    for take, count in steps:
        if take:
            slots = table.take(count)
            assert len(set(slots.tolist())) == count
            assert mine.keys().isdisjoint(slots.tolist())
            mine.update(zip(slots.tolist(), table.generation[slots].tolist(), strict=True))
        else:
            given_back = sorted(mine)[::2][:count]
            gone += [(slot, mine.pop(slot)) for slot in given_back]
            table.give_back(np.array(given_back, dtype=np.int64))
        assert len(table) == len(mine)
        assert table.slots().tolist() == sorted(mine)
    slots, generations = (np.array(part, dtype=np.int64).reshape(-1) for part in (list(mine), list(mine.values())))
    assert table.alive(slots, generations).all()
    stale = np.array(gone, dtype=np.int64).reshape(-1, 2)
    assert not table.alive(stale[:, 0], stale[:, 1]).any()


def test_a_table_grows_by_a_bounded_step_and_keeps_what_it_holds() -> None:
    table = Table()
    slots = table.take(FIRST)
    table.generation[slots] = np.arange(FIRST)
    table.take(3 * STEP)
    assert table._capacity < FIRST + 5 * STEP
    assert (table.generation[slots] == np.arange(FIRST)).all()
    assert (table.generation[FIRST:] == 0).all()


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(1, 5), st.integers(1, 40)), max_size=40))
@settings(max_examples=80, deadline=None)
def test_a_group_has_places_for_its_rows_side_by_side_and_to_itself(steps: list[tuple[bool, int, int]]) -> None:
    table, mine, written = RowTable(1, 1), dict[int, int](), set[int]()  # first slot → rows asked for; slots that hold a row
    for take, count, rows in steps:
        if take:
            for base in table.take(count, rows).tolist():
                slots = set(range(base, base + rows))
                assert all(slots.isdisjoint(range(other, other + many)) for other, many in mine.items())
                assert not table.there[base : base + rows].any(), "a row of a group that ended would be one of this group"
                mine[base] = rows
                table.there[base + rows // 2] = True
                written.add(base + rows // 2)
        else:
            gone = np.array(sorted(mine)[::2][:count], dtype=np.int64)
            table.give_back(gone, np.array([mine[base] for base in gone.tolist()], dtype=np.int64))
            written -= {base + mine.pop(base) // 2 for base in gone.tolist()}
        assert set(np.flatnonzero(table.there).tolist()) == written
    bases, rows_of = (np.array(part, dtype=np.int64) for part in (list(mine), list(mine.values())))
    slots, owners = spread(bases, rows_of)
    assert slots.tolist() == [base + index for base, rows in mine.items() for index in range(rows)]
    assert owners.tolist() == [number for number, rows in enumerate(mine.values()) for _ in range(rows)]


def test_runs_that_were_given_back_are_used_again() -> None:
    table = RowTable(1, 1)
    for rows in (3, 4, 3):
        bases = table.take(100, rows)
        table.give_back(bases, np.full(100, rows))
    assert table._used == 400


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.sets(st.integers(0, 5000), min_size=1, max_size=40)),
            st.tuples(st.just("next"), st.integers(1, 1500)),
            st.tuples(st.just("one"), st.integers(0, 5000)),
            st.tuples(st.just("remove"), st.integers(0, 5000)),
            st.tuples(st.just("skip"), st.integers(0, 1200)),
        ),
        max_size=30,
    )
)
@settings(max_examples=100, deadline=None)
def test_a_shelf_agrees_with_a_sorted_dict_and_never_changes_what_was_looked_at(steps: list[tuple[str, Any]]) -> None:
    shelf, model = Shelf(), dict[int, int]()
    seen: list[tuple[np.ndarray, list[int]]] = []
    for turn, (what, value) in enumerate(steps):
        ascending = sorted(model)
        if what == "next":  # a stream: behind all others
            first = ascending[-1] + 1 if model else 0
            value = set(range(first, first + value))
        if what in ("add", "next"):
            keys = np.array(sorted(value - model.keys()), dtype=np.int64)
            if len(keys):
                shelf.add(keys, keys * 2 + turn)
            model.update({key: key * 2 + turn for key in keys.tolist()})
        elif what == "one" and value not in model:
            shelf.add_one(value, turn)
            model[value] = turn
        elif what == "remove":
            gone = [key for key in ascending if value <= key < value + 300]
            shelf.remove(np.array(gone, dtype=np.int64))
            model = {key: slot for key, slot in model.items() if key not in gone}
        elif what == "skip":
            count = min(value, len(model))
            shelf.skip(count)
            model = {key: model[key] for key in ascending[count:]}
        keys, slots = shelf.peek(len(model))
        assert list(zip(keys.tolist(), slots.tolist(), strict=True)) == sorted(model.items())
        assert len(shelf) == len(model)
        assert not model or shelf.head() == min(model.items())
        seen.append((slots, slots.tolist()))
    assert all(view.tolist() == before for view, before in seen), "who peeked holds views"


@given(batches=st.lists(st.dictionaries(st.one_of(KEYS, st.integers(0, 40)), st.integers(1, 3), max_size=30), max_size=12), start=st.integers(0, 600))
@settings(max_examples=100, deadline=None)
def test_pages_count_up_and_down_to_nothing_also_along_a_run_of_keys(batches: list[dict[int, int]], start: int) -> None:
    paged, model = Paged(0), Counter[int]()
    batches = [*batches, {start + at: 1 + at % 3 for at in range(300)}]
    for batch in batches:
        keys, more = np.array(list(batch), dtype=np.int64), np.array(list(batch.values()), dtype=np.int64)
        model.update(batch)
        assert paged.add_all(keys, more).tolist() == [model[key] for key in batch]
    for batch in batches:
        keys, more = np.array(list(batch), dtype=np.int64), np.array(list(batch.values()), dtype=np.int64)
        model.subtract(batch)
        assert paged.add_all(keys, -more).tolist() == [model[key] for key in batch]
    assert not paged

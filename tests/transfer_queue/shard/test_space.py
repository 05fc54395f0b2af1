"""Free ranges of the arena: nothing is given twice, nothing is lost, warm memory first, and idle memory goes back."""

from __future__ import annotations

import time
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from transfer_queue.shard.free_ranges import FreeRanges
from transfer_queue.shard.space import Space

PAGE = 256
ROOM = 64 * PAGE
steps = st.lists(st.tuples(st.sampled_from(["take", "give", "split", "cool"]), st.integers(1, 9 * PAGE), st.integers(0, 1 << 20)), max_size=40)


class Bytes:
    """The same arena, a state for each cell of 64 bytes: what `Space` must agree with."""

    def __init__(self) -> None:
        self.free = [True] * (ROOM // 64)
        self.warm = [False] * (ROOM // 64)

    def cells(self, begin: int, nbytes: int) -> range:
        return range(begin // 64, -(-(begin + nbytes) // 64))

    def longest(self, warm: bool) -> int:
        longest = run = 0
        for free, touched in zip(self.free, self.warm, strict=True):
            run = run + 64 if free and touched == warm else 0
            longest = max(longest, run)
        return longest


@given(steps, st.sampled_from([0, 3 * PAGE, ROOM]))
def test_every_byte_is_free_once_or_taken_once_and_warm_where_it_was_touched(history, keep):
    space, model = Space(ROOM, PAGE), Bytes()
    taken: list[tuple[int, int]] = []
    for step, nbytes, choice in history:
        if step == "take":
            warm, cold = model.longest(True), model.longest(False)
            begin = space.take(nbytes)
            if begin is None:
                assert max(warm, cold) < -(-nbytes // 64) * 64
                continue
            cells = model.cells(begin, nbytes)
            assert begin % 64 == 0
            assert all(model.free[cell] for cell in cells), "handed out twice"
            if warm >= -(-nbytes // 64) * 64:
                assert all(model.warm[cell] for cell in cells), "cold memory was taken where warm had room"
            touch = range(begin // PAGE * PAGE // 64, -(-(begin + nbytes) // PAGE) * PAGE // 64)
            for cell in cells:
                model.free[cell] = False
            for cell in touch:
                model.warm[cell] = True
            taken.append((begin, nbytes))
        elif step == "give" and taken:
            given = [taken.pop(choice % len(taken)) for _ in range(min(1 + choice % 3, len(taken)))]
            space.give(given)
            for begin, nbytes in given:
                for cell in model.cells(begin, nbytes):
                    model.free[cell] = True
        elif step == "split" and taken:  # a part of what was taken comes back
            begin, nbytes = taken.pop(choice % len(taken))
            part = choice % nbytes // 64 * 64
            space.give([(begin, part)])
            for cell in model.cells(begin, part):
                model.free[cell] = True
            taken.append((begin + part, nbytes - part))
        elif step == "cool":
            for begin, found in space.cool(keep, nbytes):
                assert begin % PAGE == found % PAGE == 0
                for cell in model.cells(begin, found):
                    assert model.free[cell]
                    assert model.warm[cell]
                    model.warm[cell] = False
        agree(space, model)
    for begin, nbytes in taken:
        space.give([(begin, nbytes)])
    list(space.cool(0, ROOM))
    assert (list(space.warm), list(space.cold)) == ([], [(0, ROOM)]), "neighbours are one range again"


@given(
    st.lists(st.tuples(st.integers(1, 4 * PAGE), st.booleans()), min_size=1, max_size=20),
    st.lists(st.integers(-1, ROOM // 64 + 1), max_size=4),
    st.integers(1, 4 * PAGE),
)
def test_a_range_begins_where_it_rather_should_if_that_is_free_and_warm_and_nothing_else_changes(history, cells, nbytes):
    """Where a range with no whole page lies there, it may begin anywhere: such are not looked for."""
    space, model = Space(ROOM, PAGE), Bytes()
    for size, free in history:
        begin = space.take(size)
        if begin is None:
            continue
        for cell in range(begin // PAGE * PAGE // 64, -(-(begin + size) // PAGE) * PAGE // 64):
            model.warm[cell] = True
        for cell in model.cells(begin, size):
            model.free[cell] = False
        if free:
            space.give([(begin, size)])
            for cell in model.cells(begin, size):
                model.free[cell] = True
    rather = [64 * cell for cell in cells]
    wanted = [begin for begin in rather if begin >= 0 and is_warm_room(model, begin, nbytes)]
    paged = [begin for begin in wanted if any(low <= begin < high and -(-low // PAGE) < high // PAGE for low, high in space.warm)]
    begin = space.take(nbytes, rather)
    if paged:
        assert begin == paged[0]
    if begin is not None:
        for cell in model.cells(begin, nbytes):
            assert model.free[cell], "handed out twice"
            model.free[cell] = False
        for cell in range(begin // PAGE * PAGE // 64, -(-(begin + nbytes) // PAGE) * PAGE // 64):
            model.warm[cell] = True
    agree(space, model)


def is_warm_room(model: Bytes, begin: int, nbytes: int) -> bool:
    cells = model.cells(begin, nbytes)
    return cells.stop <= len(model.free) and all(model.free[cell] and model.warm[cell] for cell in cells)


def agree(space: Space, model: Bytes) -> None:
    for ranges, warm in ((space.warm, True), (space.cold, False)):
        cells = [cell for begin, end in ranges for cell in range(begin // 64, end // 64)]
        assert cells == [cell for cell, free in enumerate(model.free) if free and model.warm[cell] == warm]
        assert ranges.nbytes == 64 * len(cells)
        inside = Counter(cell // (PAGE // 64) for cell in cells)
        assert ranges.paged_bytes == PAGE * sum(count == PAGE // 64 for count in inside.values())


def test_the_smallest_warm_range_that_serves_is_taken_and_the_lowest_of_equals():
    space = Space(ROOM, PAGE)
    begins = [space.take(size) for size in (640, 64, 320, 64, 320, 64)]
    for turn, size in ((0, 640), (2, 320), (4, 320)):
        space.give([(begins[turn], size)])
    assert [space.take(300), space.take(300), space.take(300)] == [begins[2], begins[4], begins[0]]


def test_what_is_kept_is_the_low_end_and_no_more_is_cooled_at_a_time_than_asked_for():
    space = Space(ROOM, PAGE)
    space.give([(space.take(20 * PAGE), 20 * PAGE)])
    assert list(space.cool(5 * PAGE, 4 * PAGE)) == [(16 * PAGE, 4 * PAGE)]
    assert list(space.cool(5 * PAGE, ROOM)) == [(5 * PAGE, 11 * PAGE)]
    assert list(space.cool(5 * PAGE, ROOM)) == []


def test_a_write_that_no_warm_range_holds_begins_in_the_warm_end_before_the_cold():
    space = Space(ROOM, PAGE)
    space.give([(space.take(3 * PAGE), 3 * PAGE)])
    assert space.take(5 * PAGE) == 0
    assert space.warm.nbytes == 0


def test_the_cost_of_an_operation_does_not_grow_with_what_is_stored():
    """Generous, for the machine may be loaded: a scan of the ranges would cost hundreds of times more at the larger size."""

    def seconds_each(ranges: int) -> float:
        space = Space(ranges * 4096 * 4, 4096)
        begins = [space.take(128) for _ in range(2 * ranges)]
        for begin in begins[::2]:
            space.give([(begin, 128)])  # `ranges` holes
        best = float("inf")
        for _ in range(5):
            started = time.perf_counter()
            for _ in range(100):
                begin = space.take(64)
                space.give([(begin, 64)])
            best = min(best, time.perf_counter() - started)
        return best / 100

    assert seconds_each(30_000) < 20 * seconds_each(30)


def test_ranges_that_touch_are_one_and_an_empty_one_is_none():
    ranges = FreeRanges(PAGE)
    ranges.add(0, 64)
    ranges.add(128, 192)
    ranges.add(64, 64)
    assert list(ranges) == [(0, 64), (128, 192)]
    ranges.add(64, 128)
    assert (list(ranges), ranges.nbytes) == ([(0, 192)], 192)
    assert (ranges.ending_at(192), ranges.ending_at(128), ranges.best_fit(193), ranges.best_fit(1)) == (0, None, None, 0)

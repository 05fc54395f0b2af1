"""A writer's view of a shard's arena: the right bytes, whatever was mapped before, and pages mapped many at a time."""

from __future__ import annotations

import mmap
import resource

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_arena import SparseArena
from transfer_queue.memory.mapping import CHUNK, mapping

SIZE = 8 * CHUNK


def test_what_is_written_into_a_room_lies_there_whatever_was_mapped_before() -> None:
    arena = SparseArena(SIZE, user="test")
    found = mapping(arena.descriptor())
    places = st.tuples(st.integers(0, SIZE), st.integers(0, SIZE))

    @given(st.lists(places, max_size=4))
    def check(history: list[tuple[int, int]]) -> None:
        for number, (one, other) in enumerate(history, start=1):
            begin, end = sorted((one, other))
            room = found.room(begin, end - begin)
            assert len(room) == end - begin
            room[:] = number
            expected = arena.array.copy()
            expected[begin:end] = number
            assert np.array_equal(arena.array, expected)
            assert np.array_equal(found.readable[begin:end], room)

    check()
    arena.close()


def test_memory_that_another_warmed_costs_a_writer_few_faults() -> None:
    arena = SparseArena(SIZE, user="test")
    arena.array[:] = 1
    found = mapping(arena.descriptor())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    found.room(CHUNK // 2, SIZE - CHUNK)[:] = 2
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    arena.close()
    assert faults < (SIZE - CHUNK) // mmap.PAGESIZE // 4


def test_a_room_takes_memory_for_itself_alone() -> None:
    """Pages beside it belong to nobody yet."""
    arena = SparseArena(SIZE, user="test")
    found = mapping(arena.descriptor())
    empty = arena.resident_bytes()
    found.room(CHUNK + 5 * mmap.PAGESIZE, 2 * CHUNK)[:] = 1
    assert arena.resident_bytes() - empty == 2 * CHUNK
    arena.close()


@pytest.mark.parametrize("nbytes", [0, 1, mmap.PAGESIZE])
def test_rooms_at_the_very_end(nbytes: int) -> None:
    arena = SparseArena(SIZE, user="test")
    mapping(arena.descriptor()).room(SIZE - nbytes, nbytes)[:] = 7
    assert (arena.array[SIZE - nbytes :] == 7).all()
    arena.close()

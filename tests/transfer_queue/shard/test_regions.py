"""Regions one by one: the memory they keep, what a writer gone wild can do there, numbers that come to an end. Histories: test_region_history.py."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transfer_queue.ahead import Room
from transfer_queue.codec import pack
from transfer_queue.layout import Extent, Layout
from transfer_queue.memory.glimpse import find, still_there
from transfer_queue.memory.mapping import mapping
from transfer_queue.shard import messages as m
from transfer_queue.shard import regions
from transfer_queue.shard.answers import Answers
from transfer_queue.shard.extent import PAGE
from transfer_queue.shard.refused import Refused
from transfer_queue.shard.region import BLOCKS, HEAD, PUTS_AT, REGION_BYTES, TABLE_BYTES, begins_of, region_of
from transfer_queue.shard.store import Store

OWNER = "writer-0#0"


class Shard:
    """One with room for regions, and a process that writes to it."""

    def __init__(self, keep_bytes: int = 1 << 30) -> None:
        self.answers = Answers(Store(64 * REGION_BYTES, keep_bytes))
        self.store = self.answers.store
        self.memory = mapping(self.store.arena.descriptor())
        self.process = subprocess.Popen(["sleep", "600"])
        for name in (b"one", b"two"):
            self.answers.answer(name, m.Join(owner=OWNER, pid=self.process.pid), [])

    def room(self, sender: bytes = b"one") -> Room:
        reply = self.answers.answer(sender, m.ReserveAhead(owner=OWNER), [])
        assert reply is not None
        assert isinstance(reply[0], m.ReservedAhead)
        return Room(self.memory, reply[0])

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.answers.collect(1 << 30)

    def close(self) -> None:
        self.end()
        self.answers.close()


@pytest.fixture
def shard() -> Iterator[Shard]:
    shard = Shard()
    yield shard
    shard.close()


def rows(count: int, nbytes: int, seed: int = 0) -> tuple[Extent, np.ndarray]:
    """Rows of so many bytes, each a group of its own."""
    data = np.random.default_rng(seed).integers(0, 256, (count, nbytes), dtype="uint8")
    return Extent(Layout.of(range(count)), {"x": pack("x", data)}), data


def test_memory_of_freed_rows_goes_back_though_a_neighbour_in_their_region_stays():
    shard = Shard(keep_bytes=0)
    empty = shard.store.arena.resident_bytes()
    extent, data = rows(1, 1024)
    room = shard.room()
    blocks = [block for _ in range(1500) for block in (room.put(extent) or ())]
    assert shard.store.arena.resident_bytes() - empty > 1500 * 1024
    stays = blocks.pop(700)
    shard.store.free(blocks)
    while shard.store.cool(1 << 30):
        pass
    left = shard.store.arena.resident_bytes() - empty
    assert left <= 2 * PUTS_AT + 8 * PAGE, "directories, a page of the table, and the pages around one row"
    shard.store.look()
    assert shard.store.used_bytes == 1024
    begins = find(shard.memory, np.array([stays]))
    assert shard.memory.readable[begins[0] : begins[0] + 1024].tobytes() == data.tobytes()
    shard.close()


def test_a_region_that_was_sealed_goes_with_its_last_row_and_its_numbers_are_never_used_again(shard):
    seen: set[int] = set()
    for turn in range(20):
        room = shard.room()
        extent, _ = rows(3, 100, turn)
        blocks = list(room.put(extent) or ())
        assert seen.isdisjoint(blocks)
        seen.update(blocks)
        shard.answers.answer(b"one", m.Seal(region=room.region), [])
        assert still_there(shard.memory, np.array(blocks))
        shard.store.free(blocks)
        assert find(shard.memory, np.array(blocks)) is None
        assert shard.store.regions._all == {}
    assert {block & (1 << 25) - 1 for block in seen} == {0, 1, 2}, "all of one slot"


def test_where_slots_or_their_uses_come_to_an_end_nothing_is_reserved_any_more(shard, monkeypatch):
    monkeypatch.setattr(regions, "SLOTS", 1)
    monkeypatch.setattr(regions, "USES", 2)
    for _ in range(2):
        room = shard.room()
        with pytest.raises(Refused, match="no place for one more"):
            shard.room()
        shard.answers.answer(b"one", m.Seal(region=room.region), [])
    with pytest.raises(Refused, match="no place for one more"):
        shard.room()


numbers = st.integers(0, 2**32 - 1) | st.integers(0, 3) | st.sampled_from([PUTS_AT + 64 * at for at in range(1, 40)])
scribbles = st.lists(st.tuples(st.integers(0, 40), st.lists(numbers, min_size=4, max_size=4), st.integers(0, BLOCKS - 1)), max_size=12)


@settings(max_examples=60, deadline=None)
@given(scribbles, st.booleans(), st.integers(0, 2**32 - 1))
def test_whatever_a_writer_scribbles_into_its_region_the_shards_books_stay_sound_and_others_rows_stay(places, sealed, seed):
    shard = Shard()
    mine, other = shard.room(b"one"), shard.room(b"two")
    extent, data = rows(4, 200, seed)
    theirs = list(other.put(extent) or ())
    for at, head, block in places:
        begin = PUTS_AT + 64 * at
        if begin >= PUTS_AT + HEAD.size:
            HEAD.pack_into(mine._memory.data, begin - HEAD.size, head[0], head[1] % 6, head[2] % 6, 0)
        begins_of(mine._memory)[block] = begin if head[3] % 3 else head[3]
    first = mine.blocks(0).start
    shard.store.free([first + block for _, _, block in places[::2]])
    shard.store.look()
    disjoint(shard.store)
    if sealed:
        shard.answers.answer(b"one", m.Seal(), [])
        disjoint(shard.store)
    shard.store.sweep(OWNER, theirs)
    disjoint(shard.store)
    begins = find(shard.memory, np.array(theirs))
    assert begins is not None
    assert [shard.memory.readable[begin + 200 * row : begin + 200 * row + 200].tobytes() for row, begin in enumerate(begins)] == list(
        map(bytes, data)
    )
    shard.store.free(theirs)
    shard.end()
    store = shard.store
    assert (store.used_bytes, store.extents, store.blocks, store.regions._all, store.regions.ahead_bytes) == (0, 0, {}, {}, 0)
    assert store.space.warm.nbytes + store.space.cold.nbytes == store.arena.nbytes - TABLE_BYTES
    shard.answers.close()


def disjoint(store: Store) -> None:
    """No byte is two extents', or both an extent's and free."""
    spans = [(extent.offset - extent.head, extent.offset + extent.nbytes) for extent in set(store.blocks.values()) if extent.left == extent.groups]
    spans = sorted((begin, end) for begin, end in [*spans, *store.space.warm, *store.space.cold] if begin < end)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


def test_a_block_of_a_region_is_told_from_all_others_by_its_number(shard):
    shard.store.begin(5)
    ordinary = shard.store.write("a#0", [b"x"], [[0, 1]]).first
    extent, _ = rows(1, 10)
    block = (shard.room().put(extent) or range(0))[0]
    assert ordinary >> 40 == block >> 40 == 5
    assert region_of(block) in shard.store.regions._all
    assert region_of(ordinary) not in shard.store.regions._all

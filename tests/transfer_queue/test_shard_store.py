"""A shard's memory: exact to the byte, gone when a group goes, whole or not at all. Whole histories: shard/test_shard_history.py."""

from __future__ import annotations

import gc
import time
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfer_queue import messages as m
from transfer_queue.codec import pack
from transfer_queue.columns import Jagged
from transfer_queue.gather import Gather
from transfer_queue.layout import Extent, Layout
from transfer_queue.memory.buffers import Buffers
from transfer_queue.shard.extent import PAGE
from transfer_queue.shard.loans import WORTH_BYTES, Loans
from transfer_queue.shard.messages import Ranges
from transfer_queue.shard.refused import Refused
from transfer_queue.shard.store import ROOM, Store

runs = st.lists(st.integers(-5, 5), max_size=4)
writes = st.lists(st.lists(st.tuples(st.integers(0, 4), runs), max_size=8), max_size=5)  # per write: rows of (gid, values)
SPEC = m.TopicSpec(
    name="t",
    model="policy",
    columns=(m.Column("ids", "int16", "per_token", "rollout"),),
    consumers=(),
    window=m.Window(batch=1, staleness=None),
)


def whole(block: int, length: int) -> Ranges:
    return Ranges(blocks=[block], starts=[0], stops=[length])


def read(store: Store, ranges: Ranges) -> bytes:
    return b"".join(store.arena.array[begin:end].tobytes() for begin, end in store.runs(ranges))


@given(writes, st.integers(1, 3), st.randoms())
def test_rows_written_in_any_grouping_to_any_shard_come_back_in_the_order_asked_for(batches, shards, rng):
    stores = [Store(1 << 20) for _ in range(shards)]
    rows: list[tuple[int, list[int], m.Slice]] = []
    for batch in filter(None, batches):
        gids = [gid for gid, _ in batch]
        extent = Extent(Layout.of(gids), {"ids": pack("ids", Jagged.of([values for _, values in batch], "int16"))})
        shard = rng.randrange(shards)
        first = stores[shard].write("rollout-0#0", [memoryview(piece) for _, piece in extent.pieces()], extent.cuts).first
        rows += [(gid, values, found) for (gid, values), found in zip(batch, extent.slices(shard, first)["ids"], strict=True)]
    rng.shuffle(rows)
    gather = Gather("ids", [gid for gid, _, _ in rows], [found for _, _, found in rows], SPEC)
    for shard in gather.shards():
        gather.add(shard, np.frombuffer(read(stores[shard], gather.ranges(shard)), dtype=np.uint8))
    assert [run.tolist() for run in gather.result(Buffers())] == [values for _, values, _ in rows]
    for store in stores:
        store.close()


def test_the_memory_of_a_group_goes_with_the_group_though_others_of_its_write_stay():
    store, groups, size = Store(1 << 30, keep_bytes=0), 64, 1 << 16
    before = store.arena.resident_bytes()
    first = store.write("rollout-0#0", [bytes(groups * size)], [list(range(0, groups * size + 1, size))]).first
    store.free(range(first, first + groups - 1))  # all but the last
    store.cool(1 << 30)
    assert store.arena.resident_bytes() - before == size
    store.free([first + groups - 1])
    store.cool(1 << 30)
    assert store.arena.resident_bytes() == before


def test_no_more_than_keep_bytes_stay_warm_and_they_are_written_to_first():
    store = Store(1 << 20, keep_bytes=4 * PAGE)
    before = store.arena.resident_bytes()
    store.free([store.write("a#0", [bytes(16 * PAGE)], [[0, 16 * PAGE]]).first])
    assert store.cool(3 * PAGE) == 9 * PAGE, "a little at a time"
    assert store.cool(1 << 20) == 0
    assert store.arena.resident_bytes() - before == 4 * PAGE
    store.write("a#0", [bytes(4 * PAGE)], [[0, 4 * PAGE]])
    assert store.arena.resident_bytes() - before == 4 * PAGE, "the warm pages were used"


def test_what_does_not_fit_is_refused_with_the_numbers_and_changes_nothing():
    store = Store(10)
    store.write("a#0", [b"123456"], [[0, 6]])
    with pytest.raises(Refused, match=r"5 bytes do not fit: 6 of capacity_bytes=10") as refused:
        store.write("a#0", [b"12345"], [[0, 5]])
    assert (refused.value.code, store.used_bytes, len(store.blocks)) == ("capacity", 6, 1)
    store.write("a#0", [b"1234"], [[0, 4]])  # exactly full


@pytest.mark.parametrize("nbytes", [1001, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_reservation_of_more_than_there_is_takes_nothing(nbytes):
    store = Store(1000)
    with pytest.raises(Refused, match=f"{nbytes} bytes do not fit") as refused:
        store.reserve("a#0", [[0, nbytes]])
    assert (refused.value.code, store.used_bytes, store.space.warm.nbytes) == ("capacity", 0, 0)
    with pytest.raises(Refused, match=f"{3 * nbytes} bytes do not fit"):
        store.reserve("a#0", [[0, nbytes]] * 3)


def test_readers_that_hoard_what_was_freed_are_named_when_the_arena_runs_full():
    store = Store(PAGE)
    held = []
    for _ in range(ROOM):
        held.append(store.write("a#0", [bytes(PAGE)], [[0, PAGE]]).first)
        store.hold(held[-1:])
        store.free(held[-1:])
    with pytest.raises(Refused, match=rf"Readers hold {ROOM * PAGE} bytes that were freed") as refused:
        store.write("a#0", [bytes(PAGE)], [[0, PAGE]])
    assert (refused.value.code, len(held), store.held_bytes) == ("capacity", ROOM, ROOM * PAGE)
    store.release(held[:1])
    store.write("a#0", [bytes(PAGE)], [[0, PAGE]])


@pytest.mark.parametrize(
    ("frames", "cuts"),
    [
        ([b"ab"], []),
        ([], [[0]]),
        ([], []),
        ([b""], [[0]]),
        ([b"ab"], [[0, 3]]),
        ([b"ab"], [[1, 2]]),
        ([b"ab"], [[0, 5, 2]]),
        ([b"ab"], [[0, -1, 2]]),
        ([b"ab"], [[]]),
        ([b"ab", b"c"], [[0, 2], [0, 0, 1]]),
    ],
)
def test_cuts_that_do_not_fit_the_frames_are_refused_and_change_nothing(frames, cuts):
    store = Store(100)
    with pytest.raises(Refused) as refused:
        store.write("a#0", frames, cuts)
    assert (refused.value.code, store.used_bytes, store.blocks) == ("malformed", 0, {})


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 4), (2, 1), (2, 3), (64, 65), (0, 65), (2**63, 2**63 + 1), (67, 68)])
def test_a_range_that_is_not_the_blocks_own_is_refused(start, stop):
    store = Store(100)
    block = store.write("a#0", [b"abcdef", b"12"], [[0, 3, 6], [0, 1, 2]]).first + 1
    assert read(store, Ranges([block, block], [3, 65], [6, 66])) == b"def2"
    with pytest.raises(Refused, match=f"are not block {block}'s"):
        store.runs(Ranges([block], [start], [stop]))


def test_ranges_of_unequal_lengths_are_refused():
    store = Store(100)
    block = store.write("a#0", [b"abc"], [[0, 3]]).first
    with pytest.raises(Refused, match="they go together"):
        store.check_read([Ranges(blocks=[block], starts=[0, 1], stops=[3])])


def test_a_read_of_more_than_the_shard_may_hold_is_refused_before_it_is_gathered():
    store = Store(capacity_bytes=1000)
    first = store.write("a#0", [b"x" * 600], [[0, 600]]).first
    store.check_read([whole(first, 600)])
    with pytest.raises(Refused, match="1200 bytes"):
        store.check_read([whole(first, 600), whole(first, 600)])


def test_a_column_of_neighbouring_groups_is_sent_without_a_copy_and_its_bytes_stay_until_the_socket_lets_go():
    store = Store(1 << 20, keep_bytes=0)
    data = np.random.default_rng(0).bytes(2 * WORTH_BYTES)
    first = store.write("a#0", [data], [[0, WORTH_BYTES, 2 * WORTH_BYTES]]).first
    blocks, loans = [first, first + 1], Loans(store)
    frame = loans.frame(store.runs(Ranges(blocks, [0, WORTH_BYTES], [WORTH_BYTES, 2 * WORTH_BYTES])), blocks)
    assert isinstance(frame, np.ndarray)
    assert np.shares_memory(frame, store.arena.array)
    store.free(blocks)
    store.cool(1 << 20)
    store.write("a#0", [bytes(4 * WORTH_BYTES)], [[0, 4 * WORTH_BYTES]])
    assert frame.tobytes() == data
    assert store.held_bytes == len(data)
    del frame
    gc.collect()
    loans.collect()
    assert (store.held_bytes, store.lingering) == (0, {})


def test_what_is_scattered_or_small_is_copied_and_holds_nothing():
    store = Store(1 << 20)
    first = store.write("a#0", [b"abcdef"], [[0, 3, 6]]).first
    loans = Loans(store)
    frame = loans.frame(store.runs(Ranges([first + 1, first], [3, 1], [6, 3])), [first, first + 1])
    assert frame == b"defbc"
    store.free([first, first + 1])
    assert (store.held_bytes, store.extents) == (0, 0)


def test_an_incarnation_that_was_swept_writes_no_more_and_its_successor_does():
    store = Store(100)
    filled = store.reserve("rollout-0#3", [[0, 1]])
    store.sweep("rollout-0#3", [filled.first])
    for refuse in (
        lambda: store.write("rollout-0#3", [b"a"], [[0, 1]]),
        lambda: store.reserve("rollout-0#2", [[0, 1]]),
        lambda: store.fill("rollout-0#3", filled.first, 0, b"a"),
    ):
        with pytest.raises(Refused) as refused:
            refuse()
        assert refused.value.code == "stale_owner"
    store.write("rollout-0#4", [b"a"], [[0, 1]])
    store.write("rollout-1#0", [b"a"], [[0, 1]])


def test_chunks_are_filled_in_any_order_within_ones_own_extent_and_not_after_it_was_read():
    store = Store(100)
    extent = store.reserve("a#0", [[0, 3, 6]])
    whole_write = store.write("a#0", [b"abc"], [[0, 3]])
    store.fill("a#0", extent.first, 4, b"ef")
    store.fill("a#0", extent.first, 0, b"abcd")
    for owner, block, start, data, code in (
        ("a#0", extent.first, 5, b"xy", "malformed"),
        ("a#0", extent.first, -1, b"x", "malformed"),
        ("a#0", extent.first, 2**63, b"x", "malformed"),
        ("b#0", extent.first, 0, b"x", "bad_request"),
        ("a#0", extent.first + 1, 0, b"x", "bad_request"),
        ("a#0", 77, 0, b"x", "bad_request"),
        ("a", extent.first, 0, b"x", "malformed"),
        ("a#0", whole_write.first, 0, b"x", "bad_request"),
    ):
        with pytest.raises(Refused) as refused:
            store.fill(owner, block, start, data)
        assert refused.value.code == code
    assert read(store, Ranges([extent.first, extent.first + 1], [0, 3], [3, 6])) == b"abcdef"
    with pytest.raises(Refused, match="on this connection"):
        store.fill("a#0", extent.first, 0, b"x", b"another")
    with pytest.raises(Refused, match="or read"):
        store.fill("a#0", extent.first, 0, b"x")


def test_rows_of_no_bytes_are_stored_and_found():
    store = Store(100)
    extent = store.write("a#0", [b"", b""], [[0, 0, 0], [0, 0, 0]])
    assert (store.used_bytes, store.extents, list(extent.blocks)) == (0, 1, [0, 1])
    assert store.runs(whole(1, 0)) == []
    assert store.free([0, 1, 1]) == 0
    assert store.extents == 0


class Mapper:
    """A process that maps the arena."""

    def __init__(self) -> None:
        self.ended, self.had = False, deque[int]()


def test_a_writer_gets_the_memory_that_it_had_before_whoever_asks_first():
    store, one, two = Store(1 << 24), Mapper(), Mapper()
    before = {writer: store.reserve("a#0", [[0, 40 * PAGE]], writer=writer) for writer in (one, two)}
    for writers in ((two, one), (one, two), (two, one)):
        store.free([extent.first for extent in before.values()])
        after = {writer: store.reserve("a#0", [[0, 40 * PAGE]], writer=writer) for writer in writers}
        assert {writer: extent.offset for writer, extent in after.items()} == {writer: extent.offset for writer, extent in before.items()}
        before = after
    store.close()


def test_a_shard_full_of_small_groups_frees_one_as_fast_as_an_empty_one():
    def seconds_each(stored: int) -> float:
        store = Store(1 << 30)
        for _ in range(stored):
            store.reserve("a#0", [[0, 100], [0, 20]])
        best = float("inf")
        for _ in range(5):
            started = time.perf_counter()
            for _ in range(50):
                store.free([store.reserve("a#0", [[0, 90], [0, 20]]).first])
            best = min(best, time.perf_counter() - started)
        store.close()
        return best

    assert seconds_each(20_000) < 20 * seconds_each(20)

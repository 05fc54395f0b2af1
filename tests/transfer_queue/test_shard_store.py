"""A shard's memory: exact to the byte, gone when a group goes, whole or not at all."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfer_queue import messages as m
from transfer_queue.codec import pack
from transfer_queue.columns import Jagged
from transfer_queue.gather import Gather
from transfer_queue.layout import Layout
from transfer_queue.shard.messages import Ranges
from transfer_queue.shard.store import Refused, Store

runs = st.lists(st.integers(-5, 5), max_size=4)
writes = st.lists(st.lists(st.tuples(st.integers(0, 4), runs), max_size=8), max_size=5)  # per write: rows of (gid, values)
SPEC = m.TopicSpec(
    name="t",
    model="policy",
    columns=(m.Column("ids", "int16", "per_token", "rollout"), m.Column("reward", "float64", "scalar", "reward", optional=True)),
    consumers=(),
    window=m.Window(batch=1, staleness=None),
)


def whole(block: int, length: int) -> Ranges:
    return Ranges(blocks=[block], starts=[0], stops=[length])


@given(writes, st.integers(1, 3), st.randoms())
def test_rows_written_in_any_grouping_to_any_shard_come_back_in_the_order_asked_for(batches, shards, rng):
    stores = [Store(1 << 20) for _ in range(shards)]
    rows: list[tuple[int, list[int], m.Slice]] = []
    for batch in filter(None, batches):
        gids = [gid for gid, _ in batch]
        layout = Layout.of(gids)
        column = layout.sort(pack("ids", Jagged.of([values for _, values in batch], "int16")))
        shard = rng.randrange(shards)
        cuts = [(column.offsets[layout.bounds] * 2).tolist()]
        first = stores[shard].write("rollout-0#0", [memoryview(column.values.view(np.uint8))], cuts)
        rows += [(gid, values, found) for (gid, values), found in zip(batch, layout.slices(shard, first, column), strict=True)]
    rng.shuffle(rows)
    gather = Gather("ids", [gid for gid, _, _ in rows], [found for _, _, found in rows], SPEC)
    for shard in gather.shards():
        gather.add(shard, stores[shard].read(gather.ranges(shard)))
    assert [run.tolist() for run in gather.result()] == [values for _, values, _ in rows]


@pytest.mark.parametrize("seed", range(5))
def test_used_bytes_equal_what_is_stored_through_any_history_and_end_at_zero(seed):
    rng, store = random.Random(seed), Store(4000)
    alive: dict[int, tuple[str, int]] = {}
    seen: set[int] = set()
    for _ in range(400):
        owner = f"rollout-{rng.randrange(3)}#{rng.randrange(50)}"
        match rng.randrange(4):
            case 0 | 1:
                sizes = [rng.randrange(200) for _ in range(rng.randrange(4))]
                marks = [sum(sizes[:end]) for end in range(len(sizes) + 1)]
                try:
                    first = store.write(owner, [bytes(marks[-1])], [marks])
                except Refused:  # full, or the owner was swept: the model does not change, and neither may the store
                    continue
                new = dict.fromkeys(range(first, first + len(sizes)))
                assert not seen & new.keys()
                seen |= new.keys()
                alive |= {block: (owner, size) for block, size in zip(new, sizes, strict=True)}
            case 2:
                freed = rng.sample(sorted(seen), min(len(seen), 5))  # some for the second time
                assert store.free(freed) == sum(alive.pop(block)[1] for block in freed if block in alive)
            case 3:
                keep = {block for block in alive if rng.random() < 0.5}
                store.sweep(owner, keep)
                alive = {block: found for block, found in alive.items() if found[0] != owner or block in keep}
        assert store.used_bytes == sum(size for _, size in alive.values()) == sum(len(block.data) for block in store.blocks.values()) <= 4000
        assert store.blocks.keys() == alive.keys() == set().union(*store.by_owner.values())
    store.free(list(alive))
    assert (store.used_bytes, store.blocks, store.by_owner) == (0, {}, {})


def test_the_memory_of_a_group_goes_with_the_group_though_others_of_its_write_stay():
    store, groups, size = Store(1 << 30), 64, 1 << 16
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        first = store.write("rollout-0#0", [bytes(groups * size)], [list(range(0, groups * size + 1, size))])
        store.free(range(first, first + groups - 1))  # all but the last
        kept = tracemalloc.get_traced_memory()[0] - before
        store.free([first + groups - 1])
        left = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert size <= kept < 2 * size
    assert left < size // 2


def test_what_does_not_fit_is_refused_with_the_numbers_and_changes_nothing():
    store = Store(10)
    store.write("a#0", [b"123456"], [[0, 6]])
    with pytest.raises(Refused, match=r"5 bytes do not fit: 6 of capacity_bytes=10") as refused:
        store.write("a#0", [b"12345"], [[0, 5]])
    assert (refused.value.code, store.used_bytes, len(store.blocks)) == ("capacity", 6, 1)
    store.write("a#0", [b"1234"], [[0, 4]])  # exactly full


@pytest.mark.parametrize(
    ("frames", "cuts"),
    [
        ([b"ab"], []),
        ([], [[0]]),
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


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 4), (2, 1), (4, 4)])
def test_ranges_outside_a_block_are_refused(start, stop):
    store = Store(100)
    block = store.write("a#0", [b"abc"], [[0, 3]])
    with pytest.raises(Refused, match="which has 3"):
        store.read(Ranges(blocks=[block], starts=[start], stops=[stop]))


def test_ranges_of_unequal_lengths_are_refused():
    store = Store(100)
    block = store.write("a#0", [b"abc"], [[0, 3]])
    with pytest.raises(Refused):
        store.read(Ranges(blocks=[block], starts=[0, 1], stops=[3]))


def test_a_read_of_more_than_the_shard_may_hold_is_refused_before_it_is_gathered():
    store = Store(capacity_bytes=1000)
    first = store.write("a#0", [b"x" * 600], [[0, 600]])
    store.check_read([Ranges([first], [0], [600])])
    with pytest.raises(Refused, match="1200 bytes"):
        store.check_read([Ranges([first], [0], [600]), Ranges([first], [0], [600])])


def test_a_whole_block_is_read_without_a_copy():
    store = Store(100)
    block = store.write("a#0", [memoryview(b"abcdef")], [[0, 6]])
    assert store.read(whole(block, 6)) is store.blocks[block].data


def test_an_incarnation_that_was_swept_writes_no_more_and_its_successor_does():
    store = Store(100)
    store.sweep("rollout-0#3", set())
    with pytest.raises(Refused) as refused:
        store.write("rollout-0#3", [b"a"], [[0, 1]])
    assert refused.value.code == "stale_owner"
    store.write("rollout-0#4", [b"a"], [[0, 1]])
    store.write("rollout-1#0", [b"a"], [[0, 1]])


def test_a_shared_slice_is_asked_for_once_and_comes_back_in_every_row():
    first, second = m.Slice(0, 5, 0, 2), m.Slice(0, 6, 0, 3)
    gather = Gather("ids", [1, 1, 1, 2, 1], [first, first, first, second, first], SPEC)
    asked = gather.ranges(0)
    assert asked == Ranges(blocks=[5, 6, 5], starts=[0, 0, 0], stops=[4, 6, 4])
    gather.add(0, np.array([1, 2, 3, 4, 5, 1, 2], dtype="int16").tobytes())
    assert [run.tolist() for run in gather.result()] == [[1, 2], [1, 2], [1, 2], [3, 4, 5], [1, 2]]
    assert gather.owners(0, [6]) == {2}


def test_a_missing_optional_scalar_is_masked_and_a_missing_required_column_is_an_error():
    gather = Gather("reward", [7, 8], [None, m.Slice(0, 5, 0, 1)], SPEC)
    gather.add(0, np.float64(2.5).tobytes())
    reward = gather.result()
    assert reward.mask.tolist() == [True, False]
    assert reward[1] == 2.5
    with pytest.raises(ValueError, match=r"column 'ids' is missing in rows of groups \[7\]"):
        Gather("ids", [7], [None], SPEC)

"""The layout of one write, and which memory comes free with which of its blocks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfer_queue.shard.checks import check_cuts, marks_of
from transfer_queue.shard.extent import PAGE, Extent
from transfer_queue.shard.extents import plan
from transfer_queue.shard.refused import Refused

sizes = st.integers(0, 5) | st.integers(0, 3 * PAGE)


@st.composite
def all_cuts(draw) -> list[list[int]]:
    groups = draw(st.integers(1, 6))
    columns = draw(st.lists(st.lists(sizes, min_size=groups, max_size=groups), min_size=1, max_size=4))
    return [[0, *np.cumsum(column).tolist()] for column in columns]


def extent_of(cuts: list[list[int]], offset: int = 0, first: int = 100) -> Extent:
    return Extent(first, "a#0", offset, marks_of(cuts), b"", None)


def pieces(extent: Extent, block: int) -> list[tuple[int, int]]:
    group = block - extent.first
    return [(int(marks[group]), int(marks[group + 1])) for marks in extent.marks]


@given(all_cuts())
def test_columns_begin_aligned_and_follow_one_another_without_overlap(cuts):
    planned = plan(cuts)
    assert all(base % 64 == 0 for base in planned.bases)
    ends = [base + marks[-1] for base, marks in zip(planned.bases, cuts, strict=True)]
    assert all(0 <= base - end < 64 for end, base in zip(ends, planned.bases[1:], strict=False))
    assert planned.nbytes == ends[-1]
    assert extent_of(cuts).nbytes == planned.nbytes


@given(all_cuts(), st.integers(0, 200), st.randoms())
def test_pages_come_free_with_the_last_block_in_them_and_every_byte_comes_once(cuts, begin, rng):
    extent = extent_of(cuts, offset=begin * 64)
    end = extent.offset + extent.nbytes
    left, back = set(extent.blocks), np.zeros(end + PAGE, dtype=np.int8)
    while left:
        blocks = rng.sample(sorted(left), rng.randint(1, len(left)))
        left -= set(blocks)
        for start, nbytes in extent.release(blocks):
            back[start : start + nbytes] += 1
        live = np.zeros(len(back), dtype=bool)
        for block in left:
            for start, stop in pieces(extent, block):
                live[extent.offset + start : extent.offset + stop] = True
        assert not (back.astype(bool) & live).any(), "a live block's bytes came free"
        for page in range(-(-extent.offset // PAGE), end // PAGE):
            inside = slice(page * PAGE, (page + 1) * PAGE)
            assert back[inside].all() == (not live[inside].any()), "whole pages come with their last block, not later"
    assert (back[extent.offset : end] == 1).all()
    assert back.sum() == extent.nbytes


@given(all_cuts(), st.data())
def test_a_block_owns_its_pieces_and_nothing_else(cuts, data):
    extent = extent_of(cuts)
    block = data.draw(st.sampled_from(list(extent.blocks)))
    start = data.draw(st.integers(-2, extent.nbytes + 2))
    stop = data.draw(st.integers(start - 1, extent.nbytes + 2))
    own = np.zeros(extent.nbytes, dtype=bool)
    for low, high in pieces(extent, block):
        own[low:high] = True
    inside = 0 <= start < stop <= extent.nbytes and bool(own[start:stop].all())
    assert extent.owns(block, start, stop) == (inside or 0 <= start == stop <= extent.nbytes)


def test_pieces_that_follow_each_other_without_a_gap_are_one_range_as_who_saves_asks_for_them():
    extent = extent_of([[0, 64, 128], [0, 64, 128], [0, 1, 2]])
    assert not extent.owns(extent.first, 0, 65), "another block's"
    single = extent_of([[0, 128], [0, 1]])
    assert single.owns(single.first, 0, 129)
    assert not single.owns(single.first, 0, 130)


@given(all_cuts())
def test_used_bytes_are_what_was_asked_for(cuts):
    extent = extent_of(cuts)
    assert extent.used_bytes(list(extent.blocks)) == check_cuts(cuts) == sum(marks[-1] for marks in cuts)
    each = [sum(b - a for marks in cuts for a, b in list(pairwise(marks))[group : group + 1]) for group in range(len(extent.blocks))]
    assert [extent.used_bytes([block]) for block in extent.blocks] == each


@pytest.mark.parametrize(
    "cuts",
    [
        [],
        [[]],
        [[0]],
        [[1, 2]],
        [[0, 5, 2]],
        [[0, -1, 2]],
        [[0, 2], [0, 1, 2]],
        [[0, 2**64 - 1, 2]],
        [[-(2**63), 0]],
        [[0, 4, 2, 4]],
        [[0, 1], []],
        [[0] * (1 << 19), [0] * (1 << 19), [0] * (1 << 19)],
    ],
)
def test_cuts_that_cannot_be_are_refused_before_anything_is_made_of_them(cuts):
    with pytest.raises(Refused) as refused:
        _checked(cuts)
    assert refused.value.code == "malformed"


def _checked(cuts: list[list[int]]) -> np.ndarray:
    check_cuts(cuts)
    return marks_of(cuts)

"""Copies of runs: whatever their lengths, alignments and order are, the bytes are those a plain loop copies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfer_queue.codec import offsets_of
from transfer_queue.memory import runs
from transfer_queue.memory.runs import copy_runs, merged

SOURCE = np.random.default_rng(0).integers(0, 256, 1 << 16, dtype=np.uint8)


@st.composite
def some_runs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """starts, lengths, targets: short and long, of one width or several, neighbours or not, in order or not."""
    count, unit, reach = draw(st.integers(0, 12)), draw(st.sampled_from([1, 2, 3, 4, 8])), draw(st.sampled_from([3, 40, 150]))
    width = draw(st.none() | st.integers(0, reach))
    lengths = np.array([width if width is not None else draw(st.integers(0, reach)) for _ in range(count)], dtype=np.int64) * unit
    if draw(st.booleans()):
        starts = offsets_of(lengths)[:-1] + draw(st.integers(0, 9))
    else:
        most = max((len(SOURCE) - reach * unit) // unit, 0)
        starts = np.array([draw(st.integers(0, most)) for _ in range(count)], dtype=np.int64) * unit
    order = np.array(draw(st.permutations(range(count))), dtype=np.int64)
    targets = np.zeros(count, dtype=np.int64)
    targets[order] = offsets_of(lengths[order])[:-1] + np.arange(count) * draw(st.sampled_from([0, unit]))
    return starts, lengths, targets


@given(some_runs(), st.sampled_from([1, 64, runs.LONG_BYTES]))
def test_every_way_of_copying_gives_what_a_plain_loop_gives(some, long_bytes):
    starts, lengths, targets = some
    size = int((targets + lengths).max()) if len(lengths) else 0
    out, expected = np.zeros(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
    for start, length, target in zip(starts, lengths, targets, strict=True):
        expected[target : target + length] = SOURCE[start : start + length]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "LONG_BYTES", long_bytes)
        copy_runs(SOURCE, starts, lengths, out, targets)
    assert out.tobytes() == expected.tobytes()


@given(some_runs())
def test_merged_runs_are_no_neighbours_any_more_and_name_the_same_bytes(some):
    def places(begins: np.ndarray, lengths: np.ndarray) -> list[int]:
        return np.concatenate([np.arange(0), *map(np.arange, begins, begins + lengths)]).tolist()

    starts, lengths, targets = merged(*some)
    assert places(starts, lengths) == places(some[0], some[1])
    assert places(targets, lengths) == places(some[2], some[1])
    assert not ((starts[1:] == starts[:-1] + lengths[:-1]) & (targets[1:] == targets[:-1] + lengths[:-1])).any()


@pytest.mark.parametrize(("start", "length", "room"), [(len(SOURCE) - 3, 4, 4), (-1, 2, 2), (0, 4, 3)])
def test_a_run_that_leads_out_of_its_memory_is_an_error_and_never_cut_short(start, length, room):
    numbers = [np.array([value], dtype=np.int64) for value in (start, length, 0)]
    with pytest.raises(ValueError, match="leads out of"):
        copy_runs(SOURCE, numbers[0], numbers[1], np.zeros(room, dtype=np.uint8), numbers[2])

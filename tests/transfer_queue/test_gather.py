"""One column of a read: what is asked for, and how what came becomes rows."""

from __future__ import annotations

import numpy as np
import pytest

from transfer_queue import messages as m
from transfer_queue.gather import Gather
from transfer_queue.memory.buffers import Buffers
from transfer_queue.shard.messages import Ranges

SPEC = m.TopicSpec(
    name="t",
    model="p",
    columns=(m.Column("ids", "int16", "per_token", "r"), m.Column("reward", "float64", "scalar", "r", optional=True)),
    consumers=(),
    window=m.Window(1, None),
)
BUFFERS = Buffers()


def frame(values: list[float], dtype: str) -> np.ndarray:
    return np.array(values, dtype=dtype).view(np.uint8)


def test_a_shared_slice_is_asked_for_once_and_comes_back_in_every_row():
    first, second = m.Slice(0, 5, 0, 4), m.Slice(0, 6, 0, 6)
    gather = Gather("ids", [1, 1, 1, 2, 1], [first, first, first, second, first], SPEC)
    assert gather.ranges(0) == Ranges(blocks=[5, 6, 5], starts=[0, 0, 0], stops=[4, 6, 4])
    gather.add(0, frame([1, 2, 3, 4, 5, 1, 2], "int16"))
    assert [run.tolist() for run in gather.result(BUFFERS)] == [[1, 2], [1, 2], [1, 2], [3, 4, 5], [1, 2]]
    assert gather.owners(0, [6]) == {2}


def test_neighbours_in_one_extent_are_a_view_also_when_empty_rows_lie_between_them():
    memory = np.arange(64, dtype=np.uint8)
    memory.flags.writeable = False
    slices = [m.Slice(0, 5, 8, 12), m.Slice(0, 9, 0, 0), m.Slice(0, 6, 12, 16)]
    gather = Gather("ids", [1, 2, 3], slices, SPEC)
    blocks = gather.blocks(0)
    assert blocks.tolist() == [5, 6, 9]
    gather.map(0, memory, blocks, np.array([16, 16, 40]))
    column = gather.result(BUFFERS)
    assert column.values.tobytes() == memory[24:32].tobytes()
    assert np.shares_memory(column.values, memory)
    assert not np.shares_memory(gather.result(BUFFERS, writable=True).values, memory)


def test_rows_that_lie_in_memory_here_and_come_as_frames_there_become_one_column():
    memory = np.arange(64, dtype=np.uint8)
    gather = Gather("ids", [1, 2, 3, 4], [m.Slice(1, 7, 0, 2), m.Slice(0, 5, 4, 8), m.Slice(1, 7, 2, 4), m.Slice(0, 5, 0, 4)], SPEC)
    gather.map(0, memory, gather.blocks(0), np.array([32]))
    gather.add(1, frame([-1, -2], "int16"))
    runs = [run.view(np.uint8).tolist() for run in gather.result(BUFFERS)]
    assert runs == [[255, 255], [36, 37, 38, 39], [254, 255], [32, 33, 34, 35]]


def test_a_shard_that_only_has_other_columns_of_a_read_costs_no_copy():
    memory = np.arange(64, dtype=np.uint8)
    gather = Gather("ids", [1, 2], [m.Slice(1, 5, 0, 4), m.Slice(1, 6, 4, 8)], SPEC)
    gather.add(0, frame([], "int16"))
    gather.map(1, memory, gather.blocks(1), np.array([8, 8]))
    gather.map(2, np.arange(8, dtype=np.uint8), np.array([3]), np.array([0]))
    column = gather.result(BUFFERS)
    assert column.values.tobytes() == memory[8:16].tobytes()
    assert np.shares_memory(column.values, memory)


def test_a_frame_that_begins_at_an_odd_address_is_copied_into_place():
    odd = np.zeros(9, dtype=np.uint8)[1:]
    odd[:] = frame([2.5], "float64")
    gather = Gather("reward", [1], [m.Slice(0, 5, 0, 8)], SPEC)
    gather.add(0, odd)
    assert gather.result(BUFFERS).tolist() == [2.5]


def test_a_missing_optional_scalar_is_masked_and_a_missing_required_column_is_an_error():
    gather = Gather("reward", [7, 8], [None, m.Slice(0, 5, 0, 8)], SPEC)
    gather.add(0, frame([2.5], "float64"))
    reward = gather.result(BUFFERS)
    assert reward.mask.tolist() == [True, False]
    assert reward[1] == 2.5
    with pytest.raises(ValueError, match=r"column 'ids' is missing in rows of groups \[7\]"):
        Gather("ids", [7], [None], SPEC)


def test_a_frame_of_another_length_than_was_asked_for_and_a_torn_slice_are_errors():
    gather = Gather("ids", [1], [m.Slice(0, 5, 0, 4)], SPEC)
    with pytest.raises(ValueError, match="sent 6 bytes of column 'ids', 4 were asked for"):
        gather.add(0, frame([1, 2, 3], "int16"))
    with pytest.raises(ValueError, match="int16, 2 bytes each, but a slice holds 3 bytes"):
        Gather("ids", [1], [m.Slice(0, 5, 0, 3)], SPEC)

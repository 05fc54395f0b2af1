"""Memory that is used again: only when nothing looks at it any more, only so much of it lies idle, and whichever thread drops it."""

from __future__ import annotations

import gc
import os
import threading

import numpy as np
import torch

from transfer_queue.codec import to_torch
from transfer_queue.memory.buffers import SMALL_BYTES, Buffers
from transfer_queue.memory.export import export

BIG = 4 * SMALL_BYTES


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def test_a_buffer_comes_back_when_its_last_view_is_collected_and_not_before():
    buffers = Buffers()
    first = buffers.take(BIG)
    place, view = address(first), first.view("float32")[3:9].reshape(2, 3)
    del first
    assert buffers.idle_bytes == 0
    second = buffers.take(BIG)
    assert address(second) != place
    del view
    assert buffers.idle_bytes >= BIG
    assert address(buffers.take(BIG - 5)) == place


def test_a_tensor_and_what_was_made_of_it_keep_a_buffer():
    buffers = Buffers()
    tensor = to_torch(buffers.take(BIG).view("uint16"), "bfloat16")[10:20]
    assert tensor.dtype == torch.bfloat16
    gc.collect()
    assert buffers.idle_bytes == 0
    del tensor
    assert buffers.idle_bytes >= BIG


def test_no_more_than_keep_bytes_lie_idle_and_none_that_is_far_too_large_is_used():
    buffers = Buffers(keep_bytes=3 * BIG)
    several = [buffers.take(BIG) for _ in range(6)]
    several.clear()
    assert BIG <= buffers.idle_bytes <= 3 * BIG
    idle = buffers.idle_bytes
    small = buffers.take(BIG // 3)
    assert buffers.idle_bytes == idle
    assert len(small) == BIG // 3


def test_small_ones_are_left_to_malloc_and_empty_ones_are_empty():
    buffers = Buffers()
    assert len(buffers.take(0)) == 0
    del_me = buffers.take(SMALL_BYTES - 1)
    del del_me
    assert buffers.idle_bytes == 0


def test_a_buffer_may_be_dropped_by_another_thread_while_this_one_takes():
    buffers = Buffers()
    for _ in range(50):
        box = [buffers.take(BIG)]
        box[0][:] = 1
        dropper = threading.Thread(target=box.clear)
        dropper.start()
        other = buffers.take(BIG)
        other[:] = 2
        dropper.join(10)
        assert (other == 2).all()


def test_an_export_is_told_once_in_the_process_that_made_it_whatever_its_readers_do():
    told: list[int] = []
    memory = np.arange(6, dtype=np.uint8)
    memory.flags.writeable = False
    array = export(memory, told.append, 7)
    assert not array.flags.writeable
    assert array.tolist() == memory.tolist()
    del memory  # the export keeps it
    views = [array[:2], array[2:].reshape(2, 2), torch.from_numpy(array.copy())]
    del array
    assert told == []
    child = os.fork()
    if child == 0:
        views.clear()
        os._exit(len(told))  # told in the child's own copy of the list only
    assert os.waitpid(child, 0)[1] >> 8 == 1
    assert told == []
    views.clear()
    assert told == [7]

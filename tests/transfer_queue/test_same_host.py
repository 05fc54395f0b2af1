"""Bytes on one host: written straight into the shard's memory, read where they are, and there for as long as somebody looks at them."""

from __future__ import annotations

import gc
import os
import threading

import numpy as np
import pytest
import queue_run as run
import torch
from queue_processes import COLUMN, read, refs, values

from transfer_queue import messages as m
from transfer_queue.client import QueueClient
from transfer_queue.codec import to_torch
from transfer_queue.columns import Jagged
from transfer_queue.errors import Gone, QueueTimeout
from transfer_queue.local import LocalQueue

BIG = (64, 5000)  # 1.3 MB: more than one message takes

PAYLOADS = m.TopicSpec(
    name="t",
    model="p",
    columns=(
        m.Column("dense", "float32", "scalar", "r", shape=(3, 5)),
        m.Column("runs", "bfloat16", "per_token", "r"),
        m.Column("flag", "bool", "scalar", "r"),
        m.Column("image", "uint8", "blob", "r"),
        m.Column("text", "uint8", "text", "r"),
        m.Column("maybe", "float64", "scalar", "r", optional=True),
    ),
    consumers=(),
    window=m.Window(1, None),
)


def connect(queue: LocalQueue, name: str, map_memory: bool = True) -> QueueClient:
    return QueueClient.connect(queue.url, name=name, role="worker", timeout_s=10.0, map_memory=map_memory)


def statuses(client: QueueClient, what: str) -> int:
    return sum(getattr(status, what) for status in client.shard_status().values())


@pytest.fixture(params=["shared", "bytes"])
def member(queue, request):
    with connect(queue, f"member-{request.param}", map_memory=request.param == "shared") as client:
        yield client
        assert set(client.paths.values()) == {request.param}
        client.leave().result(5.0)


@pytest.mark.parametrize("scale", [1, 400])
def test_every_kind_of_column_comes_back_in_the_order_asked_for_whatever_the_path(member, scale):
    rng = np.random.default_rng(scale)
    gids = [3, 1, 3, 2, 1, 3]  # not grouped: rows are sorted on the way
    lengths = [7 * scale, 0, scale, 3 * scale, 5, 1]
    columns = {
        "dense": rng.random((6, 3, 5), dtype="float32"),
        "runs": to_torch(rng.integers(0, 1 << 16, sum(lengths), dtype="uint16"), "bfloat16"),
        "flag": torch.tensor([True, False, True, True, False, False]),
        "image": [rng.bytes(length) for length in lengths],
        "text": ["ä" * length for length in lengths],
    }
    bits = columns["runs"].view(torch.uint16).numpy()
    columns["runs"] = Jagged(bits, np.cumsum([0, *lengths]), "bfloat16")
    slices = member.write(gids, columns, PAYLOADS)
    order = [5, 0, 0, 2, 3, 1, 4, 4]
    rows = [m.RowRef(gids[row], row, 0, 0, [slices[name][row] for name in columns] + [None]) for row in order]
    got = member.read(rows, [*columns, "maybe"], PAYLOADS)
    assert got["dense"].tolist() == columns["dense"][order].tolist()
    assert [run.tolist() for run in got["runs"]] == [columns["runs"][row].tolist() for row in order]
    assert got["flag"].tolist() == columns["flag"][order].tolist()
    assert got["image"] == [columns["image"][row] for row in order]
    assert got["text"] == [columns["text"][row] for row in order]
    assert got["maybe"].mask.all()


def test_rows_of_one_put_are_looked_at_where_they_are_also_over_the_bounds_of_groups(queue):
    with connect(queue, "viewer") as client:
        put = values(*BIG)
        slices = client.write(np.arange(64) // 4, {COLUMN: put})[COLUMN]
        whole, part = read(client, slices), read(client, slices[3:17])
        assert whole.tolist() == put.tolist()
        assert part.ctypes.data == whole.ctypes.data + 3 * whole.strides[0]
        assert not whole.flags.writeable
        tensor = to_torch(whole, "int32")
        assert tensor.data_ptr() == whole.ctypes.data
        copy = read(client, slices, writable=True)
        copy += 1
        assert copy.tolist() == (put + 1).tolist()
        assert read(client, slices).tolist() == put.tolist()
        client.discard(slices)


def test_what_the_caller_does_with_his_arrays_after_a_write_changes_nothing(member):
    for shape in ((4, 10), BIG):
        put = values(*shape)
        expected = put.tolist()
        slices = member.write(range(len(put)), {COLUMN: torch.from_numpy(put)})[COLUMN]
        put[:] = -1
        assert read(member, slices).tolist() == expected


def test_rows_of_many_puts_on_several_shards_cost_one_copy_in_any_order(member):
    put = values(60, 700)
    slices = [found for start in range(0, 60, 5) for found in member.write(range(5), {COLUMN: put[start : start + 5]})[COLUMN]]
    assert len({found.shard for found in slices}) == 2
    order = np.random.default_rng(1).permutation(60)
    assert read(member, [slices[row] for row in order]).tolist() == put[order].tolist()


def test_bytes_that_are_looked_at_outlive_their_group_and_go_with_the_last_array(queue):
    with connect(queue, "late") as client:
        put = values(*BIG)
        slices = client.write([0] * 64, {COLUMN: put})[COLUMN]
        array = read(client, slices)
        rest = to_torch(array[5], "int32")
        client.discard(slices)
        with pytest.raises(Gone):
            read(client, slices)
        assert statuses(client, "held_bytes") >= array.nbytes
        del array
        for seed in range(1, 8):
            client.write([0] * 64, {COLUMN: values(*BIG, seed)})
        assert rest.tolist() == put[5].tolist()
        del rest
        gc.collect()
        client.poll(0.0)
        assert statuses(client, "held_bytes") == 0


def test_an_array_that_another_thread_drops_is_given_back_by_the_members_next_call(queue):
    with connect(queue, "threads") as client:
        slices = client.write([0] * 64, {COLUMN: values(*BIG)})[COLUMN]
        box = [read(client, slices)]
        client.discard(slices)
        dropper = threading.Thread(target=box.clear)
        dropper.start()
        dropper.join(10)
        client.poll(0.0)
        assert statuses(client, "held_bytes") == 0


def test_a_read_of_rows_that_are_copied_holds_nothing_afterwards(queue):
    with connect(queue, "copier") as client:
        slices = client.write([0] * 64, {COLUMN: values(*BIG)})[COLUMN]
        array = read(client, slices[::-1])
        client.discard(slices)
        client.poll(0.0)
        assert statuses(client, "held_bytes") == 0
        assert array.tolist() == values(*BIG)[::-1].tolist()


def test_arrays_stay_valid_after_close_and_the_last_one_tells_the_shard(queue):
    with connect(queue, "observer") as observer:
        client = connect(queue, "closing")
        put = values(*BIG)
        slices = client.write([0] * 64, {COLUMN: put})[COLUMN]
        arrays = [read(client, slices), read(client, slices[:7])]
        client.discard(slices)
        observer.shard_status()
        client.close()
        for seed in range(1, 8):
            observer.write([0] * 64, {COLUMN: values(*BIG, seed)})
        assert arrays[0].tolist() == put.tolist()
        arrays.pop()
        assert statuses(observer, "held_bytes") > 0
        arrays.clear()
        deadline = run.Deadline(5.0)
        while statuses(observer, "held_bytes"):
            deadline.check("the shard still holds bytes that nobody looks at")


def test_clients_that_come_and_go_leave_no_descriptors(queue):
    def turn() -> None:
        with connect(queue, "turning") as client:
            slices = client.write([0] * 64, {COLUMN: values(*BIG)})[COLUMN]
            arrays.append(read(client, slices))
            client.discard(slices)

    arrays: list[np.ndarray] = []
    turn()
    arrays.clear()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(8):
        turn()
    arrays.clear()
    gc.collect()
    deadline = run.Deadline(5.0)
    while len(os.listdir("/proc/self/fd")) > before:  # zmq's own thread closes sockets
        deadline.check("descriptors are left")


def test_a_forked_child_that_drops_what_it_inherited_ends_no_hold_of_its_parent(queue):
    with connect(queue, "parent") as client:
        put = values(*BIG)
        slices = client.write([0] * 64, {COLUMN: put})[COLUMN]
        box = [read(client, slices)]
        client.discard(slices)
        child = os.fork()
        if child == 0:
            same = bool((box[0] == put).all())
            box.clear()
            os._exit(0 if same else 1)
        assert os.waitpid(child, 0)[1] == 0
        client.poll(0.0)
        assert statuses(client, "held_bytes") > 0
        assert box[0].tolist() == put.tolist()


def test_a_read_that_was_given_up_holds_nothing_on_any_shard(queue):
    with connect(queue, "hasty-reader") as client:
        slices = [client.write([0] * 64, {COLUMN: values(*BIG)})[COLUMN][0] for _ in range(2)]
        assert {found.shard for found in slices} == {0, 1}
        read(client, slices)
        client.timeout_s = 0.0
        given_up = 0
        while given_up < 10:
            try:
                read(client, slices)
            except QueueTimeout:
                given_up += 1
        client.timeout_s = 10.0
        client.discard(slices)
        deadline = run.Deadline(5.0)
        while statuses(client, "held_bytes"):
            deadline.check("holds that nobody took are left")


def test_a_write_that_fails_half_way_gives_the_room_back(member, monkeypatch):
    before = statuses(member, "used_bytes")
    put = values(*BIG)
    with monkeypatch.context() as patch:
        patch.setattr("transfer_queue.layout.Extent.fill", interrupted)
        patch.setattr("transfer_queue.layout.Extent.pieces", interrupted)
        with pytest.raises(KeyboardInterrupt):
            member.write(range(64), {COLUMN: put})
    assert run.comes_to_use(member, before)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_slice_that_leads_out_of_the_shards_memory_is_an_error_and_no_crash(queue):
    with connect(queue, "wild") as client:
        found = client.write([0], {COLUMN: values(1, 4)})[COLUMN][0]
        for start, stop in ((0, 1 << 50), (1 << 50, (1 << 50) + 4), (-(1 << 40), 8 - (1 << 40)), (8, 4), (0, 3)):
            with pytest.raises(ValueError, match="slice"):
                client.read(refs([m.Slice(found.shard, found.block, start, stop)]), [COLUMN], run.spec())

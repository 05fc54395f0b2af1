"""Small puts into room that was reserved ahead, and small reads out of it: no word to the shard, the same bytes, the same ends.

What a shard makes of regions, whatever happens to their writers: shard/test_region_history.py.
"""

from __future__ import annotations

import contextlib
import queue as queues
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import ahead_writers as writers
import numpy as np
import pytest
import queue_run as run
from ahead_writers import SPEC, TOPIC, reserved
from queue_processes import COLUMN, Process, read, refs, values

from shared_arena import Arena, ArenaUnreachable, Descriptor
from transfer_queue import copying, few
from transfer_queue import messages as m
from transfer_queue.client import QueueClient
from transfer_queue.errors import Gone, QueueError
from transfer_queue.local import LocalQueue
from transfer_queue.memory import mapping
from transfer_queue.memory.glimpse import FEW
from transfer_queue.shard import messages as sm
from transfer_queue.shard.region import IN_REGION, REGION_BYTES, region_of

SMALL = (1, 256)


@contextlib.contextmanager
def member(queue: LocalQueue, name: str) -> Iterator[QueueClient]:
    """With room on every shard."""
    with queue.client(name) as client:
        reserved(client, lambda: client.discard(client.write([0], {COLUMN: values(*SMALL)})[COLUMN]))
        yield client
        client.leave().result(5.0)


def ahead_bytes(client: QueueClient) -> int:
    return sum(status.ahead_bytes for status in client.shard_status().values())


def comes_down(client: QueueClient, what: str, to: int = 0) -> None:
    deadline = run.Deadline(10.0)
    while sum(getattr(status, what) for status in client.shard_status().values()) != to:
        deadline.check(f"{what} does not come down to {to}")


def said_to_shards(client: QueueClient, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []

    def heard(post: Callable[..., None], request: sm.ShardRequest, frames: Sequence[object] = ()) -> None:
        said.append(type(request).__name__)
        post(request, frames)

    for peer in client._peers.values():
        monkeypatch.setattr(peer.link, "post", partial(heard, peer.link.post))
    return said


def test_a_small_put_and_its_read_say_nothing_to_the_shard(queue, monkeypatch):
    with member(queue, "quiet") as client:
        put = [values(3, 100, seed) for seed in range(20)]
        for peer in client._peers.values():
            peer.freed = False  # as after any read: what it freed itself, a client asks for once
        said = said_to_shards(client, monkeypatch)
        slices = [client.write([0, 1, 1], {COLUMN: rows})[COLUMN] for rows in put]
        got = [read(client, found) for found in slices]
        assert said == []
        assert {found[0].shard for found in slices} == {0, 1}
        assert all(found[0].block & IN_REGION for found in slices)
        assert [rows.tolist() for rows in got] == [rows.tolist() for rows in put]
        for found in slices:
            client.discard(found)


def test_rows_of_several_regions_come_back_in_any_order_and_nothing_is_left(queue):
    with member(queue, "much") as client:
        put = values(600, 3000, 5)  # 7 MB
        slices = [piece for at in range(0, 600, 10) for piece in client.write(range(10), {COLUMN: put[at : at + 10]})[COLUMN]]
        rng = np.random.default_rng(3)
        for count in (1, 2, 7, 20, 600):
            rows = rng.choice(600, count, replace=False)
            assert read(client, [slices[row] for row in rows]).tolist() == put[rows].tolist()
        assert run.used_bytes(client, client.owner) == put.nbytes
        with queue.client("other") as other:
            assert read(other, slices[5:9]).tolist() == put[5:9].tolist()
        regions = {(piece.shard, region_of(piece.block)) for piece in slices if piece.block & IN_REGION}
        assert len(regions) > 2
        client.discard(slices)
        assert run.comes_to_use(client, 0, client.owner)
    with queue.client("observer") as observer:
        comes_down(observer, "ahead_bytes")


def test_what_is_read_small_is_a_copy_that_outlives_its_row(queue):
    with member(queue, "copier") as client:
        put = values(4, 50)
        slices = client.write(range(4), {COLUMN: put})[COLUMN]
        array = read(client, slices)
        client.discard(slices)
        for seed in range(100):
            client.discard(client.write(range(4), {COLUMN: values(4, 50, seed)})[COLUMN])
        assert array.tolist() == put.tolist()


def test_a_row_that_was_freed_is_gone_for_who_freed_it_and_for_everybody(queue):
    with member(queue, "one") as client, queue.client("two") as other:
        slices = client.write([0, 1], {COLUMN: values(2, 50)})[COLUMN]
        assert read(other, slices).tolist() == values(2, 50).tolist()
        client.discard(slices[:1])
        with pytest.raises(Gone):
            read(client, slices)
        assert run.comes_to_use(client, 200, client.owner)
        with pytest.raises(Gone) as gone:
            read(other, slices)
        assert gone.value.gids == [0]
        assert read(other, slices[1:]).tolist() == values(2, 50)[1:].tolist()
        client.discard(slices)


@pytest.mark.parametrize(("rows", "module", "name"), [(1, few, "_copied"), (FEW, few, "_copied"), (FEW + 1, copying, "_copy")])
def test_bytes_that_change_under_a_read_are_never_returned(queue, monkeypatch, rows, module, name):
    """The row goes, and its memory is another's, between the look before the copy and the copy."""
    with member(queue, "torn") as client, member(queue, "thief") as thief:
        slices = client.write(range(rows), {COLUMN: values(rows, 500)})[COLUMN]
        assert read(client, slices).tolist() == values(rows, 500).tolist()  # after what it freed itself, a client asks once
        copy, late_ones = getattr(module, name), []

        def late(*arguments: object) -> object:
            thief.discard(slices)
            comes_down(thief, "used_bytes")
            taken = [thief.write([0] * 64, {COLUMN: values(64, 5000, seed)})[COLUMN] for seed in range(4)]
            found = copy(*arguments)
            for pieces in taken:
                thief.discard(pieces)
            late_ones.append(found)
            return found

        with monkeypatch.context() as patch:
            patch.setattr(module, name, late)
            with pytest.raises(Gone):
                read(client, slices)
        assert len(late_ones) == 1


@pytest.mark.parametrize("rows", [2, FEW + 1])
def test_a_reader_in_the_midst_of_puts_and_discards_gets_the_right_bytes_or_none(queue, rows):
    """Every fourth row stays to the end, and is always read; the others go at once, whatever the reader is about."""
    published: queues.Queue[tuple[int, list[m.Slice]]] = queues.Queue(8)
    interval, gone = sys.getswitchinterval(), set()

    def put_and_discard() -> None:
        rng, kept = random.Random(7), []
        with member(queue, "racing") as client:
            for seed in range(400):
                slices = client.write(range(rows), {COLUMN: values(rows, 40 + seed % 700, seed)})[COLUMN]
                published.put((seed, slices), timeout=20)
                if rng.random() < 0.5:
                    client.shard_status()
                if seed % 4:
                    client.discard(slices)
                else:
                    kept += slices
            published.put((-1, kept), timeout=20)
            published.join()
            client.discard(kept)

    sys.setswitchinterval(1e-6)
    writer = threading.Thread(target=put_and_discard, daemon=True)
    writer.start()
    try:
        with queue.client("watching") as client:
            while (found := published.get(timeout=20))[0] >= 0:
                try:
                    assert read(client, found[1]).tolist() == values(rows, 40 + found[0] % 700, found[0]).tolist()
                except Gone:
                    gone.add(found[0])
                published.task_done()
    finally:
        sys.setswitchinterval(interval)
        published.task_done()
    writer.join(20)
    assert not writer.is_alive()
    assert not any(seed % 4 == 0 for seed in gone)


def test_a_slice_that_leads_out_of_its_region_is_an_error_and_no_crash(queue):
    with member(queue, "wild") as client:
        found = client.write([0], {COLUMN: values(1, 4)})[COLUMN][0]
        assert found.block & IN_REGION
        for start, stop in ((0, 1 << 50), (1 << 50, (1 << 50) + 4), (-(1 << 40), 8 - (1 << 40)), (8, 4), (0, 3)):
            with pytest.raises(ValueError, match="slice"):
                client.read(refs([m.Slice(found.shard, found.block, start, stop)]), [COLUMN], run.spec())
        client.discard([found])


def test_a_put_that_is_interrupted_anywhere_leaves_nothing(queue, monkeypatch):
    with member(queue, "interrupted") as client:
        before = run.used_bytes(client)
        for place in ("transfer_queue.layout.Extent.fill", "transfer_queue.ahead.write_head", "transfer_queue.ahead.fence"):
            with monkeypatch.context() as patch:
                patch.setattr(place, interrupted)
                with pytest.raises(KeyboardInterrupt):
                    client.write([0], {COLUMN: values(*SMALL)})
            assert run.comes_to_use(client, before)
        slices = client.write([0], {COLUMN: values(*SMALL)})[COLUMN]
        assert read(client, slices).tolist() == values(*SMALL).tolist()
        client.discard(slices)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_where_stores_may_be_seen_in_another_order_everything_goes_the_ordinary_way(queue, monkeypatch):
    monkeypatch.setattr("transfer_queue.peer.ORDERED", False)
    with queue.client("reordering") as client:
        slices = [client.write([0], {COLUMN: values(*SMALL, seed)})[COLUMN][0] for seed in range(10)]
        assert not any(piece.block & IN_REGION for piece in slices)
        assert [row.tolist() for row in read(client, slices)] == [values(*SMALL, seed)[0].tolist() for seed in range(10)]
        client.discard(slices)


def test_a_shard_with_little_room_reserves_none_and_takes_everything_it_has_room_for():
    with LocalQueue([run.spec()], shards=1, capacity_bytes=8 * REGION_BYTES - 1) as queue, queue.client("full") as client:
        slices = [client.write([0], {COLUMN: values(1, 1 << 16)})[COLUMN][0] for _ in range(63)]
        assert not any(piece.block & IN_REGION for piece in slices)
        assert ahead_bytes(client) == 0


def test_an_idle_writer_with_reserved_room_does_not_keep_a_shard_from_draining():
    with LocalQueue([run.spec()], shards=1, heartbeat_s=300.0) as queue, Process("shard", queue.url, "shard-1") as shard:
        shard.heard()
        with member(queue, "idle") as client:
            assert all(peer.ahead._room is not None for peer in client._peers.values())
            kept: list[m.Slice] = []
            while not kept or kept[-1].shard != 1:
                kept += client.write([0], {COLUMN: values(*SMALL)})[COLUMN]
            shard.popen.terminate()
            deadline, streak = run.Deadline(10.0), 0
            while streak < 3:  # it hears of the signal some time
                deadline.check("a shard that drains still takes puts in")
                new = client.write([0], {COLUMN: values(*SMALL)})[COLUMN]
                streak = 0 if new[0].shard == 1 else streak + 1
                client.discard(new)
            assert [client.write([0], {COLUMN: values(*SMALL)})[COLUMN][0].shard for _ in range(6)] == [0] * 6
            assert read(client, kept[-1:]).tolist() == values(*SMALL).tolist()
            assert shard.popen.poll() is None, "it has a row yet"
            client.discard(kept)
            assert shard.popen.wait(10) == 0


def test_writers_that_are_killed_at_any_line_of_a_put_leave_what_was_acknowledged_and_nothing_else():
    with LocalQueue([SPEC], shards=1, heartbeat_s=300.0) as queue, queue.client("observer") as observer:
        acknowledged: dict[int, int] = {}
        with Process("killed_in_puts", queue.url, str(writers.LINES)) as killed:
            while not (said := killed.heard()).startswith("ended"):
                gid, seed = map(int, said.split())
                acknowledged[gid] = seed
        assert said.split()[1:] == ["9"] * writers.LINES, "each was to die inside the put"
        for line in range(writers.LINES):
            observer.member_dead(f"writer-{line}", "killed by the test").result(5.0)
        assert run.comes_to_use(observer, sum(values(*writers.shape(seed), seed).nbytes for seed in acknowledged.values()))
        comes_down(observer, "ahead_bytes")
        comes_down(observer, "held_bytes")
        taken = observer.take(TOPIC, "reader", limit=1000, at_least=len(acknowledged), wait_s=5.0).result(10.0)
        rows = observer.read(taken.rows, ["ids"], SPEC)["ids"]
        found = {row.gid: run_.tolist() for row, run_ in zip(taken.rows, rows, strict=True)}
        assert found == {gid: values(*writers.shape(seed), seed)[0].tolist() for gid, seed in acknowledged.items()}
        observer.drop_groups(TOPIC, sorted(acknowledged), "over").result(5.0)
        assert run.comes_to_use(observer, 0)


def test_a_connection_reserves_no_more_than_two_regions(queue):
    with queue.client("asking") as client:
        client.discard(client.write([0], {COLUMN: values(*SMALL)})[COLUMN])  # which asks for the first
        (peer,) = client._peers.values()
        assert isinstance(peer.ask(sm.ReserveAhead(owner=client.owner)).result(5.0)[0], sm.ReservedAhead)
        with pytest.raises(QueueError, match="has 2 regions") as refused:
            peer.ask(sm.ReserveAhead(owner=client.owner)).result(5.0)
        assert refused.value.code == "too_many"


@pytest.mark.parametrize("shape", [SMALL, (4, 1 << 18)])
def test_what_cannot_be_mapped_for_writing_goes_by_bytes(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]) -> None:
    """As when a shard is killed just after its memory was mapped for reading: its process, through which the memory is found, is gone."""

    def attach(descriptor: Descriptor, writable: bool) -> Arena:
        if writable:
            raise ArenaUnreachable("nobody has it")
        return Arena.attach(descriptor)

    monkeypatch.setattr(mapping, "_attach", attach)
    with LocalQueue([run.spec()]) as queue, queue.client("writer") as client:
        for turn in range(4):  # small ones find room ahead with the second at the earliest
            written = client.write(range(shape[0]), {COLUMN: values(*shape, turn)})[COLUMN]
            assert np.array_equal(read(client, written), values(*shape, turn))
            client.discard(written)
        assert client.paths == {0: "bytes"}
        comes_down(client, "ahead_bytes")
        comes_down(client, "used_bytes")

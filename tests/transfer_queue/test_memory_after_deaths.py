"""kill -9 of readers, writers, shards and everybody: what they held is used again, what somebody looks at stays, nothing is left in the system."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
import queue_run as run
from queue_processes import COLUMN, Process, four, read, values

from transfer_queue import messages as m
from transfer_queue.client import QueueClient
from transfer_queue.errors import QueueGone
from transfer_queue.local import LocalQueue

BIG = (64, 5000)
SUM = str(int(values(*BIG).sum(dtype=np.int64)))


def comes_down(client: QueueClient, what: str) -> None:
    deadline = run.Deadline(10.0)
    while any(getattr(status, what) for status in client.shard_status().values()):
        deadline.check(f"{what} does not come down to 0")


def written(text: str) -> list[m.Slice]:
    return msgspec.json.decode(text, type=list[m.Slice])


def test_what_a_killed_reader_looked_at_is_used_again():
    with LocalQueue([run.spec()]) as queue, queue.client("writer") as client, Process("reader", queue.url) as reader:
        slices = client.write([0] * 64, {COLUMN: values(*BIG)})[COLUMN]
        assert reader.heard() == "ready"
        reader.tell(msgspec.json.encode(slices).decode())
        assert reader.heard() == SUM
        client.discard(slices)
        (status,) = client.shard_status().values()
        assert status.held_bytes == values(*BIG).nbytes
        reader.kill()
        comes_down(client, "held_bytes")


def test_what_a_killed_writer_never_published_is_swept_once_its_process_is_gone():
    with LocalQueue([run.spec()]) as queue, queue.client("observer") as observer, Process("writer", queue.url, "64", "5000") as writer:
        assert writer.heard() == "ready"
        writer.tell("write")
        slices = written(writer.heard())
        assert run.used_bytes(observer) == values(*BIG).nbytes
        writer.kill()
        observer.member_dead("writer-0", "killed by the test").result(5.0)
        comes_down(observer, "used_bytes")
        comes_down(observer, "held_bytes")
        assert slices[0].shard == 0


def test_arrays_stay_readable_when_their_shard_is_killed():
    with LocalQueue([run.spec()], shards=0) as queue, Process("shard", queue.url) as shard:
        shard.heard()
        with queue.client("reader") as client:
            put = values(*BIG)
            slices = client.write([0] * 64, {COLUMN: put})[COLUMN]
            array = read(client, slices)
            assert client.paths == {0: "shared"}
            shard.kill()
            with pytest.raises(QueueGone, match="shard 0"):
                read(client, slices)
            assert array.tolist() == put.tolist()
            del array
            client.poll(0.0)
            client.member_dead("shard-0", "killed by the test").result(5.0)


def shared_bytes() -> int:
    """Memory of the whole system that files without a disk take: memfds, among others."""
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("Shmem:"))
    return int(line.split()[1]) * 1024


def arena_of(pid: int) -> int:
    """The inode of the arena that process `pid` serves."""
    found = [file for file in Path(f"/proc/{pid}/fd").iterdir() if os.readlink(file).startswith("/memfd:asyncflow-")]
    return found[0].stat().st_ino


def who_has(inode: int) -> list[str]:
    """Descriptors and mappings of any process that lead to the memfd `inode`."""
    users = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is none of ours
            users += [str(file) for file in (process / "fd").iterdir() if is_memfd(file, inode)]
            lines = (process / "maps").read_text().splitlines()
            users += [f"{process}: {line}" for line in lines if f" {inode} " in line and "/memfd:asyncflow-" in line]
    return users


def is_memfd(file: Path, inode: int) -> bool:
    with contextlib.suppress(OSError):
        return os.readlink(file).startswith("/memfd:asyncflow-") and file.stat().st_ino == inode
    return False


@pytest.mark.e2e  # it looks at the memory of the whole system, where no other test may work meanwhile
def test_nothing_is_left_in_the_system_when_everybody_is_killed():
    rows, width = 64, 250_000  # 64 MB
    with four(rows, width) as (controller, shard, writer, reader):
        before = shared_bytes()
        writer.tell("write")
        reader.tell(writer.heard())
        reader.heard()
        arena = arena_of(shard.pid)
        assert len(who_has(arena)) >= 3
        assert shared_bytes() - before > rows * width * 4 * 0.9
        for process in (reader, shard, writer, controller):
            process.popen.kill()
    deadline = run.Deadline(10.0)
    while shared_bytes() - before > rows * width * 4 * 0.5:
        deadline.check("shared memory of the system does not come back")
    assert who_has(arena) == []

"""What a put and a get cost in memory, over all processes, and that reading again and again costs nothing more."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import queue_run as run
from queue_processes import COLUMN, four, read, values

from transfer_queue.local import LocalQueue


def pss_bytes(pid: int) -> int:
    """Memory of a process; pages that several processes share count in parts."""
    line = next(line for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
    return int(line.split()[1]) * 1024


def test_a_put_and_a_get_cost_their_bytes_once_over_all_processes():
    rows, width = 64, 250_000  # 64 MB
    with four(rows, width) as (controller, shard, writer, reader):
        pids = [controller.pid, shard.pid, writer.pid, reader.pid]
        before = sum(map(pss_bytes, pids))
        writer.tell("write")
        reader.tell(writer.heard())
        assert reader.heard() == str(int(values(rows, width).sum(dtype=np.int64)))
        grown = sum(map(pss_bytes, pids)) - before
    assert rows * width * 4 * 0.9 < grown < rows * width * 4 * 1.1


def test_reading_and_writing_in_a_loop_does_not_grow():
    put = values(64, 50_000)  # 13 MB
    with LocalQueue([run.spec()]) as queue, queue.client("a") as client:

        def turn() -> None:
            slices = client.write(np.arange(64), {COLUMN: put})[COLUMN]
            views, copies = read(client, slices), read(client, slices[::-1])
            assert views[3, 7] == put[3, 7] == copies[60, 7]
            client.discard(slices)

        for _ in range(5):
            turn()
        before = pss_bytes(os.getpid())
        for _ in range(30):
            turn()
        assert pss_bytes(os.getpid()) - before < 2 * put.nbytes
        (status,) = client.shard_status().values()
        assert status.used_bytes == 0

"""A queue in a process of its own, with whoever fills it: DataLoader forks the test's process, in which no controller may run then.

    python torch_streams.py plain|scored LEASE_S    # says its address; then obeys lines on stdin until it is closed
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

import numpy as np
import psutil

from transfer_queue import messages as m
from transfer_queue.client import QueueClient
from transfer_queue.columns import Jagged
from transfer_queue.local import LocalQueue

TOPIC, ROWS, BATCH = "t", 2, 4
CHUNK = 10  # groups in one put
READ = ("prompt_ids", "response_ids", "hidden", "name", "weight")
COLUMNS = (
    m.Column("prompt_ids", "int32", "per_token", "source", shared=True),
    m.Column("response_ids", "int64", "per_token", "rollout"),
    m.Column("hidden", "bfloat16", "scalar", "rollout", shape=(3,)),
    m.Column("name", "uint8", "text", "rollout"),
    m.Column("weight", "float64", "scalar", "rollout", optional=True),
    m.Column("score", "float32", "scalar", "scorer"),
)


def spec(kind: str) -> m.TopicSpec:
    """plain: the trainer waits for nobody; scored: it waits for the scorer."""
    trained = ("prompt_ids", "response_ids", *(["score"] if kind == "scored" else []))
    consumers = (
        m.Consumer("reader", inputs=READ),
        m.Consumer("scorer", inputs=("response_ids",), outputs=("score",)),
        m.Consumer("trainer", inputs=trained, unit="group", terminal=True, sampler="in_order"),
    )
    return m.TopicSpec(TOPIC, "policy", COLUMNS, consumers, m.Window(BATCH, None), rows_per_group=ROWS)


# ------------------------------------------------------------ what is in it


def response(gid: int, row: int) -> list[int]:
    """Of every length from 0."""
    return [gid * ROWS + row] * ((gid + row) % 6)


def hidden(gid: int, row: int) -> list[int]:
    """Bits of bfloat16."""
    return [gid % 127, row, 0x7FC1]


def columns(keys: list[tuple[int, int]]) -> dict[str, Any]:
    return {
        "response_ids": Jagged.of([response(*key) for key in keys], "int64"),
        "hidden": np.array([hidden(*key) for key in keys], dtype="uint16"),
        "name": [f"row {row} of {gid}" for gid, row in keys],
    }


def produce(source: QueueClient, rollout: QueueClient, gids: range) -> None:
    for start in range(gids.start, gids.stop, CHUNK):
        chunk = range(start, min(start + CHUNK, gids.stop))
        prompts = {"prompt_ids": Jagged.of([[gid] * (gid % 3) for gid in chunk], "int32")}
        assert source.put_prompts(TOPIC, list(chunk), prompts, cursor=chunk.stop).cursor >= chunk.stop
        leases: list[m.GroupLease] = []
        while len(leases) < len(chunk):
            leases += rollout.pull(TOPIC, loaded=0, limit=CHUNK, wait_s=5.0).result(10.0).groups
        fences = {lease.gid: lease.fence for lease in leases}
        keys = [(gid, row) for gid in fences for row in range(ROWS)]
        puts = [m.RowPut(gid, fences[gid], row, {}, len(response(gid, row)), 0, 0) for gid, row in keys]
        heavy = [key for key in keys if key[1] == 1]  # the other rows have no weight
        slices = rollout.write([gid for gid, _ in heavy], {"weight": np.array([gid / 2 for gid, _ in heavy])}, rollout.topic(TOPIC))["weight"]
        weights = dict(zip(heavy, slices, strict=True))
        puts = [put if key not in weights else m.RowPut(*put_fields(put, weights[key])) for key, put in zip(keys, puts, strict=True)]
        rollout.put_rows(TOPIC, puts, dict.fromkeys(fences, ROWS), columns(keys))


def put_fields(put: m.RowPut, weight: m.Slice) -> tuple[Any, ...]:
    return put.gid, put.fence, put.row, {"weight": weight}, put.tokens, put.oldest_version, put.newest_version


def stop_at(client: QueueClient, rows: int) -> None:
    """Once the reader has acknowledged so many."""
    while client.status().result(5.0).status.topics[0].consumers[0].done_rows < rows:
        client.poll(0.02)
    client.stop("all are done").result(5.0)


# ------------------------------------------------------------ the process


def main(kind: str, lease_s: str) -> None:
    running = LocalQueue([spec(kind)], shards=2, heartbeat_s=300.0, lease_s=float(lease_s), stall_s=300.0)
    with running as queue, queue.client("source-0") as source, queue.client("rollout-0") as rollout:
        print(queue.url, flush=True)
        for line in sys.stdin:
            word, *numbers = line.split()
            if word == "put":
                produce(source, rollout, range(*map(int, numbers)))
            if word == "close":
                source.close_prompts(TOPIC, int(numbers[0])).result(5.0)
            if word == "stop_at":
                stop_at(source, int(numbers[0]))
            print(word, flush=True)


class Served:
    """The process as a test sees it. Killed on leaving the context."""

    def __init__(self, kind: str = "plain", lease_s: float = 300.0) -> None:
        command = [sys.executable, __file__, kind, str(lease_s)]
        self._popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.put = 0  # groups so far
        self.url = self._heard()
        self.client = QueueClient.outsider(self.url, timeout_s=10.0)

    def start_put(self, groups: int) -> list[tuple[int, int]]:
        """Goes on in the background. Returns the keys of its rows."""
        gids = range(self.put, self.put + groups)
        self.put += groups
        self._tell(f"put {gids.start} {gids.stop}")
        return [(gid, row) for gid in gids for row in range(ROWS)]

    def settle(self) -> None:
        """Until the last command was carried out."""
        self._heard()

    def fill(self, groups: int) -> list[tuple[int, int]]:
        keys = self.start_put(groups)
        self.settle()
        return keys

    def close_topic(self, count: int) -> None:
        self._tell(f"close {count}")
        self.settle()

    def stop_at(self, rows: int) -> None:
        """In the background: the run is stopped once the reader has acknowledged so many rows."""
        self._tell(f"stop_at {rows}")

    def stop(self, reason: str) -> None:
        self.client.stop(reason).result(10.0)

    def status(self) -> m.TopicStatus:
        return self.client.status().result(10.0).status.topics[0]

    def consumer(self, name: str) -> m.ConsumerStatus:
        return next(consumer for consumer in self.status().consumers if consumer.name == name)

    def members(self) -> set[str]:
        """Who is not ours."""
        known = {"source", "rollout", "shard"}
        return {member for member in self.client.status().result(10.0).status.members if member.partition("-")[0] not in known}

    def freeze(self) -> None:
        """Its connections stay, and nothing answers."""
        self._popen.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._popen.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait(10)

    def _tell(self, line: str) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(line + "\n")
        self._popen.stdin.flush()

    def _heard(self) -> str:
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        assert line, f"the queue's process ended with {self._popen.wait(10)}"
        return line.strip()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.client.close()
        self.kill()
        for pipe in (self._popen.stdin, self._popen.stdout):
            assert pipe is not None
            pipe.close()


# ------------------------------------------------------------ readers


def drained(loader: Any, rows: int, each: Callable[[Any], None] = lambda batch: None) -> Counter[tuple[int, int]]:
    """How often each row came, until `rows` have come; then the loop is left, and they are done."""
    seen: Counter[tuple[int, int]] = Counter()
    for batch in loader:
        seen.update(batch.receipt.keys())
        each(batch)
        if seen.total() >= rows:
            loader.acknowledge()
            break
    return seen


def workers() -> set[psutil.Process]:
    """Our child processes, but for the one that Python starts beside spawned ones and keeps."""
    found = set()
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            if "resource_tracker" not in " ".join(child.cmdline()):
                found.add(child)
    return found


@contextmanager
def leaves_nothing(served: Served) -> Iterator[None]:
    """No process, member or lease of ours is left."""
    before = workers()
    yield
    assert workers() <= before
    assert served.members() == set()
    assert [consumer.leased_rows for consumer in served.status().consumers] == [0, 0, 0]


if __name__ == "__main__":
    main(*sys.argv[1:])

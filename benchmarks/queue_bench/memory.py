"""What a stored and read payload costs in memory, over all processes, and whether it comes back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import msgspec

from benchmarks.harness import Row
from benchmarks.processes import memory_mib
from benchmarks.queue_bench.adapter import Queue, topic_of
from benchmarks.queue_bench.asking import Asked
from benchmarks.queue_bench.bulk import CLIENT, join_all
from benchmarks.queue_bench.measure import Bench, value_at_most
from benchmarks.queue_bench.payload import Case

SETTLE_S = 10.0  # servers free by messages of their own, which may be on their way


def per_payload(bench: Bench) -> Iterator[Row]:
    """Growth of the proportional set sizes of controller, shards, producer and consumer. Prompts are one a group, and count once."""
    case, prompt_tokens = bench.scope.memory, bench.scope.prompt_tokens
    mib = (case.nbytes + case.rows // case.group_rows * prompt_tokens * 8) / 2**20
    with ExitStack() as stack:
        queue = stack.enter_context(Queue(topic_of(case, shared=True), keep_bytes=0))
        producer, consumer = clients = [stack.enter_context(Asked(CLIENT)) for _ in range(2)]
        join_all(clients, queue, keep_bytes=0)
        pids = [*queue.pids, *(client.pid for client in clients)]
        _one_group(producer, consumer, case, prompt_tokens)
        producer.ask("make", case=case.wire(), prompt_tokens=prompt_tokens)
        start = _Seen.now(pids)
        producer.ask("put")
        stored = _Seen.now(pids)
        consumer.ask("take_and_read", rows=case.rows, keep=True)
        consumer.ask("read_held")
        held = _Seen.now(pids)
        consumer.ask("let_go")
        after = _settled(pids, start.pss_mib + 0.01 * mib)
    what = f"{mib:.0f} MiB in {case.rows:,} rows, a prompt of {prompt_tokens * 8 // 1024} KiB a group of {case.group_rows} counted once"
    name, unit = "memory of all processes ÷ payload", "× payload"
    for when, seen, goal in (("stored", stored, 1.1), ("read and held", held, 1.1), ("after deletion", after, 0.05)):
        shared = f"all shared memory of the machine: {seen.shared_mib - start.shared_mib:+.0f} MiB from the start"
        yield value_at_most(f"{name}, {when}", (seen.pss_mib - start.pss_mib) / mib, unit, goal, f"keep_bytes 0; {what}; 2 clients; {shared}")


def _one_group(producer: Asked, consumer: Asked, case: Case, prompt_tokens: int) -> None:
    """There and back: libraries that are loaded on first use are no payload."""
    producer.ask("make", case=replace(case, rows=case.group_rows).wire(), prompt_tokens=prompt_tokens)
    producer.ask("put")
    consumer.ask("take_and_read", rows=case.group_rows)
    consumer.ask("let_go")


class _Seen(msgspec.Struct, frozen=True):
    pss_mib: float  # of the processes
    shared_mib: float  # of the system: what memfds hold, mapped or not

    @staticmethod
    def now(pids: list[int]) -> _Seen:
        line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("Shmem:"))
        return _Seen(memory_mib(pids), int(line.split()[1]) / 1024)


def _settled(pids: list[int], enough_mib: float) -> _Seen:
    """As soon as it is little enough, or at the deadline."""
    deadline, seen = time.monotonic() + SETTLE_S, _Seen.now(pids)
    while seen.pss_mib > enough_mib and time.monotonic() < deadline:
        seen = _Seen.now(pids)
    return seen

"""Rows of much data on one host: put, get, get and read, against memory itself and the peers; with one client and with several."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from benchmarks.harness import Row, compared
from benchmarks.queue_bench.adapter import Member, Queue, as_columns, topic_of
from benchmarks.queue_bench.asking import Asked, ask_all, together_s
from benchmarks.queue_bench.limits import Gather, WarmMemory
from benchmarks.queue_bench.measure import Bench, Parts, Side, against, alternate, at_most, peer_side, timed
from benchmarks.queue_bench.payload import Case, read_every_byte
from benchmarks.queue_bench.peers import RAY, TRANSFER_QUEUE

CLIENT = "benchmarks.queue_bench.client"


class Rounds:
    """Put, take, read, look at every byte, drop: one member's repetitions over one case."""

    def __init__(self, member: Member, case: Case) -> None:
        self._member, self._case = member, case
        self.values = case.values()
        self._columns = as_columns(case, self.values)
        self._sum = read_every_byte(list(self.values.values()))

    def __call__(self) -> Parts:
        begin = time.perf_counter()
        self._member.put(self._columns, self._case.rows)
        put = time.perf_counter()
        taken = self._member.take(self._case.rows)
        took = time.perf_counter()
        got = self._member.read(taken)
        gotten = time.perf_counter()
        found = read_every_byte([tensor.numpy() for tensor in got.values()])
        read = time.perf_counter()
        if found != self._sum:
            raise ValueError(f"{self._case.label}: the bytes that came back add up to {found}, those that were put to {self._sum}")
        del got
        self._member.drop(taken)
        return {"put_s": put - begin, "get_s": gotten - took, "get_and_read_s": read - took}


def one_client(bench: Bench) -> Iterator[Row]:
    """Put and get of each case by one client; the limits are a copy into warm shared memory and a read of it."""
    for case in bench.scope.cases:
        found, path = _measured(bench, case)
        note = f"1 client, 1 shard, groups of {case.group_rows} rows, path: {path}"
        missing = bench.peers.why(TRANSFER_QUEUE), "Ray knows no jagged columns" if case.jagged else bench.peers.why(RAY)
        yield from _put_rows(case, found, note, *missing)
        yield from _get_rows(case, found, note, *missing)


def _measured(bench: Bench, case: Case) -> tuple[dict[str, float], str]:
    """Medians by side and part, and how our bytes travelled."""
    with ExitStack() as stack:
        queue = stack.enter_context(Queue(topic_of(case), shards=1))
        member = stack.enter_context(queue.member("member-0"))
        ours = Rounds(member, case)
        columns = list(ours.values.values())
        memory = WarmMemory([column.nbytes for column in columns])
        stack.callback(memory.close)
        looker = stack.enter_context(Asked(CLIENT))
        looker.ask("look_at", pid=os.getpid(), fd=memory.fd, nbytes=memory.nbytes)
        sides: dict[str, Side] = {"ours": ours, "copy": timed(partial(memory.copy_in, columns)), "mapped": timed(memory.read)}
        sides |= peer_side(bench, TRANSFER_QUEUE, case.wire())
        sides |= {} if case.jagged else peer_side(bench, RAY, case.wire())
        return alternate(bench.scope.repeats, sides), member.path


def _put_rows(case: Case, found: dict[str, float], note: str, why: str, why_ray: str) -> Iterator[Row]:
    speed = {name: case.nbytes / seconds / 1e9 for name, seconds in found.items()}
    ours, what = speed["ours put_s"], f"put {case.label}: against"
    yield compared(f"{what} a copy into warm shared memory", ours, "GB/s", speed["copy s"], at_least=0.8, note=note)
    yield against(f"{what} TransferQueue", ours, "GB/s", speed.get("TransferQueue put_s"), why, note=note)
    yield against(f"{what} ray.put", ours, "GB/s", speed.get("Ray put_s"), why_ray, note=note)


def _get_rows(case: Case, found: dict[str, float], note: str, why: str, why_ray: str) -> Iterator[Row]:
    rate = {name: 1 / seconds for name, seconds in found.items()}
    ours, both = rate["ours get_s"], rate["ours get_and_read_s"]
    what, usable = f"get {case.label}: against", f"{note}; until tensors are usable: {1e3 / ours:.3g} ms"
    yield against(f"{what} TransferQueue", ours, "gets/s", rate.get("TransferQueue get_s"), why, 20.0 if case.nbytes < 5e8 else None, usable)
    yield against(f"{what} ray.get", ours, "gets/s", rate.get("Ray get_s"), why_ray, note=usable)
    yield at_most(f"get and read {case.label}: against reading mapped bytes", 1e3 / both, "ms", 1e3 / rate["mapped s"], 1.2, note)
    theirs = rate.get("TransferQueue get_and_read_s")
    yield against(f"get and read {case.label}: against TransferQueue", both, "gets/s", theirs, why, 5.0, f"{note}; the same read")


def same_number_of_rows(bench: Bench) -> Iterator[Row]:
    """Get of as many rows, little and much data: finding rows may cost, bytes may not."""
    with ExitStack() as stack:
        sides = {}
        for case in bench.scope.same_rows:
            queue = stack.enter_context(Queue(topic_of(case), shards=1))
            sides[case.label] = Rounds(stack.enter_context(queue.member("member-0")), case)
        found = alternate(bench.scope.repeats, sides)
    small, *larger = [case.label for case in bench.scope.same_rows]
    for label in larger:
        value, reference = found[f"{label} get_s"] * 1e3, found[f"{small} get_s"] * 1e3
        yield at_most(f"get {label}: against {small}", value, "ms", reference, 2.0, "1 client; until tensors are usable")


def several_clients(bench: Bench) -> Iterator[Row]:
    """Clients that put at the same time, against as many processes that copy at the same time."""
    scope, case = bench.scope, bench.scope.each
    with ExitStack() as stack:
        queue = stack.enter_context(Queue(topic_of(case)))
        clients = [stack.enter_context(Asked(CLIENT)) for _ in range(scope.clients)]
        copiers = [stack.enter_context(Asked(CLIENT)) for _ in range(scope.clients)]
        join_all(clients, queue)
        ask_all(clients, "make", case=case.wire())
        ask_all(copiers, "warm", nbytes=case.nbytes)

        def ours() -> Parts:
            put_s = together_s(ask_all(clients, "put"))
            ask_all(clients, "take_and_read", rows=case.rows)
            ask_all(clients, "let_go")
            return {"s": put_s}

        found = alternate(scope.repeats, {"ours": ours, "copy": lambda: {"s": together_s(ask_all(copiers, "copy"))}})
    total = scope.clients * case.nbytes / 1e9
    name = f"put {scope.clients} × {case.label}: against as many copies into warm shared memory"
    yield compared(name, total / found["ours s"], "GB/s", total / found["copy s"], at_least=0.8, note=f"{scope.clients} clients at once, 2 shards")


def rows_of_many_puts(bench: Bench) -> Iterator[Row]:
    """One dense batch out of many puts by several producers, against one gather of the same pieces by memcpy."""
    scope, case = bench.scope, bench.scope.pieces
    rows = scope.producers * scope.puts * case.rows
    batch = Case(rows, case.tokens, group_rows=case.group_rows)
    with ExitStack() as stack:
        queue = stack.enter_context(Queue(topic_of(case)))
        producers = [stack.enter_context(Asked(CLIENT)) for _ in range(scope.producers)]
        join_all(producers, queue)
        ask_all(producers, "make", case=case.wire())
        member = stack.enter_context(queue.member("member-99"))
        limit = Gather(list(batch.values().values()), scope.producers * scope.puts)
        stack.callback(limit.close)

        def ours() -> Parts:
            for _ in range(scope.puts):
                ask_all(producers, "put")
            taken = member.take(rows)
            begin = time.perf_counter()
            got = member.read(taken)
            seconds = time.perf_counter() - begin
            del got
            member.drop(taken)
            return {"s": seconds}

        found = alternate(scope.repeats, {"ours": ours, "gather": timed(limit.run)})
        path = member.path
    name = f"get {rows} rows of {scope.producers * scope.puts} puts ({batch.nbytes / 1e6:.3g} MB): against one gather by memcpy"
    note = f"1 client, {scope.producers} producers, 2 shards, as one dense batch; both into a warm destination; path: {path}"
    speeds = [batch.nbytes / found[side] / 1e9 for side in ("ours s", "gather s")]
    yield compared(name, speeds[0], "GB/s", speeds[1], at_least=0.8, note=note)


def join_all(clients: list[Asked], queue: Queue, **path: Any) -> None:
    """`path`: map_memory and keep_bytes of each."""
    for index, client in enumerate(clients):
        client.send("join", url=queue.url, name=f"client-{index}", security=queue.worker_keys, **path)
    for client in clients:
        client.receive()

"""Put and get over TCP, as between hosts: against raw ZMQ with nothing above it, without and with CURVE."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from benchmarks.harness import Row, compared
from benchmarks.queue_bench.adapter import Member, Queue, as_columns, topic_of
from benchmarks.queue_bench.asking import Asked, ask_all, together_s
from benchmarks.queue_bench.bulk import CLIENT, join_all
from benchmarks.queue_bench.measure import Bench, Parts, alternate
from benchmarks.queue_bench.payload import Case
from benchmarks.queue_bench.raw_zmq import RawClient

RAW = "benchmarks.queue_bench.raw_zmq"
FRAME_BYTES = 4 << 20


def over_sockets(bench: Bench) -> Iterator[Row]:
    for secured in (False, True):
        yield from _one_client(bench, secured)
        yield from _several_clients(bench, secured)


def _one_client(bench: Bench, secured: bool) -> Iterator[Row]:
    case = bench.scope.socket
    with ExitStack() as stack:
        queue = stack.enter_context(Queue(topic_of(case), shards=1, secured=secured))
        member = stack.enter_context(queue.member("member-0", map_memory=False))
        server = stack.enter_context(Asked(RAW)).ask("start", secured=secured)
        raw = RawClient(server["endpoint"], server["key"])
        stack.callback(raw.close)
        values = case.values()
        columns = as_columns(case, values)

        def limit(frame_bytes: int | None) -> Parts:
            begin = time.perf_counter()
            raw.put(list(values.values()), frame_bytes)
            put = time.perf_counter()
            raw.get()
            return {"put_s": put - begin, "get_s": time.perf_counter() - put}

        sides = {"ours": partial(_round, member, columns, case), "raw": partial(limit, None), "cut": partial(limit, FRAME_BYTES)}
        found = alternate(bench.scope.repeats, sides)
        assert member.path == "bytes", member.path
    note = f"1 client, 1 shard, loopback, CURVE {'on' if secured else 'off'} in both"
    for part in ("put", "get"):
        ours, whole, cut = (case.nbytes / found[f"{side} {part}_s"] / 1e9 for side in ("ours", "raw", "cut"))
        name = f"{part} over TCP {case.label}, CURVE {'on' if secured else 'off'}: against raw ZMQ"
        yield compared(name, ours, "GB/s", whole, at_least=0.9, note=f"{note}; a frame a column")
        yield compared(f"{name} in frames of {FRAME_BYTES >> 20} MiB", ours, "GB/s", cut, note=f"{note}; these leave no column in one piece")


def _round(member: Member, columns: dict[str, object], case: Case) -> Parts:
    begin = time.perf_counter()
    member.put(columns, case.rows)
    put = time.perf_counter()
    taken = member.take(case.rows)
    took = time.perf_counter()
    got = member.read(taken)
    end = time.perf_counter()
    del got
    member.drop(taken)
    return {"put_s": put - begin, "get_s": end - took}


def _several_clients(bench: Bench, secured: bool) -> Iterator[Row]:
    """All put and get at the same time; raw: one server, as there is one shard."""
    scope, case = bench.scope, bench.scope.socket_each
    with ExitStack() as stack:
        queue = stack.enter_context(Queue(topic_of(case), shards=1, secured=secured))
        clients = [stack.enter_context(Asked(CLIENT)) for _ in range(scope.clients)]
        join_all(clients, queue, map_memory=False)
        server = stack.enter_context(Asked(RAW)).ask("start", secured=secured)
        ask_all(clients, "make", case=case.wire())
        ask_all(clients, "raw_connect", endpoint=server["endpoint"], key=server["key"])

        def ours() -> Parts:
            seconds = together_s(ask_all(clients, "put_and_get"))
            ask_all(clients, "let_go")
            return {"s": seconds}

        found = alternate(scope.repeats, {"ours": ours, "raw": lambda: {"s": together_s(ask_all(clients, "raw_put_and_get"))}})
    total = 2 * scope.clients * case.nbytes / 1e9  # there and back
    name = f"put and get over TCP {scope.clients} × {case.label}, CURVE {'on' if secured else 'off'}: against raw ZMQ"
    note = f"{scope.clients} clients at once, 1 shard and 1 raw server, loopback, CURVE {'on' if secured else 'off'} in both"
    yield compared(name, total / found["ours s"], "GB/s", total / found["raw s"], at_least=0.9, note=note)

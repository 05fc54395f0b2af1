"""What one call of the benchmark does: sizes, repetitions, clients."""

from __future__ import annotations

import msgspec

from benchmarks.queue_bench.payload import Case


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    repeats: int
    cases: tuple[Case, ...]  # put and get against limits and peers
    same_rows: tuple[Case, ...]  # get of as many rows at different sizes; the first is the yardstick
    clients: int  # of throughput rows
    each: Case  # what each of several clients puts
    producers: int
    pieces: Case  # one put of a producer
    puts: int  # of a producer
    socket: Case
    socket_each: Case  # what each of several clients puts over a socket
    batches: dict[int, int]  # samples a batch → repetitions of ours in a turn
    peer_share: int  # the peer does so many times fewer
    stored: tuple[int, ...]  # rows in the queue; the first is the yardstick
    stored_count: int
    peer_stored: tuple[int, ...]
    memory: Case
    prompt_tokens: int


def full() -> Scope:
    return Scope(
        repeats=5,
        cases=(
            Case(256, 43_690, group_rows=16),
            Case(256, 43_690, jagged=True, group_rows=16),
            Case(10_172, 8_192, group_rows=4),
            Case(10_172, 8_192, jagged=True, group_rows=4),
        ),
        same_rows=(Case(256, 341, group_rows=16), Case(256, 43_690, group_rows=16), Case(256, 333_333, group_rows=16)),
        clients=8,
        each=Case(256, 43_690, group_rows=16),
        producers=8,
        pieces=Case(8, 43_690, group_rows=8),
        puts=4,
        socket=Case(256, 43_690, group_rows=16),
        socket_each=Case(32, 43_690, group_rows=16),
        batches={1: 400, 16: 200, 256: 40},
        peer_share=4,
        stored=(1_000, 100_000, 1_000_000),
        stored_count=40,
        peer_stored=(1_000, 100_000),
        memory=Case(4_096, 8_192, group_rows=16),
        prompt_tokens=1_024,
    )


def quick() -> Scope:
    small = Case(16, 1_000, group_rows=4)
    return Scope(
        repeats=2,
        cases=(small, Case(16, 1_000, jagged=True, group_rows=4)),
        same_rows=(Case(16, 100, group_rows=4), small),
        clients=2,
        each=small,
        producers=2,
        pieces=Case(2, 1_000, group_rows=2),
        puts=2,
        socket=small,
        socket_each=small,
        batches={1: 5, 16: 3},
        peer_share=1,
        stored=(50, 200),
        stored_count=3,
        peer_stored=(50,),
        memory=Case(64, 4_096, group_rows=16),
        prompt_tokens=1_024,
    )

"""Samples of 1 KB: put → take → read, against the peer; and the same with more and more rows stored."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import numpy as np

from benchmarks.harness import Row
from benchmarks.queue_bench.adapter import Member, Queue, sample_topic
from benchmarks.queue_bench.asking import Asked, ProcessFailed, ask_all, together_s
from benchmarks.queue_bench.bulk import CLIENT, join_all
from benchmarks.queue_bench.client import sample_seconds
from benchmarks.queue_bench.measure import PEER_S, Bench, Parts, Side, against, alternate, at_most, guarded, percentile, timed, value_at_most
from benchmarks.queue_bench.peers import TRANSFER_QUEUE, PeerMissing
from benchmarks.queue_bench.raw_zmq import RawClient
from benchmarks.queue_bench.sockets import RAW

FILL = 4096  # rows of a put that only fills
ROUND_TRIPS = 100


def one_client(bench: Bench) -> Iterator[Row]:
    """Latency, and what one client alone gets through."""
    scope = bench.scope
    with ExitStack() as stack:
        queue = stack.enter_context(Queue(sample_topic()))
        member = stack.enter_context(queue.member("member-0"))
        server = stack.enter_context(Asked(RAW)).ask("start", secured=False)
        raw = RawClient(server["endpoint"], server["key"])
        stack.callback(raw.close)
        peer = _peer(bench)
        for batch, count in scope.batches.items():
            sides: dict[str, Side] = {"ours": partial(_our_parts, member, batch, count)}
            if peer is not None:
                sides["peer"] = guarded(bench, TRANSFER_QUEUE, partial(_peer_parts, peer, batch, max(1, count // scope.peer_share)))
            if batch == 1:
                sides["raw"] = timed(lambda: raw.round_trips(ROUND_TRIPS))
            found = alternate(scope.repeats, sides, warmups=1)
            yield from _latency_rows(batch, found, bench.peers.why(TRANSFER_QUEUE))


def _latency_rows(batch: int, found: dict[str, float], why: str) -> Iterator[Row]:
    name = f"{batch} × 1 KB put → take → read"
    for part, goal in (("p50", 0.7), ("p99", 3.0)):
        peer = f"{found[f'peer {part}'] * 1e3:.3g} ms" if f"peer {part}" in found else why
        value, note = found[f"ours {part}"] * 1e3, f"1 client; medians of each repetition's; TransferQueue: {peer}"
        if batch == 1:
            yield value_at_most(f"{name}: {part}", value, "ms", goal, note)
        else:
            yield Row(name=f"{name}: {part}", value=value, unit="ms", note=note)
    if "raw s" in found:
        yield Row(name="raw ZMQ round trip over TCP", value=found["raw s"] / ROUND_TRIPS * 1e3, unit="ms", note="1 client; the limit of a request")
    theirs = batch / found["peer each"] if "peer each" in found else None
    yield against(f"{name}: against TransferQueue", batch / found["ours each"], "samples/s", theirs, why, 10.0, "1 client")


def _our_parts(member: Member, batch: int, count: int) -> Parts:
    seconds, taken = sample_seconds(member, batch, count)
    for one in taken:
        member.drop(one)
    return _parts(seconds)


def _parts(seconds: list[float]) -> Parts:
    return {"p50": percentile(seconds, 0.5), "p99": percentile(seconds, 0.99), "each": statistics.fmean(seconds)}


def _peer_parts(peer: Asked, batch: int, count: int) -> Parts:
    seconds = peer.ask("samples", PEER_S, batch=batch, count=count)["seconds"]
    peer.ask("clear")
    return _parts(seconds)


def _peer(bench: Bench) -> Asked | None:
    try:
        return bench.peers.get(TRANSFER_QUEUE)
    except PeerMissing:
        return None


def several_clients(bench: Bench) -> Iterator[Row]:
    """Throughput: each of several clients puts, takes and reads, all at once, from one topic (of the peer: one partition)."""
    scope = bench.scope
    with ExitStack() as stack:
        queue = stack.enter_context(Queue(sample_topic()))
        clients = [stack.enter_context(Asked(CLIENT)) for _ in range(scope.clients)]
        join_all(clients, queue)
        peers = bench.peers.more(TRANSFER_QUEUE, scope.clients, stack)
        for batch, count in scope.batches.items():
            fewer = max(1, count // scope.peer_share)

            def ours(batch: int = batch, count: int = count) -> Parts:
                return {"each": together_s(ask_all(clients, "samples", batch=batch, count=count)) / (count * len(clients) * batch)}

            def theirs(batch: int = batch, count: int = fewer) -> Parts:
                seconds = together_s(ask_all(peers, "samples", PEER_S, batch=batch, count=count))
                peers[0].ask("clear")
                return {"each": seconds / (count * len(peers) * batch)}

            found = alternate(scope.repeats, {"ours": ours, **({"peer": guarded(bench, TRANSFER_QUEUE, theirs)} if peers else {})}, warmups=1)
            slow = found.get("peer each")
            yield against(
                f"{batch} × 1 KB put → take → read, {scope.clients} clients: against TransferQueue",
                1 / found["ours each"],
                "samples/s",
                None if slow is None else 1 / slow,
                bench.peers.why(TRANSFER_QUEUE),
                10.0,
                f"{scope.clients} clients at once, 2 shards",
            )


def with_rows_stored(bench: Bench) -> Iterator[Row]:
    """One queue a level, all filled first: taking is of the oldest rows, so that what is stored is what is searched."""
    scope = bench.scope
    with ExitStack() as stack:
        members = {}
        for stored in scope.stored:
            queue = stack.enter_context(Queue(sample_topic()))
            members[stored] = stack.enter_context(queue.member("member-0"))
            _fill(members[stored], stored)
        for batch in scope.batches:
            sides = {str(stored): partial(_our_parts, member, batch, scope.stored_count) for stored, member in members.items()}
            found = alternate(scope.repeats, sides, warmups=1)
            for stored in scope.stored[1:]:
                name = f"{batch} × 1 KB put → take → read with {stored:,} rows stored: against {scope.stored[0]:,}"
                value, reference = found[f"{stored} p50"] * 1e3, found[f"{scope.stored[0]} p50"] * 1e3
                yield at_most(name, value, "ms p50", reference, 1.2, "1 client, rows that nobody has taken, 2 shards")
    yield from _peer_with_rows_stored(bench)


def _fill(member: Member, rows: int) -> None:
    for begin in range(0, rows, FILL):
        count = min(FILL, rows - begin)
        member.put({"ids": np.ones((count, 256), dtype=np.int32)}, count)


def _peer_with_rows_stored(bench: Bench) -> Iterator[Row]:
    """For comparison, one level after the other: it has one controller."""
    have, batch = 0, max(size for size in bench.scope.batches if size <= 16)
    for stored in bench.scope.peer_stored:
        name = f"TransferQueue: {batch} × 1 KB put → get_meta → get_data with {stored:,} rows stored"
        try:
            peer = bench.peers.get(TRANSFER_QUEUE)
            peer.ask("fill", PEER_S, rows=stored - have)
            found = peer.ask("samples", PEER_S, batch=batch, count=bench.scope.stored_count, partition="stored")
        except (PeerMissing, ProcessFailed) as error:
            bench.peers.give_up(TRANSFER_QUEUE, error)
            yield Row(name=name, value=None, unit="ms p50", note=bench.peers.why(TRANSFER_QUEUE))
            continue
        have = stored
        note = f"1 client; get_meta alone {percentile(found['asked'], 0.5) * 1e3:.3g} ms"
        yield Row(name=name, value=percentile(found["seconds"], 0.5) * 1e3, unit="ms p50", note=note)

"""What is known of one topic when a soak is over: what its processes wrote down, the ledger, and which shards were killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tests.soak import records as r
from tests.soak.content import Key
from tests.soak.settings import ASKED, PUT, seats

Group = tuple[int, int, int]  # producer's number, its life, serial number there


class Evidence(msgspec.Struct):
    """Groups are named by gid, and, where a writer put them, by who put them as his how-maniest."""

    tried: set[Group] = msgspec.field(default_factory=set)  # a writer sent them off
    acknowledged: list[tuple[int, Group, float]] = msgspec.field(default_factory=list)  # gid, group, when its put came back
    prompted: set[int] = msgspec.field(default_factory=set)
    pulled: set[int] = msgspec.field(default_factory=set)
    graded: dict[tuple[int, int], list[float]] = msgspec.field(default_factory=dict)  # (gid, row) → when it was written back
    batches: dict[int, list[tuple[int, int, Key]]] = msgspec.field(default_factory=dict)  # step → what the last trainer that began to commit it had
    ledger: dict[str, int] = msgspec.field(default_factory=dict)
    version: int = 0
    target: int = 0
    losses: list[float] = msgspec.field(default_factory=list)  # when a shard was killed
    unnoted: int = 0  # most rows that graders can have written back without writing it down: they were killed in between, or got no answer


class Told(msgspec.Struct):
    """What the processes wrote down that is no matter of a topic."""

    wrong: list[str] = msgspec.field(default_factory=list)
    hiccups: Counter[str] = msgspec.field(default_factory=Counter)  # calls that were made again, by who made them
    fuzzed: r.Fuzzed | None = None


def gather(folder: Path) -> tuple[dict[str, Evidence], Told]:
    """By topic. What the supervisor knows (ledger, version, target, losses, unnoted) is for it to fill in."""
    topics, indices = {seat.name: seat.topic for seat in seats()}, {seat.name: seat.index for seat in seats()}
    found, told = {PUT: Evidence(), ASKED: Evidence(), "": Evidence()}, Told()
    for name, life, record in r.read(folder):
        mine = found[topics[name]]
        match record:
            case r.Tried():
                mine.tried |= {(indices[name], life, record.serial + turn) for turn in range(record.groups)}
            case r.Acknowledged():
                mine.acknowledged += [(gid, (indices[name], life, record.serial + turn), record.t) for turn, gid in enumerate(record.gids)]
            case r.Prompted():
                mine.prompted |= set(range(record.first, record.end))
            case r.Pulled():
                mine.pulled |= set(record.gids)
            case r.Graded():
                _graded(mine, record.rows, record.t)
            case r.Batch():
                mine.batches[record.step] = record.rows
            case _:
                _tell(told, name, record)
    del found[""]  # the fuzzer's
    return found, told


def _graded(mine: Evidence, rows: Iterable[tuple[int, int]], t: float) -> None:
    for row in rows:
        mine.graded.setdefault(row, []).append(t)


def _tell(told: Told, name: str, record: r.AnyRecord) -> None:
    match record:
        case r.Wrong():
            told.wrong.append(f"{name}: {record.what}")
        case r.Hiccup():
            told.hiccups[name] += 1
        case r.Fuzzed():
            told.fuzzed = record

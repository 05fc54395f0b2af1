"""Medians of repetitions that take turns, so that drift of the machine hits all sides alike; and the rows made of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from benchmarks.harness import Row, compared
from benchmarks.queue_bench.asking import ProcessFailed
from benchmarks.queue_bench.peers import Peer, PeerMissing, Peers
from benchmarks.queue_bench.scope import Scope

PEER_S = 120.0  # the longest wait for one answer of a peer
Parts = Mapping[str, float]  # what one repetition of a side took, seconds by part
Side = Callable[[], Parts]


class Bench(msgspec.Struct, frozen=True):
    scope: Scope
    peers: Peers


def alternate(repeats: int, sides: Mapping[str, Side], warmups: int = 2) -> dict[str, float]:
    """Side after side, `warmups` + `repeats` times; medians of the repeats, seconds by "side part". A part that failed once is left out."""
    found: dict[str, list[float]] = {}
    for turn in range(warmups + repeats):
        for name, side in sides.items():
            parts = side()
            if turn >= warmups:
                for part, seconds in parts.items():
                    found.setdefault(f"{name} {part}", []).append(seconds)
    return {name: statistics.median(seconds) for name, seconds in found.items() if len(seconds) == repeats}


def timed(work: Callable[[], Any]) -> Side:
    """A side of one part, "s"."""

    def side() -> Parts:
        begin = time.perf_counter()
        work()
        return {"s": time.perf_counter() - begin}

    return side


def peer_side(bench: Bench, peer: Peer, case: dict[str, Any]) -> dict[str, Side]:
    """The peer's rounds over `case` as a side of its name; none where it is missing (`bench.peers.why` tells)."""
    try:
        bench.peers.get(peer).ask("make", case=case)
    except (PeerMissing, ProcessFailed):
        return {}
    return {peer.name: guarded(bench, peer, lambda: bench.peers.get(peer).ask("round", timeout_s=PEER_S))}


def guarded(bench: Bench, peer: Peer, side: Side) -> Side:
    """A peer that fails on the way ends its own rows, not the benchmark."""

    def run() -> Parts:
        if bench.peers.why(peer):
            return {}
        try:
            return side()
        except ProcessFailed as error:
            bench.peers.give_up(peer, error)
            return {}

    return run


def percentile(seconds: list[float], share: float) -> float:
    """The smallest value that `share` of them do not exceed."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def at_most(name: str, value: float, unit: str, reference: float, goal: float, note: str = "") -> Row:
    """A row whose goal is a greatest ratio of value to reference."""
    ratio = value / reference
    return Row(name=name, value=value, unit=unit, reference=reference, ratio=ratio, goal=goal, met=ratio <= goal, note=_joined("goal: at most", note))


def value_at_most(name: str, value: float, unit: str, goal: float, note: str = "") -> Row:
    """A row whose goal is a greatest value."""
    return Row(name=name, value=value, unit=unit, goal=goal, met=value <= goal, note=_joined("goal: at most", note))


def against(name: str, value: float, unit: str, reference: float | None, why: str, at_least: float | None = None, note: str = "") -> Row:
    """A row against a peer that may be missing: then nothing is claimed, and `why` is in the note."""
    if reference is None:
        return Row(name=name, value=value, unit=unit, goal=at_least, note=_joined(note, why))
    return compared(name, value, unit, reference, at_least=at_least, note=note)


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)

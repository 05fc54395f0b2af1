"""The timeline of every thread of every worker, small enough for a page: spans below the resolution are put together, longer ones stay exact.

A run of ten hours with a million spans must open in a browser, so the resolution is chosen such that at most `ITEMS_BOUND` items are left.
"""

from __future__ import annotations

from array import array

import msgspec
import numpy as np

from asyncflow.observe.records import TimelineRecord
from asyncflow.observe.report.data import Lane, Timeline

TICK_S = 0.001  # times on the page are whole milliseconds
ITEMS_BOUND = 200_000  # about 3 MB of JSON a run
JOIN_S = 0.05  # records of a worker tile its time; a gap below this is rounding
ROLES = ("source", "rollout", "scorer", "actor_forward", "ref_forward", "trainer", "publisher")  # the order of the stream
THREADS = ("main", "writer", "receiver")


class Spans:
    """Spans of one thread, in the order they were recorded."""

    def __init__(self) -> None:
        self.start_s, self.end_s, self.kind = array("d"), array("d"), array("i")

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Start and end in ticks (int64), kind (int32), sorted by start; an end never lies behind the next start."""
        start = np.rint(np.array(self.start_s) / TICK_S).astype(np.int64)
        end = np.rint(np.array(self.end_s) / TICK_S).astype(np.int64)
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        if len(end) > 1:
            end[:-1] = np.minimum(end[:-1], start[1:])
        return start, np.maximum(end, start), np.array(self.kind, dtype=np.int32)[order]


class Items(msgspec.Struct, frozen=True):
    """What is drawn on one lane: int64 arrays of equal length, `share` in percent."""

    start: np.ndarray
    length: np.ndarray
    kind: np.ndarray
    share: np.ndarray


class Lanes:
    """Collects records of timeline.jsonl; `timeline` makes what the page draws."""

    def __init__(self) -> None:
        self.records = self.spans = 0
        self.until_s = 0.0
        self.lengths: dict[int, int] = {}  # tokens of a finished response → how many
        self.loads: list[tuple[float, float, str]] = []  # start, end, "load" | "receive": taking in weights
        self._kinds: dict[str, int] = {}
        self._spans: dict[tuple[str, str, str], Spans] = {}  # (role, worker, thread)
        self._alive: dict[str, list[float]] = {}  # worker → from, until, from, until, …

    def apply(self, record: TimelineRecord) -> None:
        worker = record.member.partition("#")[0]
        self.records += 1
        self.until_s = max(self.until_s, record.until_s)
        self._extend(worker, record.from_s, record.until_s)
        self._spans.setdefault((record.role, worker, "main"), Spans())
        for span in record.spans:
            self.spans += 1
            spans = self._spans.setdefault((record.role, worker, span.thread), Spans())
            spans.start_s.append(span.start_s)
            spans.end_s.append(span.end_s)
            spans.kind.append(self._kinds.setdefault(f"{span.activity} {span.what}", len(self._kinds)))
            if span.what in ("load", "receive"):
                self.loads.append((span.start_s, span.end_s, span.what))
        for length in record.lengths:
            self.lengths[length] = self.lengths.get(length, 0) + 1

    def _extend(self, worker: str, from_s: float, until_s: float) -> None:
        alive = self._alive.setdefault(worker, [])
        if alive and from_s - alive[-1] < JOIN_S:
            alive[-1] = max(alive[-1], until_s)
        else:
            alive += [from_s, until_s]

    def timeline(self, items_bound: int = ITEMS_BOUND) -> Timeline | None:
        """None where nothing was recorded."""
        if self.records == 0:
            return None
        keys = sorted(self._spans, key=lambda key: (_place(ROLES, key[0]), key[0], _natural(key[1]), _place(THREADS, key[2]), key[2]))
        arrays = [self._spans[key].arrays() for key in keys]
        cell = _cell(arrays, items_bound)
        lanes = [self._lane(key, reduced(*arrays_of, cell)) for key, arrays_of in zip(keys, arrays, strict=True)]
        return Timeline(TICK_S, cell * TICK_S, self.spans, self.until_s, list(self._kinds), lanes)

    def _lane(self, key: tuple[str, str, str], items: Items) -> Lane:
        role, worker, thread = key
        alive = np.rint(np.array(self._alive[worker]) / TICK_S).astype(np.int64)
        recorded = int((alive[1::2] - alive[::2]).sum())
        busy_kinds = np.array([kind.startswith("busy ") for kind in self._kinds], dtype=bool)
        busy = float((items.length * items.share / 100)[busy_kinds[items.kind]].sum()) if len(items.kind) else 0.0
        return Lane(
            worker=worker,
            role=role,
            thread=thread,
            alive=alive.tolist(),
            start=np.diff(items.start, prepend=0).tolist(),
            length=items.length.tolist(),
            kind=items.kind.tolist(),
            share=items.share.tolist(),
            busy_share=min(1.0, busy / recorded) if recorded > 0 else None,
        )


def reduced(start: np.ndarray, end: np.ndarray, kind: np.ndarray, cell: int) -> Items:
    """Spans of at least `cell` ticks as they are; of the shorter ones, one item a cell and kind, with the share of the cell that they cover.

    A short span that crosses the end of a cell counts for both cells, by its parts there.
    """
    exact = (end - start >= cell) & (end > start)
    short = ~exact & (end > start)
    if not short.any():
        return Items(start[exact], (end - start)[exact], kind[exact].astype(np.int64), np.full(int(exact.sum()), 100))
    kinds = int(kind.max()) + 1
    border = (start[short] // cell + 1) * cell  # a short span crosses at most one
    first, rest = np.minimum(end[short], border) - start[short], np.maximum(end[short] - border, 0)
    keys = np.concatenate([(border // cell - 1) * kinds + kind[short], (border // cell * kinds + kind[short])[rest > 0]])
    cells, where = np.unique(keys, return_inverse=True)
    covered = np.bincount(where, weights=np.concatenate([first, rest[rest > 0]]).astype(np.float64))
    share = np.clip(np.rint(100 * covered / cell), 1, 100).astype(np.int64)
    items = Items(
        np.concatenate([start[exact], cells // kinds * cell]),
        np.concatenate([(end - start)[exact], np.full(len(cells), cell)]),
        np.concatenate([kind[exact], cells % kinds]).astype(np.int64),
        np.concatenate([np.full(int(exact.sum()), 100), share]),
    )
    order = np.argsort(items.start, kind="stable")
    return Items(items.start[order], items.length[order], items.kind[order], items.share[order])


def _cell(arrays: list[tuple[np.ndarray, np.ndarray, np.ndarray]], items_bound: int) -> int:
    """The smallest power of two of ticks (0: all exact) at which the items fit the bound."""
    cell = 0
    while sum(len(reduced(*lane, cell).start) for lane in arrays) > items_bound:
        cell = max(1, cell * 2)
    return cell


def _place(order: tuple[str, ...], name: str) -> int:
    return order.index(name) if name in order else len(order)


def _natural(worker: str) -> tuple[str, int]:
    """rollout-10 behind rollout-9."""
    stem, _, number = worker.rpartition("-")
    return (stem, int(number)) if number.isdigit() else (worker, -1)

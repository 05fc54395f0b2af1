"""`timeline.jsonl`, written in the controller's process: what workers recorded, placed on the controller's clock; and the sums of their costs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import msgspec

from asyncflow.observe.again import Again, Mark
from asyncflow.observe.log import LineLog
from asyncflow.observe.records import TIMELINE, CostSums, Span, TimelineRecord
from asyncflow.observe.trace import Trace, decode_trace

MICRO = 1e-6


class Known(msgspec.Struct):
    """One incarnation of a worker."""

    offset_s: float  # its start on the controller's clock, as near as the fastest heartbeat so far tells
    end: int = 0  # µs of its clock: recorded up to here
    until_s: float = 0.0  # the same on the controller's clock
    costs: dict[str, CostSums] = {}
    again: bool = False  # the controller was another process when it was heard last, which may have written down what it tells next


class TimelineMemory(msgspec.Struct, frozen=True):
    """What a controller that comes back goes on with. What a worker recorded between this and the controller's end is in the file; its costs come
    with its next heartbeat, for they are sums since its start (of one that died meanwhile they are lost)."""

    mark: Mark = Mark()
    known: dict[str, Known] = {}
    costs: dict[str, CostSums] = {}
    refused: dict[str, int] = {}


class TimelineLog:
    """Never raises for what a worker sent: that is counted in `refused`."""

    def __init__(self, run_dir: Path, memory: TimelineMemory | None = None) -> None:
        """`memory`: of a controller that ended, in whose file this one goes on."""
        memory = memory or TimelineMemory()
        again = Again(run_dir / TIMELINE, memory.mark)
        self._known = {member: msgspec.structs.replace(known, again=True) for member, known in memory.known.items()}
        while (line := again.accept()) is not None:
            self._recall(msgspec.json.decode(line, type=TimelineRecord))
        self._log = LineLog(run_dir / TIMELINE, again)
        self._costs = dict(memory.costs)
        self.refused = Counter(memory.refused)  # traces by member that were no trace, or told twice

    def _recall(self, record: TimelineRecord) -> None:
        """A line that is younger than the memory."""
        known = self._known.setdefault(record.member, Known(sys.float_info.max, again=True))
        known.until_s = max(known.until_s, record.until_s)

    @property
    def memory(self) -> TimelineMemory:
        """Good as soon as everything appended is on the disk."""
        return TimelineMemory(self._log.mark, self._known, self._costs, dict(self.refused))

    def flush(self) -> None:
        self._log.flush()

    @property
    def costs(self) -> dict[str, CostSums]:
        """Over all workers, dead ones included."""
        return dict(self._costs)

    def add(self, member: str, role: str, data: bytes, arrived_s: float) -> str | None:
        """Take one heartbeat's trace in. Returns what is wrong with it, None when nothing is. Raises RecordLost (see LineLog.append)."""
        try:
            trace = decode_trace(data)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            return self._refuse(member, f"{len(data)} bytes: {error}")
        known = self._known.get(member)
        offset_s = arrived_s - trace.end * MICRO
        if known is None:
            known = self._known[member] = Known(offset_s, trace.start, max(0.0, offset_s + trace.start * MICRO))
        if trace.start < known.end:
            return self._refuse(member, f"it starts at {trace.start} µs, and {known.end} µs were recorded before: the same time told twice")
        record = self._placed(known, member, role, trace, offset_s)
        again, known.again = known.again, False
        if not again or record.until_s > record.from_s:
            self._log.append(record)
        self._add_costs(known, trace.costs)
        return None

    def _refuse(self, member: str, why: str) -> str:
        self.refused[member] += 1
        return why

    def _placed(self, known: Known, member: str, role: str, trace: Trace, offset_s: float) -> TimelineRecord:
        """A heartbeat that took shorter than all before says better when the worker started: its times move back by that much. Records of a worker
        never overlap, so what would then lie before the end of the last one is cut off."""
        known.offset_s = min(known.offset_s, offset_s)
        floor_s = known.until_s

        def place(moment: int) -> float:
            return round(max(known.offset_s + moment * MICRO, floor_s), 6)

        spans = [
            Span(thread, span.activity, span.what, place(span.start), place(span.end))
            for thread, found in trace.threads.items()
            for span in found
            if place(span.end) > floor_s
        ]
        record = TimelineRecord(member, role, place(trace.start), place(trace.end), spans, trace.lengths)
        known.end, known.until_s = trace.end, record.until_s
        return record

    def _add_costs(self, known: Known, costs: dict[str, CostSums]) -> None:
        for key, sums in costs.items():
            grown = _minus(sums, known.costs.get(key, CostSums()))
            self._costs[key] = _plus(self._costs.get(key, CostSums()), grown)
        known.costs = {**known.costs, **costs}

    def forget(self, alive: Collection[str]) -> None:
        """Members that are gone send nothing any more; their costs stay in the sums."""
        self._known = {member: known for member, known in self._known.items() if member in alive}

    def close(self) -> None:
        self._log.close()


def _plus(first: CostSums, second: CostSums) -> CostSums:
    return CostSums(*(a + b for a, b in zip(msgspec.structs.astuple(first), msgspec.structs.astuple(second), strict=True)))


def _minus(first: CostSums, second: CostSums) -> CostSums:
    return CostSums(*(a - b for a, b in zip(msgspec.structs.astuple(first), msgspec.structs.astuple(second), strict=True)))

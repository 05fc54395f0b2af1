"""What a worker's heartbeats carry beside the directive's business: its timeline since the last one, and what its calls have cost so far."""

from __future__ import annotations

from asyncflow.observe.trace import Trace, TraceSpan, encode_trace
from asyncflow.workers.costs import CostMeter
from asyncflow.workers.phase import Thread
from asyncflow.workers.timeline import Taken, Timeline


class Recording:
    """Each moment is told once: what `take` returned is forgotten here. A heartbeat is sent once and consumed when it arrives, so that neither a
    cancelled nor a refused one is told twice; a worker whose heartbeat is lost ends, and with it the little that it carried."""

    def __init__(self, timeline: Timeline, costs: CostMeter) -> None:
        self._timeline, self._costs = timeline, costs

    def take(self, at_least_s: float = 0.0) -> bytes:
        """b"" when less than `at_least_s` has passed since the last: directives may change faster than anybody reads a timeline."""
        if self._timeline.age_s() < at_least_s:
            return b""
        taken = self._timeline.take()
        return encode_trace(Trace(_micro(taken.from_s), _micro(taken.until_s), _spans(taken), taken.lengths, self._costs.sums()))


def _spans(taken: Taken) -> dict[Thread, list[TraceSpan]]:
    """Rounding is monotonic, so spans that did not overlap do not overlap then."""
    return {
        thread: [TraceSpan(stretch.activity, stretch.what, _micro(stretch.start_s), _micro(stretch.end_s)) for stretch in stretches]
        for thread, stretches in taken.stretches.items()
        if stretches
    }


def _micro(seconds: float) -> int:
    return round(seconds * 1e6)

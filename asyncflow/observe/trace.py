"""How a worker's recording travels to the controller's process: a few kilobytes inside a heartbeat, opaque to the queue.

Times are microseconds since the worker's own start, so no clock is shared; `asyncflow.observe.timeline` places them on the controller's.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from asyncflow.observe.records import CostSums
from asyncflow.workers.phase import Thread

Moment = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]  # µs
Word = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
SUM_BOUND = 1e100  # sums of many workers stay finite, which JSON can hold
KEYS_BOUND = 64  # of one worker: they are kept for the rest of the run


class TraceSpan(msgspec.Struct, frozen=True, array_like=True):
    activity: Literal["busy", "paused"]
    what: Word
    start: Moment
    end: Moment


class Trace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one worker did from `start` to `end`."""

    start: Moment
    end: Moment
    threads: dict[Thread, list[TraceSpan]]  # in order, within [start, end], no two overlap
    lengths: list[Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]] = []
    costs: Annotated[dict[Word, CostSums], msgspec.Meta(max_length=KEYS_BOUND)] = {}  # cumulative since the worker's start


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Trace)


def encode_trace(trace: Trace) -> bytes:
    return _ENCODER.encode(trace)


def decode_trace(data: bytes) -> Trace:
    """Raises msgspec.DecodeError or ValueError for anything that is no trace."""
    trace = _DECODER.decode(data)
    if trace.end < trace.start:
        raise ValueError(f"it ends at {trace.end} µs, before its start at {trace.start}")
    for thread, spans in trace.threads.items():
        _check_order(thread, trace, spans)
    for key, sums in trace.costs.items():
        if not all(0 <= value <= SUM_BOUND for value in msgspec.structs.astuple(sums)):  # false for NaN too
            raise ValueError(f"costs of {key!r} are {sums}: a sum is finite and not negative, and never above {SUM_BOUND:g}")
    return trace


def _check_order(thread: str, trace: Trace, spans: list[TraceSpan]) -> None:
    before = trace.start
    for span in spans:
        if not before <= span.start <= span.end <= trace.end:
            raise ValueError(f"{thread}: span {span} starts before {before}, ends before it starts, or after {trace.end}")
        before = span.end

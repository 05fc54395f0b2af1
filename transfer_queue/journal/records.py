"""One input of the state machine as bytes, and back. A request is kept as it came off the socket."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from transfer_queue.journal.errors import JournalError
from transfer_queue.messages import Record

_HEAD = struct.Struct("<BdHI")  # kind, time, bytes of the connection's name, bytes of the payload


class Kind(IntEnum):
    REQUEST = 1  # payload: the frame
    TICK = 2
    FROZEN = 3  # payload: seconds, a double
    UNDELIVERED = 4  # payload: the reply
    UNREACHABLE = 5  # connection: the shard's name; payload: why
    RESTARTED = 6  # payload: Start
    CHOICE = 7  # of a sampler of somebody's own, made while the input before was taken in; payload: Choice


class Start(Record, frozen=True):
    """One start of a controller on this journal."""

    life: int  # starts before it
    boot: str  # of the machine
    ahead_s: float  # of the machine's monotonic clock
    silent_s: float = 0.0  # since the last input before it
    undone: bool = False  # whether acknowledged inputs may be missing before it


class Input(NamedTuple):
    kind: Kind
    now: float  # seconds of the state machine's clock
    connection: bytes
    payload: memoryview


def head(kind: Kind, now: float, connection: bytes, payload: int) -> bytes:
    """Everything of an input but its payload, of which only the length is told."""
    return _HEAD.pack(kind, now, len(connection), payload) + connection


def inputs(body: memoryview) -> Iterator[Input]:
    """Those of one page. Raises JournalError where it does not hold whole ones."""
    at = 0
    while at < len(body):
        try:
            kind, now, name, payload = _HEAD.unpack_from(body, at)
            start = at + _HEAD.size + name
            at = start + payload
            if at > len(body):
                raise ValueError(f"{payload} bytes of an input, {len(body) - start} are there")
            yield Input(Kind(kind), now, bytes(body[start - name : start]), body[start:at])
        except (struct.error, ValueError) as error:
            raise JournalError(f"a page whose sum is right holds no inputs: {error}; was it written by another release?") from error


def seconds(value: float) -> bytes:
    return struct.pack("<d", value)


def seconds_of(payload: memoryview) -> float:
    found: float = struct.unpack("<d", payload)[0]
    return found

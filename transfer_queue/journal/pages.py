"""Bytes that are written at once, with their length and sum: whole, or not there. Whatever a crash leaves behind the last whole page is no page."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import xxhash

from transfer_queue.journal.errors import JournalError

_BODY = struct.Struct("<QQQQ")  # bytes of the body, xxh3-64 of the rest of the page, two counts of the state machine when it was written
_HEAD = struct.Struct("<QQQQQ")  # the same, and xxh3-64 of it: a length that was damaged is no page that was cut
_SUM = struct.Struct("<QQ")
MAGIC = b"TQpages1"


class Page(NamedTuple):
    body: memoryview
    counts: tuple[int, int]
    end: int  # of the page in its file


def page(body: bytes | memoryview, counts: tuple[int, int] = (0, 0)) -> bytes:
    """The head of a page; its body follows."""
    total = xxhash.xxh3_64(_SUM.pack(*counts))
    total.update(body)
    head = _BODY.pack(len(body), total.intdigest(), *counts)
    return head + xxhash.xxh3_64_digest(head)[::-1]


def pages(file: memoryview) -> Iterator[Page]:
    """Whole pages from the beginning on; it ends before the first that is not."""
    at = len(MAGIC)
    if file[:at] != MAGIC:
        return
    while at + _HEAD.size <= len(file):
        if not _is_head(file[at:]):
            return
        nbytes, total, *counts = _BODY.unpack_from(file, at)
        begin = at + _HEAD.size
        body = file[begin : begin + nbytes]
        found = xxhash.xxh3_64(_SUM.pack(*counts))
        found.update(body)
        if len(body) < nbytes or found.intdigest() != total:
            return
        at = begin + nbytes
        yield Page(body, (counts[0], counts[1]), at)


def is_torn(rest: memoryview) -> bool:
    """Whether what lies behind the last whole page is the beginning of one, as a process leaves it that ended while it wrote."""
    return len(rest) < _HEAD.size or (_is_head(rest) and len(rest) - _HEAD.size < _BODY.unpack_from(rest)[0])


def _is_head(rest: memoryview) -> bool:
    """Whether it begins with a head that is as it was written."""
    *_, total = _HEAD.unpack_from(rest)
    return bool(total == xxhash.xxh3_64_intdigest(rest[: _BODY.size]))


def is_begun(file: memoryview) -> bool:
    """Whether a file without a whole first page is the beginning of one (or zeros, where the machine ended): nothing else was ever written to it."""
    at = len(MAGIC)
    return not any(file) or (bytes(file[:at]) == MAGIC[: len(file)] and is_torn(file[at:]))


def write(descriptor: int, pieces: Sequence[bytes | memoryview]) -> int:
    """All of it, or OSError; returns how many bytes."""
    left = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
    total = sum(len(piece) for piece in left)
    while left:
        done = os.writev(descriptor, left[:_IOV])
        while left and done >= len(left[0]):
            done -= len(left.pop(0))
        if done:
            left[0] = left[0][done:]
    return total


def unwritable(path: Path, error: OSError) -> JournalError:
    return JournalError(
        f"{path}: {error.strerror}: the controller cannot keep what it would acknowledge, so it ends; nothing that it acknowledged is lost. Give the "
        "journal's folder room, and start the controller again"
    )


_IOV = 64  # buffers in one call, below what any system allows

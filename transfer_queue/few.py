"""A read of a handful of rows out of mapped regions, in plain numbers: for so few, operations on arrays cost several times what they do.

The same bytes and columns as the ordinary way (`transfer_queue.fetching`, `transfer_queue.gather`) gives, or None: then that one is to go, which also
says what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

import numpy as np

from transfer_queue import messages as m
from transfer_queue.codec import Column, storage, unpack, value_elements
from transfer_queue.columns import Jagged
from transfer_queue.copying import MOST_BYTES
from transfer_queue.memory import glimpse
from transfer_queue.memory import mapping as mapped
from transfer_queue.peer import Peer
from transfer_queue.schema import column_of
from transfer_queue.shard.region import IN_REGION, REGION_BYTES


def read_few(tables: Mapping[str, np.ndarray], spec: m.TopicSpec, peers: Mapping[int, Peer]) -> dict[str, Column] | None:
    """By column, places of its rows, [R, 4] int64 → the columns, copied."""
    if not 0 < sum(len(table) for table in tables.values()) <= glimpse.FEW:
        return None
    looks: dict[int, _Look] = {}
    copies, left = {}, MOST_BYTES
    for name, table in tables.items():
        pieces = _pieces(table.tolist(), peers, looks)
        if pieces is None:
            return None
        lengths = [len(piece) for piece in pieces]
        left -= sum(lengths)
        if left < 0:
            return None
        copies[name] = _copied(pieces), lengths
    if not all(glimpse.few_still_there(look.memory, look.blocks) for look in looks.values()):
        return None
    found: dict[str, Column] = {}
    for name, (copy, lengths) in copies.items():
        column = _column(column_of(spec, name), copy, lengths)
        if column is None:
            return None
        found[name] = column
    return found


class _Look:
    """What is looked at of one shard."""

    def __init__(self, memory: mapped.Mapping) -> None:
        self.memory = memory
        self.blocks: list[int] = []
        self.directories: dict[int, int] = {}


def _pieces(places: list[list[int]], peers: Mapping[int, Peer], looks: dict[int, _Look]) -> list[memoryview] | None:
    """The bytes of each row where they lie."""
    pieces = []
    for shard, block, start, stop in places:
        look = looks.get(shard)
        if look is None:
            peer = peers.get(shard)
            if peer is None or peer.memory is None or peer.freed or not peer.link.up:
                return None
            look = looks[shard] = _Look(peer.memory)
        begin = glimpse.find_one(look.memory, block, look.directories) if block & IN_REGION else -1
        if begin < 0 or not 0 <= start <= stop <= REGION_BYTES or begin + stop > len(look.memory.bytes):
            return None
        look.blocks.append(block)
        pieces.append(look.memory.bytes[begin + start : begin + stop])
    return pieces


def _copied(pieces: list[memoryview]) -> bytearray:
    """One after the other. They may change meanwhile: nothing of it may be looked at before it is known that they did not."""
    return bytearray().join(pieces)


def _column(column: m.Column, copy: bytearray, nbytes: list[int]) -> Column | None:
    """`nbytes`: of each row."""
    dtype = storage(column.dtype)
    lengths = [length // dtype.itemsize for length in nbytes]
    if sum(lengths) * dtype.itemsize != len(copy):
        return None  # some piece ends inside of an element
    values = np.frombuffer(copy, dtype=dtype)
    if not values.flags.aligned:
        return None
    if column.kind == "scalar":
        width = value_elements(column)
        return values.reshape(len(lengths), *column.shape) if all(length == width for length in lengths) else None
    if column.kind == "per_token":
        width = value_elements(column)
        if any(length % width for length in lengths):
            return None
        offsets = np.array([0, *accumulate(length // width for length in lengths)], dtype=np.int64)
        return Jagged(values.reshape(-1, *column.shape), offsets, column.dtype)
    return unpack(column, values, np.array(lengths, dtype=np.int64))

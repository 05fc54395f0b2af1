"""What a reader gets of what a writer packed, with bytes and nothing else in between."""

from __future__ import annotations

from typing import Any

import numpy as np

from transfer_queue import messages as m
from transfer_queue.codec import Column, Packed, check_declared, pack, storage, unpack
from transfer_queue.schema import pack_columns


def column(dtype: str = "uint8", kind: m.Kind = "scalar", shape: tuple[int, ...] = (), **more: Any) -> m.Column:
    return m.Column(name="x", dtype=dtype, kind=kind, producer="p", shape=shape, **more)


def topic(*columns: m.Column) -> m.TopicSpec:
    trainer = m.Consumer("trainer", inputs=tuple(each.name for each in columns), unit="group", terminal=True)
    return m.TopicSpec(name="policy", model="policy", columns=columns, consumers=(trainer,), window=m.Window(batch=1, staleness=None))


def declared(packed: Packed) -> m.Column:
    """The column that a writer without a schema has written."""
    return column(packed.dtype, packed.kind, packed.shape)


def over_the_wire(values: Any, declared: m.Column) -> Column:
    """Checked against the schema on the way in, as `write` does."""
    check_declared(declared)
    rows = len(pack("x", values, declared))
    return received(pack_columns(rows, {"x": values}, topic(declared))["x"], declared)


def received(packed: Packed, declared: m.Column) -> Column:
    """From read-only memory, as shared memory is mapped."""
    data = np.frombuffer(packed.values.tobytes(), dtype=storage(declared.dtype))
    return unpack(declared, data, np.diff(packed.offsets))

"""Columns to frames and back: one buffer a column, bits copied or viewed, never converted.

    pack(name, column, declared)       what a caller passes → Packed: contiguous values and offsets
    unpack(declared, values, lengths)  the same bytes → what a reader gets
    to_torch(column, dtype)            tensors over what a reader got

torch is imported where a tensor is touched, and nowhere else.
"""

from transfer_queue.codec.declared import check_declared, value_elements
from transfer_queue.codec.packed import Column, Packed, offsets_of
from transfer_queue.codec.packing import pack
from transfer_queue.codec.torch_bits import from_torch, to_nested, to_torch
from transfer_queue.codec.unpacking import unpack
from transfer_queue.dtypes import BITS, storage

__all__ = [
    "BITS",
    "Column",
    "Packed",
    "check_declared",
    "from_torch",
    "offsets_of",
    "pack",
    "storage",
    "to_nested",
    "to_torch",
    "unpack",
    "value_elements",
]

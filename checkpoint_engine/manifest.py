"""What a set of weights consists of and where each tensor lies in one flat buffer. Pure data: no memory, no sockets."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from checkpoint_engine.weights_id import WeightsId

if TYPE_CHECKING:
    import torch

MOST_BYTES = 1 << 44  # of a version
MOST_DIMENSIONS = 64  # of a tensor; torch takes no more
ALIGN = 64
"""Every tensor starts at a multiple of this many bytes: any dtype can be viewed in place, also after a tensor of odd length."""
PLAIN_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1}


class TensorMeta(msgspec.Struct, frozen=True, array_like=True):
    name: str  # Hugging Face name
    dtype: str  # torch's name without "torch.", e.g. "bfloat16"
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the version's buffer
    nbytes: int
    digest: str = ""  # xxh3-128 of the bytes, hex; "" before it was computed


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """One version: its identity, its tensors in the order they were published, and the length of the flat buffer."""

    weights: WeightsId
    tensors: tuple[TensorMeta, ...]
    total_bytes: int


class ManifestError(ValueError):
    """A manifest that cannot be laid out or read here."""


def dtype_name(dtype: torch.dtype | np.dtype) -> str:
    """torch's name. Byte order is no part of it: what is copied out has this machine's."""
    return dtype.name if isinstance(dtype, np.dtype) else str(dtype).removeprefix("torch.")


def element_bytes(name: str) -> int:
    """Bytes of one element. The common types need no torch, so that who only moves weights never imports it. Raises ManifestError."""
    return PLAIN_BYTES.get(name) or dtype_of(name).itemsize


def check_dtype(name: str, dtype: np.dtype) -> None:
    """An array that receivers would refuse is refused where it is published. Raises ManifestError."""
    try:
        readable = element_bytes(dtype.name) == dtype.itemsize
    except ManifestError:
        readable = False
    if not readable:
        raise ManifestError(f"tensor {name!r}: dtype {dtype} is none that a tensor can have: nothing is published; publish floats, ints or truths")


def dtype_of(name: str) -> torch.dtype:
    """The torch dtype of a name. Raises ManifestError for a name torch does not know."""
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ManifestError(f"dtype {name!r} is not one of torch {torch.__version__}: the tensor cannot be read; publish it in another dtype")
    return dtype


def align_up(offset: int) -> int:
    return (offset + ALIGN - 1) // ALIGN * ALIGN


def check_manifest(manifest: Manifest, most_bytes: int = MOST_BYTES) -> None:
    """Refuse what cannot be laid out: called on every manifest that came over a wire. Raises ManifestError."""
    total = manifest.total_bytes
    if not 0 <= total <= most_bytes:
        raise ManifestError(f"total_bytes = {total} is outside 0..{most_bytes}: the version is refused")
    names: set[str] = set()
    end = 0
    for meta in manifest.tensors:
        if meta.name in names:
            raise ManifestError(f"tensor {meta.name!r} is listed twice: the version is refused")
        names.add(meta.name)
        if len(meta.shape) > MOST_DIMENSIONS:
            raise ManifestError(f"tensor {meta.name!r} has {len(meta.shape)} dimensions, torch takes {MOST_DIMENSIONS}: the version is refused")
        expected = math.prod(meta.shape) * element_bytes(meta.dtype)
        if any(size < 0 for size in meta.shape) or meta.nbytes != expected:
            raise ManifestError(f"tensor {meta.name!r}: {meta.dtype} {meta.shape} takes {expected} bytes, not {meta.nbytes}: the version is refused")
        if meta.offset % ALIGN or meta.offset < end or meta.offset + meta.nbytes > total:
            raise ManifestError(f"tensor {meta.name!r}: offset {meta.offset} overlaps, is unaligned or leaves 0..{total}: the version is refused")
        end = meta.offset + meta.nbytes


def view_tensor(buffer: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    """`meta`'s tensor as a view into `buffer` (uint8 [>= total_bytes]); shape and dtype of the meta, same memory."""
    import torch

    dtype = dtype_of(meta.dtype)
    if meta.nbytes == 0:
        return torch.empty(meta.shape, dtype=dtype)
    return buffer[meta.offset : meta.offset + meta.nbytes].view(dtype).view(meta.shape)


def view_array(buffer: np.ndarray, meta: TensorMeta) -> np.ndarray:
    """`view_tensor` without torch, for the types that numpy has. `buffer`: uint8 [>= total_bytes]."""
    return buffer[meta.offset : meta.offset + meta.nbytes].view(meta.dtype).reshape(meta.shape)

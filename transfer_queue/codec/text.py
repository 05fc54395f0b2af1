"""Rows of bytes and of text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from transfer_queue.codec.packed import Packed, offsets_of
from transfer_queue.messages.base import Kind


def pack_blobs(name: str, blobs: Sequence[Any]) -> Packed:
    """Rows of bytes, bytearray or memoryview (its bytes, whatever its format)."""
    for row, blob in enumerate(blobs):
        if not isinstance(blob, bytes | bytearray | memoryview):
            raise TypeError(
                f"column {name!r} is a list whose row {row} is {type(blob).__qualname__}: rows of a blob must be bytes; pass an ndarray for scalars, "
                "Jagged.of(runs, dtype) for runs, or declare kind text (str) or object (nested Python data)"
            )
    return joined([blob.tobytes() if isinstance(blob, memoryview) else blob for blob in blobs], "blob")


def pack_text(name: str, texts: Sequence[Any]) -> Packed:
    """Rows of str, as UTF-8."""
    frames = []
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"column {name!r} is text, but row {row} is {type(text).__qualname__}: pass a list of str; bytes are kind blob")
        try:
            frames.append(text.encode())
        except UnicodeEncodeError as error:
            raise ValueError(f"column {name!r}, row {row}: {error}: half a surrogate pair has no UTF-8; pass text.encode(…) as a blob") from None
    return joined(frames, "text")


def joined(frames: list[Any], kind: Kind) -> Packed:
    """Rows of bytes side by side (one copy; none for a single row)."""
    whole = frames[0] if len(frames) == 1 else b"".join(frames)
    return Packed(np.frombuffer(whole, dtype=np.uint8), offsets_of([len(frame) for frame in frames]), kind, "uint8")


def unpack_blobs(values: np.ndarray, offsets: np.ndarray) -> list[bytes]:
    view, marks = values.data, offsets.tolist()
    return [bytes(view[start:stop]) for start, stop in itertools.pairwise(marks)]


def unpack_text(name: str, values: np.ndarray, offsets: np.ndarray) -> list[str]:
    data, marks = values.tobytes(), offsets.tolist()
    cuts = itertools.pairwise(marks)
    if data.isascii():  # characters are bytes: decoded once
        text = data.decode("ascii")
        return [text[start:stop] for start, stop in cuts]
    try:
        return [data[start:stop].decode() for start, stop in cuts]
    except UnicodeDecodeError as error:
        raise ValueError(f"column {name!r} holds bytes that are no text: {error}; who wrote it, declared another kind") from None

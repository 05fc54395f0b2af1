"""A key's tag: a dict with str keys, as MessagePack. Merged here, so that no writer loses what another put. Its values are not read here, but every
list carries them: one that clients could not unpack would fail the lists of all."""

from __future__ import annotations

from itertools import chain
from typing import Any

import msgspec

from transfer_queue.codec.objects import looked_at
from transfer_queue.controller.errors import RequestError, bad

MOST_BYTES = 1 << 16  # of a tag
MOST_DEPTH = 32  # of dicts, lists and tuples in one another: a reader may be deep in calls of its own
_NESTED = (dict, list, tuple)
_decode = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.msgpack.Encoder().encode


def merged(old: bytes, new: bytes) -> bytes:
    """`old` with the entries of `new`; either may be b"", no tag. Raises RequestError for what is no tag, or one too long."""
    if not new:
        return old
    if len(new) > MOST_BYTES:  # before it is decoded
        raise _too_long(len(new))
    try:
        entries = _decode(new)
        deep = _is_deep(looked_at(new))
        both = _encode(_decode(old) | entries) if old else _encode(entries)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise bad(
            f"a tag of {len(new)} bytes is no dict with str keys that every reader can unpack: {error}; nothing was written. Tags are MessagePack, "
            "with the extensions of `codec.objects` and no others"
        ) from None
    if deep:
        raise bad(f"a tag of {len(new)} bytes is nested over {MOST_DEPTH} deep: not every reader can unpack it; nothing was written. Flatten it")
    if len(both) > MOST_BYTES:
        raise _too_long(len(both))
    return both


def _too_long(nbytes: int) -> RequestError:
    return bad(f"a tag of {nbytes} bytes exceeds {MOST_BYTES}: every list carries it; nothing was written. Put what is large into a column")


def _is_deep(tag: Any) -> bool:
    level = [tag]
    for _ in range(MOST_DEPTH):
        level = [item for value in level for item in (chain(value, value.values()) if type(value) is dict else value) if type(item) in _NESTED]
        if not level:
            return False
    return True

"""A key's tag: a dict with str keys, as MessagePack. Merged here, so that no writer loses what another put; values are looked at by clients."""

from __future__ import annotations

import msgspec

from transfer_queue.controller.errors import bad

MOST_BYTES = 1 << 16  # of a tag
_decode = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.msgpack.Encoder().encode


def merged(old: bytes, new: bytes) -> bytes:
    """`old` with the entries of `new`; either may be b"", no tag. Raises RequestError for what is no tag, or one too long."""
    if not new:
        return old
    try:
        entries = _decode(new)
        both = _encode(_decode(old) | entries) if old else _encode(entries)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad(f"a tag of {len(new)} bytes is no dict with str keys: {error}; nothing was written. Tags are MessagePack") from None
    if len(both) > MOST_BYTES:
        raise bad(f"a tag of {len(both)} bytes exceeds {MOST_BYTES}: every list carries it; nothing was written. Put what is large into a column")
    return both

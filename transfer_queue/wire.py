"""How control messages look on a socket: one msgpack frame a record, DEALER to ROUTER, no empty delimiter.

Decoders are built once: building one for a union costs more than decoding a message. Whatever is wrong with a frame is a `msgspec.DecodeError`,
nesting too deep to follow included: nothing else that a peer sends may end a server's loop.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from transfer_queue.messages import AnyReply, AnyRequest, Reply, Request
from transfer_queue.shard.messages import AnyShardReply, AnyShardRequest, ShardReply, ShardRequest

_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(AnyRequest)
_REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(AnyReply)
_SHARD_REQUESTS: msgspec.msgpack.Decoder[ShardRequest] = msgspec.msgpack.Decoder(AnyShardRequest)
_SHARD_REPLIES: msgspec.msgpack.Decoder[ShardReply] = msgspec.msgpack.Decoder(AnyShardReply)

Frame = bytes | memoryview
R = TypeVar("R")


class _AnyId(msgspec.Struct):
    id: int = -1


_IDS = msgspec.msgpack.Decoder(_AnyId)


def encode(record: msgspec.Struct) -> bytes:
    return _ENCODER.encode(record)


def decode_request(frame: Frame) -> Request:
    """A request to the controller. Raises msgspec.DecodeError (ValidationError is one) with the path of what is wrong."""
    return _decode(_REQUESTS, frame)


def decode_reply(frame: Frame) -> Reply:
    return _decode(_REPLIES, frame)


def decode_shard_request(frame: Frame) -> ShardRequest:
    return _decode(_SHARD_REQUESTS, frame)


def decode_shard_reply(frame: Frame) -> ShardReply:
    return _decode(_SHARD_REPLIES, frame)


def id_of(frame: Frame) -> int:
    """The id of a message that could not be decoded as a whole, so that its sender gets the error instead of a timeout; -1 if there is none."""
    try:
        return _decode(_IDS, frame).id
    except msgspec.DecodeError:
        return -1


def _decode(decoder: msgspec.msgpack.Decoder[R], frame: Frame) -> R:
    try:
        return decoder.decode(frame)
    except (UnicodeDecodeError, RecursionError) as error:  # msgspec lets these two through as they are
        raise msgspec.DecodeError(f"{len(frame)} bytes: {error}") from error

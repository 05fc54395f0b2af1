"""How control messages look on a socket: one msgpack frame a record, DEALER to ROUTER, no empty delimiter.

Decoders are built once: building one for a union costs more than decoding a message.
"""

from __future__ import annotations

import msgspec

from transfer_queue.messages import AnyReply, AnyRequest, Reply, Request
from transfer_queue.shard.messages import AnyShardReply, AnyShardRequest, ShardReply, ShardRequest

_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(AnyRequest)
_REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(AnyReply)
_SHARD_REQUESTS: msgspec.msgpack.Decoder[ShardRequest] = msgspec.msgpack.Decoder(AnyShardRequest)
_SHARD_REPLIES: msgspec.msgpack.Decoder[ShardReply] = msgspec.msgpack.Decoder(AnyShardReply)

Frame = bytes | memoryview


class _AnyId(msgspec.Struct):
    id: int = -1


_IDS = msgspec.msgpack.Decoder(_AnyId)


def encode(record: msgspec.Struct) -> bytes:
    return _ENCODER.encode(record)


def decode_request(frame: Frame) -> Request:
    """A request to the controller. Raises msgspec.DecodeError (ValidationError is one) with the path of what is wrong."""
    return _REQUESTS.decode(frame)


def decode_reply(frame: Frame) -> Reply:
    return _REPLIES.decode(frame)


def decode_shard_request(frame: Frame) -> ShardRequest:
    return _SHARD_REQUESTS.decode(frame)


def decode_shard_reply(frame: Frame) -> ShardReply:
    return _SHARD_REPLIES.decode(frame)


def id_of(frame: Frame) -> int:
    """The id of a message that could not be decoded as a whole, so that its sender gets the error instead of a timeout; -1 if there is none."""
    try:
        return _IDS.decode(frame).id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return -1

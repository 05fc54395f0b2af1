"""Sockets of the checkpoint engine: who may bind where, keys, and records to frames."""

from __future__ import annotations

import ipaddress
import secrets
from typing import Protocol, TypeVar

import msgspec
import zmq

from checkpoint_engine.messages import AnyFromPublisher, AnyToPublisher, FromPublisher, ToPublisher

_MOST_MESSAGE_BYTES = 1 << 28  # a frame that claims more ends its connection before it is allocated
_HIGH_WATER = 256  # messages a peer may lag behind before its connection drops or blocks

encode = msgspec.msgpack.Encoder().encode
_TO_PUBLISHER = msgspec.msgpack.Decoder(AnyToPublisher)
_FROM_PUBLISHER = msgspec.msgpack.Decoder(AnyFromPublisher)
Reply = TypeVar("Reply", bound=FromPublisher)
R = TypeVar("R")

__all__ = [
    "FromPublisher",
    "Secure",
    "ToPublisher",
    "bind_router",
    "close_watched",
    "connect_dealer",
    "decode_from_publisher",
    "decode_to_publisher",
    "encode",
    "host_of",
    "new_socket",
    "watched",
]


def decode_to_publisher(frame: bytes | memoryview) -> AnyToPublisher:
    """Raises msgspec.DecodeError for whatever is wrong with the frame."""
    return _decode(_TO_PUBLISHER, frame)


def decode_from_publisher(frame: bytes | memoryview) -> AnyFromPublisher:
    """Raises msgspec.DecodeError for whatever is wrong with the frame."""
    return _decode(_FROM_PUBLISHER, frame)


def _decode(decoder: msgspec.msgpack.Decoder[R], frame: bytes | memoryview) -> R:
    try:
        return decoder.decode(frame)
    except (UnicodeDecodeError, RecursionError) as error:  # msgspec lets these two through as they are
        raise msgspec.DecodeError(str(error)) from error


class Secure(Protocol):
    """Keys for a socket (ZMQ CURVE); None in its place means loopback without keys."""

    def server(self, socket: zmq.Socket[bytes]) -> str:
        """Make it a key server before it binds; returns its public key."""

    def client(self, socket: zmq.Socket[bytes], server_key: str) -> None:
        """Give it keys before it connects."""


def host_of(endpoint: str) -> str:
    """Host of "tcp://host:port", brackets of IPv6 removed. Raises ValueError."""
    address = endpoint.split(" ")[0]
    if not address.startswith("tcp://") or ":" not in address[6:]:
        raise ValueError(f"endpoint {endpoint!r} must read tcp://host:port: nothing was bound; write e.g. tcp://127.0.0.1:0")
    return address[6:].rpartition(":")[0].strip("[]")


def bind_router(bind: str, secure: Secure | None) -> tuple[zmq.Socket[bytes], str]:
    """A bound ROUTER and its endpoint, "tcp://host:port" or "tcp://host:port KEY". Loopback only, unless there are keys."""
    host = host_of(bind)
    if secure is None and not _is_loopback(host):
        raise ValueError(f"bind = {bind!r} leaves this machine and `secure` is None: refused, anyone could replace weights; give keys or 127.0.0.1")
    if host in ("*", "0.0.0.0", "::"):
        raise ValueError(f"bind = {bind!r} names no address that others could connect to: refused; bind one address of this host")
    socket = new_socket(zmq.ROUTER)
    socket.ipv6 = ":" in host
    socket.maxmsgsize = _MOST_MESSAGE_BYTES
    key = secure.server(socket) if secure else ""
    socket.bind(bind)
    endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    return socket, f"{endpoint} {key}" if key else endpoint


def connect_dealer(endpoint: str, secure: Secure | None) -> zmq.Socket[bytes]:
    address, _, key = endpoint.partition(" ")
    if key and secure is None:
        raise ValueError(f"endpoint {address} wants keys and `secure` is None: not connected; pass the run's keys")
    socket = new_socket(zmq.DEALER)
    socket.ipv6 = ":" in host_of(endpoint)
    if secure and key:
        secure.client(socket, key)
    socket.connect(address)
    return socket


def new_socket(kind: int) -> zmq.Socket[bytes]:
    """Neither bound nor connected; drops what it cannot deliver, and bounds what lags behind."""
    # The process's one context, which is never terminated: a context of one's own blocks for ever when it is collected before its sockets.
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = _HIGH_WATER
    return socket


def watched(socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """Readable once a connection of `socket` ended (`recv_monitor_message`). Close both by `close_watched`."""
    # an address of its own: pyzmq's holds the number of a descriptor, which may be used again before zmq has let go of the address
    return socket.get_monitor_socket(zmq.EVENT_DISCONNECTED, addr=f"inproc://monitor-{secrets.token_hex(8)}")


def close_watched(socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
    """In this order, also where the owner is dropped without being closed: zmq's own thread waits for ever to hand an event to a monitor that has no
    reader any more, and then nothing moves in this process."""
    socket.disable_monitor()
    monitor.close(linger=0)
    socket.close(linger=0)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name or an interface: not provably this machine's own
        return False

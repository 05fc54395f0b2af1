"""Who may connect: a ZAP handler (RFC 27) that knows one client key per server socket.

CURVE alone encrypts and proves the *server*; without this handler every client that made a key pair of its own would be let in.
Server sockets set `zap_enforce_domain`, so that a missing handler means nobody gets in.
"""

from __future__ import annotations

import threading
import weakref

import zmq
from zmq.utils import z85

_ENDPOINT = "inproc://zeromq.zap.01"


class Gatekeeper:
    """One thread a zmq context, as ZAP wants it. It ends with the context."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.allowed: dict[bytes, bytes] = {}  # domain -> client public key, Z85
        socket = context.socket(zmq.REP)
        socket.linger = 0
        socket.bind(_ENDPOINT)  # bound before the caller's server socket is: no connection can come earlier
        threading.Thread(target=self._serve, args=(socket,), name="zap", daemon=True).start()

    def _serve(self, socket: zmq.Socket[bytes]) -> None:
        try:
            while True:
                socket.send_multipart(self._answer(socket.recv_multipart()))
        except zmq.ContextTerminated:
            socket.close()

    def _answer(self, frames: list[bytes]) -> list[bytes]:
        version, request_id, domain, _address, _identity, mechanism, *credentials = frames
        known = self.allowed.get(domain)
        ours = domain != b""  # zmq asks about every CURVE server of the process once a handler is there: the others' own rules are not ours to make
        good = not ours or (mechanism == b"CURVE" and known is not None and len(credentials) == 1 and z85.encode(credentials[0]) == known)
        status = (b"200", b"OK", b"client") if good else (b"400", b"client key refused", b"")
        return [version, request_id, *status, b""]


_KEEPERS: weakref.WeakKeyDictionary[zmq.Context[zmq.Socket[bytes]], Gatekeeper] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def allow(context: zmq.Context[zmq.Socket[bytes]], domain: bytes, client_public: bytes) -> None:
    """From now on, server sockets of `context` with this `zap_domain` accept this client key and no other."""
    with _LOCK:
        keeper = _KEEPERS.get(context)
        if keeper is None:
            keeper = _KEEPERS[context] = Gatekeeper(context)
    keeper.allowed[domain] = client_public

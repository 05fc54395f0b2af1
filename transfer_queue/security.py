"""CURVE keys on sockets, and the rule that without keys nothing leaves the machine.

One pair for the controller, one pair for all clients of a run. Servers other than the controller make a pair of their own at start and announce its
public part through `Register.endpoints`.
"""

from __future__ import annotations

import ipaddress
import secrets
from pathlib import Path

import msgspec
import zmq

from transfer_queue import zap


class Security(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys of a run, Z85 text of 40 characters. `server_secret` is the controller's alone."""

    server_public: str
    client_public: str
    client_secret: str
    server_secret: str | None = None

    def __repr__(self) -> str:  # never a secret in a log or a traceback
        return f"Security(server_public={self.server_public!r}, client_public={self.client_public!r})"

    def server(self, socket: zmq.Socket[bytes]) -> str:
        """Make `socket` a CURVE server that accepts only our client key; call it before `bind`.

        Returns its public key: the run's where the server's secret is known (controller), else that of a fresh pair.
        """
        if self.server_secret is None:
            public, secret = zmq.curve_keypair()
        else:
            public, secret = self.server_public.encode(), self.server_secret.encode()
        domain = secrets.token_hex(8).encode()  # one a socket: two runs in one process keep their keys apart
        zap.allow(socket.context, domain, self.client_public.encode())
        socket.setsockopt(zmq.ZAP_DOMAIN, domain)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        return public.decode()

    def client(self, socket: zmq.Socket[bytes], server_key: str) -> None:
        """Make `socket` a CURVE client of the server with the public key `server_key`; call it before `connect`."""
        socket.setsockopt(zmq.CURVE_SERVERKEY, server_key.encode())
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.client_public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.client_secret.encode())

    def worker(self) -> Security:
        """What a worker needs: without the controller's secret."""
        return msgspec.structs.replace(self, server_secret=None)

    @classmethod
    def load(cls, path: str | Path) -> Security:
        """Read a file of `python -m transfer_queue keys`. Raises PermissionError where others could read it."""
        path = Path(path)
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            raise PermissionError(f"key file {path} has mode {mode:04o}: others may read it, so it proves nothing; chmod 600 it")
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except msgspec.DecodeError as error:
            raise ValueError(f"key file {path}: {error}; make keys with `python -m transfer_queue keys DIR`") from error


def check_bind(endpoint: str, security: Security | None) -> None:
    """Raise ValueError for an endpoint that leaves the machine without keys."""
    if security is None and not is_loopback(endpoint):
        raise ValueError(
            f"bind={endpoint!r}: beyond loopback (127.0.0.0/8, ::1, ipc, inproc) everybody who reaches the port could read and write samples, so "
            "CURVE keys are required: make them with `python -m transfer_queue keys DIR`; server.key is the controller's, client.key a worker's"
        )


def is_loopback(endpoint: str) -> bool:
    scheme, _, rest = endpoint.partition("://")
    if scheme in ("ipc", "inproc"):
        return True
    host = rest.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # "*", an interface, a host name: could be anything
        return False


def bind(socket: zmq.Socket[bytes], endpoint: str, security: Security | None) -> tuple[str, str]:
    """Check, secure and bind. Returns (endpoint with the real port, public key or "")."""
    check_bind(endpoint, security)
    key = security.server(socket) if security is not None else ""
    if endpoint.startswith("tcp://["):
        socket.setsockopt(zmq.IPV6, 1)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise OSError(f"bind={endpoint!r} failed: {error}; use port 0 for any free one, or another address of this host") from error
    return socket.getsockopt_string(zmq.LAST_ENDPOINT), key

"""Key files: made once for a run, carried to its hosts by the operator."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import zmq

from transfer_queue.security import Security


def make() -> Security:
    """Fresh pairs for the controller and for its clients."""
    server_public, server_secret = zmq.curve_keypair()
    client_public, client_secret = zmq.curve_keypair()
    return Security(
        server_public=server_public.decode(),
        server_secret=server_secret.decode(),
        client_public=client_public.decode(),
        client_secret=client_secret.decode(),
    )


def write(directory: str | Path) -> tuple[Path, Path]:
    """Write DIR/server.key and DIR/client.key, mode 0600. Raises FileExistsError rather than replace keys that are in use."""
    directory = Path(directory)
    paths = directory / "server.key", directory / "client.key"
    taken = [str(path) for path in paths if path.exists()]
    if taken:
        why = "replacing them would lock out the members of a running run; name another folder, or remove them"
        raise FileExistsError(f"{' and '.join(taken)} are there already: {why}")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    security = make()
    _write(paths[0], security)
    _write(paths[1], security.worker())
    return paths


def _write(path: Path, security: Security) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(security)) + b"\n")

"""Rule on key files: they are there, readable by us alone, and the controller's holds its secret. Asked where a run starts, for it reads files."""

from __future__ import annotations

from pathlib import Path

from asyncflow.config.errors import SettingError
from asyncflow.config.root import RunConfig
from transfer_queue.security import Security

ADVICE = "`python -m transfer_queue keys DIR` makes both files, then queue.key_file=DIR/server.key"


def key_files(config: RunConfig) -> None:
    """Raises SettingError for the first key file that no socket could be secured with."""
    server = config.queue.key_file
    if server is None:
        return
    security = _load("queue.key_file", server)
    if security.server_secret is None:
        raise SettingError(
            "queue.key_file",
            server,
            rule="it must be the controller's file, and it is a worker's: it holds no server_secret",
            consequence="the controller could not prove to anybody who it is",
            advice=ADVICE,
        )
    client = config.queue.client_key_file
    found = _load("queue.client_key_file", client or str(Path(server).with_name("client.key")))
    if (found.server_public, found.client_public) != (security.server_public, security.client_public):
        raise SettingError(
            "queue.client_key_file",
            client,
            rule=f"it must be of the same making as queue.key_file = {server!r}, and its public keys are others",
            consequence="the controller would let no worker in",
            advice=ADVICE,
        )


def _load(key: str, path: str) -> Security:
    try:
        return Security.load(path)
    except (OSError, ValueError) as error:
        why = f"no such file: {path}" if isinstance(error, FileNotFoundError) else str(error)
        rule = f"it must be a key file that only its owner can read; {why}"
        raise SettingError(key, path, rule=rule, consequence="no socket of the run could be secured", advice=ADVICE) from None

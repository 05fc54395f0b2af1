"""What passes an arena on, and why the receiver may believe it.

A process opens another's arena through /proc/PID/fd. In another PID namespace the same number is another process, and a number is used again after a
death, so what is found there is an arena only when its header carries the nonce that came with the descriptor.
"""

from __future__ import annotations

import mmap
import os
import secrets

import msgspec

HEADER_BYTES = mmap.PAGESIZE  # before the bytes; the nonce begins it
PREFIX = "asyncflow-"
NONCE_BYTES = 16
NOTE_AT = 16  # in the header: `Arena.note`


class Descriptor(msgspec.Struct, frozen=True, array_like=True):
    """How another process of this host finds an arena."""

    pid: int
    fd: int
    nonce: bytes


class ArenaUnreachable(OSError):
    """The descriptor names nothing, or something else, from here: use the bytes path."""


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def open_arena(descriptor: Descriptor, writable: bool) -> int:
    """A descriptor of our own for the memory that `descriptor` names. Raises ArenaUnreachable."""
    path = f"/proc/{descriptor.pid}/fd/{descriptor.fd}"
    try:
        if not os.readlink(path).startswith(f"/memfd:{PREFIX}"):  # never open what is not a memfd: a fifo would block
            raise ArenaUnreachable(f"{path} is not an arena")
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
    except OSError as error:
        raise ArenaUnreachable(f"{path}: {error}") from error
    try:
        found = os.pread(fd, NONCE_BYTES, 0)
        whole = os.fstat(fd).st_size >= HEADER_BYTES
    except OSError as error:
        os.close(fd)
        raise ArenaUnreachable(f"{path}: {error}") from error
    if found != descriptor.nonce or len(found) != NONCE_BYTES or not whole:
        os.close(fd)
        raise ArenaUnreachable(f"{path} is another arena: its nonce differs")
    return fd

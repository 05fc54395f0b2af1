"""The fingerprint of weights: xxh3-128 a tensor over its published bytes, and one of the whole version.

It says *which bytes* these are and notices damage (tens of GB/s, so every load can check it). It is no signature: authenticity comes
from the keys of the connection.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import xxhash

from checkpoint_engine.manifest import Manifest, TensorMeta, dtype_name

if TYPE_CHECKING:
    import torch


_THREADS = min(4, os.cpu_count() or 1)
_LARGE_BYTES = 64 << 20


def bytes_digest(data: np.ndarray) -> str:
    """xxh3-128 of a contiguous buffer, 32 hex characters. Reads in place; the interpreter lock is free meanwhile."""
    return str(xxhash.xxh3_128_hexdigest(data.data))


def version_digest(tensors: Iterable[TensorMeta]) -> str:
    """Digest of a version: hash of the sorted list of (name, dtype, shape, tensor digest). Order and layout of publishing do not matter."""
    rows = sorted((meta.name, meta.dtype, meta.shape, meta.digest) for meta in tensors)
    return str(xxhash.xxh3_128_hexdigest(msgspec.msgpack.encode(rows)))


def tensor_digest(tensor: torch.Tensor) -> str:
    """Digest of a tensor's values in C order, whatever its strides or device. A contiguous CPU tensor is read in place."""
    import torch

    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return bytes_digest(plain.reshape(-1).view(torch.uint8).numpy())


def weights_digest(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """The digest these weights would be published under. `tensors`: (Hugging Face name, tensor of any shape, dtype, device)."""
    metas = [
        TensorMeta(name, dtype_name(tensor.dtype), tuple(tensor.shape), 0, tensor.numel() * tensor.element_size(), tensor_digest(tensor))
        for name, tensor in tensors
    ]
    return version_digest(metas)


def digested(manifest: Manifest, data: np.ndarray) -> Manifest:
    """`manifest` with the digest of every tensor in `data` (uint8 [>= total_bytes]) and of the version filled in. Everybody waits for it, so a large
    version is hashed by several threads, its largest tensors first."""

    def digest(meta: TensorMeta) -> str:
        return bytes_digest(data[meta.offset : meta.offset + meta.nbytes])

    order = sorted(manifest.tensors, key=lambda meta: -meta.nbytes)
    with ThreadPoolExecutor(_THREADS if manifest.total_bytes >= _LARGE_BYTES else 1, thread_name_prefix="digest") as pool:
        found = dict(zip((meta.name for meta in order), pool.map(digest, order), strict=True))
    tensors = tuple(msgspec.structs.replace(meta, digest=found[meta.name]) for meta in manifest.tensors)
    weights = msgspec.structs.replace(manifest.weights, digest=version_digest(tensors))
    return msgspec.structs.replace(manifest, weights=weights, tensors=tensors)


class DigestMismatch(ValueError):
    """Bytes arrived that are not what was published."""


class Verifier:
    """Hashes bytes as they arrive, front to back: a large tensor bucket by bucket, while each is warm and the next one travels. Nothing is loadable
    before `finish`."""

    def __init__(self, manifest: Manifest, data: np.ndarray) -> None:
        self._manifest, self._data = manifest, data
        self._next = 0  # tensors before it are whole
        self._hash, self._hashed = xxhash.xxh3_128(), 0  # of that one so far, and how many of its bytes

    def arrived(self, nbytes: int) -> None:
        """The first `nbytes` bytes are there. Raises DigestMismatch."""
        tensors = self._manifest.tensors
        while self._next < len(tensors):
            meta = tensors[self._next]
            there = min(nbytes - meta.offset, meta.nbytes)
            if there > self._hashed:
                self._hash.update(self._data[meta.offset + self._hashed : meta.offset + there].data)
                self._hashed = there
            if there < meta.nbytes:
                return
            self._check(meta, self._hash.hexdigest())
            self._next, self._hash, self._hashed = self._next + 1, xxhash.xxh3_128(), 0

    def finish(self) -> None:
        """Everything is there. Raises DigestMismatch."""
        self.arrived(self._manifest.total_bytes)
        if self._next != len(self._manifest.tensors) or version_digest(self._manifest.tensors) != self._manifest.weights.digest:
            raise DigestMismatch(f"{self._manifest.weights}: the tensors do not add up to the version's digest; it is not loaded")

    def _check(self, meta: TensorMeta, found: str) -> None:
        if found != meta.digest:
            raise DigestMismatch(f"{self._manifest.weights}: tensor {meta.name!r} has digest {found}, published was {meta.digest}; it is not loaded")

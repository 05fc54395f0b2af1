"""A version on disk as ordinary Hugging Face files: model.safetensors and weights_id.json, whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

import msgspec

from checkpoint_engine.manifest import Manifest, TensorMeta, element_bytes
from checkpoint_engine.slot import Lease
from checkpoint_engine.weights_id import WeightsId

WEIGHTS_FILE = "model.safetensors"
ID_FILE = "weights_id.json"
_REST = ("config.json", "generation_config.json", "*token*.json", "tokenizer.model", "vocab.*", "merges.txt", "chat_template*", "*processor*.json")

_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
    "bool": "BOOL", "complex64": "C64",
}  # fmt: skip


def export_weights(lease: Lease, path: Path, base: Path | None = None) -> None:
    """Write the leased version to the new directory `path`; `base`'s other files (config, tokenizer; no weights) are copied beside it.

    Written beside `path` and renamed, so a reader never sees half of it. Raises FileExistsError when `path` is there, ValueError for a dtype the
    format lacks, OSError of the disk.
    """
    if path.exists():
        raise FileExistsError(f"{path} exists: nothing was written, an export never replaces another; choose a path of its own for each version")
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    scratch.mkdir()
    try:
        if base is not None:
            _copy_rest(base, scratch)
        _write_safetensors(lease, scratch / WEIGHTS_FILE)
        _write_synced(scratch / ID_FILE, [msgspec.json.encode(_id_record(lease.manifest.weights))])
        os.rename(scratch, path)
        _sync_directory(path.parent)
    except BaseException:  # whatever cut the export off, Ctrl-C included: no half of one stays
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def read_weights_id(path: Path) -> WeightsId:
    """The identity of an exported directory. Raises FileNotFoundError, msgspec.DecodeError."""
    record = msgspec.json.decode((path / ID_FILE).read_bytes(), type=dict[str, str | int])
    return msgspec.convert([record[key] for key in ("model", "epoch", "version", "digest")], type=WeightsId)


def _id_record(weights: WeightsId) -> dict[str, str | int]:
    return {"model": weights.model, "epoch": weights.epoch, "version": weights.version, "digest": weights.digest}


def _header(manifest: Manifest) -> tuple[bytes, list[TensorMeta]]:
    """The format allows no holes: tensors are packed, widest elements first, so that each is aligned to its own size."""
    order = sorted(manifest.tensors, key=lambda meta: (-element_bytes(meta.dtype), meta.name))
    entries: dict[str, object] = {"__metadata__": {"format": "pt", "weights": str(manifest.weights)}}
    offset = 0
    for meta in order:
        if meta.dtype not in _DTYPES:
            raise ValueError(f"tensor {meta.name!r} is {meta.dtype}, unknown to safetensors: nothing was written; publish another dtype")
        entries[meta.name] = {"dtype": _DTYPES[meta.dtype], "shape": meta.shape, "data_offsets": (offset, offset + meta.nbytes)}
        offset += meta.nbytes
    header = msgspec.json.encode(entries)
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header, order


def _write_safetensors(lease: Lease, path: Path) -> None:
    header, order = _header(lease.manifest)
    data = lease.arena.array
    _write_synced(path, [header, *(data[meta.offset : meta.offset + meta.nbytes].data for meta in order)])


def _write_synced(path: Path, parts: list[bytes | memoryview]) -> None:
    with path.open("wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _copy_rest(base: Path, target: Path) -> None:
    """What makes a model directory beside its weights. Nothing else: a record of how the base was made is not true of what is exported."""
    for pattern in _REST:
        for file in base.glob(pattern):
            shutil.copy2(file, target / file.name)

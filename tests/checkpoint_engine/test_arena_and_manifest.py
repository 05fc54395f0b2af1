"""Layout of weights in shared memory, and who may open it."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from pathlib import Path

import msgspec
import pytest
import torch
from ce_helpers import bits, odd_weights, open_files, policy

from checkpoint_engine.arena import Arena, ArenaUnreachable, Descriptor
from checkpoint_engine.copy_out import copy_out
from checkpoint_engine.manifest import ManifestError, check_manifest, view_tensor


def test_every_kind_of_tensor_comes_back_bit_for_bit() -> None:
    arena = Arena()
    manifest = copy_out(arena, policy(0), iter(odd_weights(3)))
    check_manifest(manifest)
    buffer = arena.tensor()
    for (name, tensor), meta in zip(odd_weights(3), manifest.tensors, strict=True):
        assert name == meta.name
        assert bits(view_tensor(buffer, meta)) == bits(tensor)


def test_a_name_yielded_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="yielded twice"):
        copy_out(Arena(), policy(0), [("a", torch.ones(1)), ("a", torch.ones(1))])


BROKEN = [{"offset": 64}, {"offset": 7}, {"nbytes": 9}, {"dtype": "float7"}, {"shape": (-1, -2)}, {"offset": 1 << 20}, {"name": "a"}]


@pytest.mark.parametrize("change", BROKEN)
def test_a_manifest_that_cannot_be_laid_out_is_refused(change: dict[str, object]) -> None:
    manifest = copy_out(Arena(), policy(0), [("a", torch.ones(40)), ("b", torch.ones(2))])
    broken = (manifest.tensors[0], msgspec.structs.replace(manifest.tensors[1], **change))
    with pytest.raises(ManifestError, match=r"refused|cannot be read"):
        check_manifest(msgspec.structs.replace(manifest, tensors=broken))


def test_another_process_reads_an_arena_by_its_descriptor() -> None:
    arena = Arena(100)
    arena.array[:100] = 7
    queue = multiprocessing.get_context("fork").Queue()

    def read() -> None:
        queue.put(int(Arena.attach(arena.descriptor()).array[:100].sum()))

    process = multiprocessing.get_context("fork").Process(target=read)
    process.start()
    assert queue.get(timeout=10) == 700
    process.join(10)


def test_a_descriptor_with_a_wrong_nonce_is_not_believed() -> None:
    arena = Arena(10)
    with pytest.raises(ArenaUnreachable, match="nonce"):
        Arena.attach(Descriptor(os.getpid(), arena.descriptor().fd, b"x" * 16))


def test_a_descriptor_of_something_else_is_not_even_opened(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    fd = os.open(fifo, os.O_RDWR)
    with tempfile.TemporaryFile() as file:
        for number in (fd, file.fileno(), 10**6):
            with pytest.raises(ArenaUnreachable):
                Arena.attach(Descriptor(os.getpid(), number, b"x" * 16))
    os.close(fd)


def test_views_outlive_growth_and_closing_and_descriptors_do_not_leak() -> None:
    before = open_files()
    arena = Arena(8)
    arena.array[:8] = 5
    early = arena.array
    arena.grow(1 << 20)
    assert arena.array[:8].tolist() == [5] * 8
    arena.close()
    assert early[:8].tolist() == [5] * 8
    del early, arena
    assert open_files() == before

"""Memory without a name: who may open it, what it takes, and that nothing of it stays."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared_arena import Arena, ArenaUnreachable, Descriptor, Mappings, SparseArena, sparse
from shared_arena.sparse import PAGE, PrivateArena

FORK = multiprocessing.get_context("fork")


def elsewhere(function: Callable[[], Any]) -> Any:
    """What `function` returns in a process of its own."""
    queue = FORK.Queue()
    process = FORK.Process(target=lambda: queue.put(function()))
    process.start()
    found = queue.get(timeout=10)
    process.join(10)
    return found


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_another_process_reads_an_arena_by_its_descriptor() -> None:
    arena = Arena(100)
    arena.array[:100] = 7
    descriptor = arena.descriptor()
    assert elsewhere(lambda: int(Arena.attach(descriptor).array[:100].sum())) == 700


def test_another_process_writes_where_it_was_let_and_only_then() -> None:
    arena = SparseArena(1 << 30, user="test")
    descriptor = arena.descriptor()

    def write(writable: bool) -> str:
        mapped = Arena.attach(descriptor, writable=writable)
        try:
            mapped.array[PAGE : PAGE + 3] = 5
        except ValueError as error:
            return str(error)
        return "written"

    assert "read-only" in elsewhere(lambda: write(False))
    assert arena.array[PAGE : PAGE + 3].tolist() == [0, 0, 0]
    assert elsewhere(lambda: write(True)) == "written"
    assert arena.array[PAGE : PAGE + 3].tolist() == [5, 5, 5]


def test_a_descriptor_with_a_wrong_nonce_is_not_believed() -> None:
    arena = Arena(10)
    for nonce in (b"x" * 16, b"", arena.nonce[:8], arena.nonce + b"x"):
        with pytest.raises(ArenaUnreachable, match="nonce"):
            Arena.attach(Descriptor(os.getpid(), arena.descriptor().fd, nonce))


def test_a_descriptor_of_something_else_is_not_even_opened(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    fd = os.open(fifo, os.O_RDWR)
    stranger = os.memfd_create("somebody-elses")
    with tempfile.TemporaryFile() as file:
        for number in (fd, file.fileno(), stranger, 10**6):
            with pytest.raises(ArenaUnreachable):
                Arena.attach(Descriptor(os.getpid(), number, b"x" * 16))
    os.close(fd)
    os.close(stranger)


def test_a_memfd_of_ours_without_a_whole_header_is_no_arena() -> None:
    stranger = os.memfd_create("asyncflow-cut")
    for content in (b"", b"short"):
        os.write(stranger, content)
        with pytest.raises(ArenaUnreachable):
            Arena.attach(Descriptor(os.getpid(), stranger, content))
    os.close(stranger)


def test_views_outlive_growth_and_closing_and_descriptors_do_not_leak() -> None:
    before = open_files()
    arena = Arena(8)
    arena.array[:8] = 5
    early = arena.array
    arena.grow(1 << 20)
    assert arena.array[:8].tolist() == [5] * 8
    arena.close()
    arena.close()
    assert early[:8].tolist() == [5] * 8
    del early, arena
    assert open_files() == before


def test_growing_to_less_than_another_process_grew_it_to_shows_what_that_one_added() -> None:
    """It is sealed against shrinking, so asking the system for less would be an error."""
    owner = Arena(PAGE)
    writer = Arena.attach(owner.descriptor(), writable=True)
    writer.grow(8 * PAGE)
    writer.array[8 * PAGE - 1] = 7
    assert owner.nbytes < 8 * PAGE
    owner.grow(4 * PAGE)
    assert owner.nbytes == writer.nbytes
    assert owner.array[8 * PAGE - 1] == 7
    owner.grow(16 * PAGE)
    assert owner.nbytes >= 16 * PAGE


def test_failed_attempts_to_attach_leave_no_descriptor_behind() -> None:
    arena = Arena(8)
    before = open_files()
    for _ in range(5):
        with pytest.raises(ArenaUnreachable):
            Arena.attach(Descriptor(os.getpid(), arena.descriptor().fd, b"x" * 16))
    assert open_files() == before


def test_a_large_sparse_arena_takes_memory_only_where_it_is_written_and_gives_it_back() -> None:
    arena = SparseArena(1 << 36, user="test")
    empty = arena.resident_bytes()
    assert empty <= PAGE, "the header at most"
    arena.array[10 * PAGE : 20 * PAGE] = 1
    assert arena.resident_bytes() == empty + 10 * PAGE
    arena.punch(12 * PAGE, 6 * PAGE)
    assert arena.resident_bytes() == empty + 4 * PAGE
    expected = np.repeat(np.array([1, 0, 1], dtype=np.uint8), [2 * PAGE, 6 * PAGE, 2 * PAGE])
    assert np.array_equal(arena.array[10 * PAGE : 20 * PAGE], expected)
    arena.punch(0, 20 * PAGE)
    assert arena.resident_bytes() == empty, "the header stays"
    assert Arena.attach(arena.descriptor()).nbytes == arena.nbytes


def test_what_is_punched_is_gone_for_those_who_map_it_too() -> None:
    arena = SparseArena(1 << 20, user="test")
    arena.array[:] = 3
    other = Arena.attach(arena.descriptor())
    assert other.array.min() == 3
    arena.punch(PAGE, PAGE)
    assert (other.array.min(), int(other.array.sum())) == (0, 3 * ((1 << 20) - PAGE))


@pytest.mark.parametrize("arena", [SparseArena(8 * PAGE, user="test"), PrivateArena(8 * PAGE)], ids=["shared", "private"])
@pytest.mark.parametrize(("offset", "nbytes"), [(1, PAGE), (0, PAGE - 1), (-PAGE, PAGE), (0, 9 * PAGE), (8 * PAGE, PAGE), (PAGE, -PAGE)])
def test_only_whole_pages_inside_are_punched(arena: SparseArena | PrivateArena, offset: int, nbytes: int) -> None:
    arena.array[:] = 9
    with pytest.raises(ValueError, match="no whole pages"):
        arena.punch(offset, nbytes)
    assert (arena.array == 9).all()
    arena.punch(PAGE, 0)
    assert (arena.array == 9).all()


def test_nobody_can_change_the_size_of_a_sealed_arena() -> None:
    """A shorter file would be a SIGBUS in whoever maps it."""
    arena = SparseArena(8 * PAGE, user="test")
    fd = arena.descriptor().fd
    for size in (PAGE, 100 * PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_its_name_tells_a_person_what_it_is_for() -> None:
    arena = SparseArena(PAGE, user="samples")
    assert os.readlink(f"/proc/self/fd/{arena.descriptor().fd}").startswith("/memfd:asyncflow-samples")


def test_without_memfds_the_memory_is_private_and_has_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    arena = sparse(1 << 30, user="test")
    assert (arena.descriptor(), arena.resident_bytes()) == (None, None)
    arena.array[: 2 * PAGE] = 7
    arena.punch(0, PAGE)
    assert (arena.array[:PAGE].max(), arena.array[PAGE : 2 * PAGE].min()) == (0, 7)


def test_mappings_keep_the_arenas_that_were_used_last_and_see_them_grow() -> None:
    before = open_files()
    arenas = [Arena(PAGE) for _ in range(3)]
    mappings = Mappings(most=2)
    first = mappings.attach(arenas[0].descriptor())
    assert mappings.attach(arenas[0].descriptor()) is first
    arenas[0].grow(4 * PAGE)
    assert mappings.attach(arenas[0].descriptor()).nbytes == 4 * PAGE
    for arena in arenas[1:]:
        mappings.attach(arena.descriptor())
    assert first.nbytes == 0, "the third pushed it out"
    mappings.close()
    del arena, arenas, first
    assert open_files() == before


def test_what_is_written_to_a_private_mapping_is_seen_by_nobody_else_and_only_as_long_as_that_one_lives() -> None:
    arena = Arena(4096, user="test")
    arena.array[:] = 1
    private = Arena.attach(arena.descriptor(), private=True)
    private.tensor().add_(1)
    assert arena.array.tolist() == Arena.attach(arena.descriptor()).array.tolist() == [1] * 4096
    arena.array[:] = 5
    assert private.array.tolist() == [2] * 4096, "a page that was written to does not see what comes: it may not be read again"
    private.close()
    assert Arena.attach(arena.descriptor(), private=True).array.tolist() == [5] * 4096


def test_an_arena_that_could_not_grow_is_as_it_was_and_grows_later(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena(100)
    arena.array[:100] = 7

    def no_memory(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as short:
        short.setattr("shared_arena.arena.mmap.mmap", no_memory)
        with pytest.raises(OSError, match="allocate"):
            arena.grow(5000)
    assert (arena.nbytes, len(arena.array)) == (100, 100)
    arena.grow(5000)
    arena.array[4999] = 8
    assert (arena.nbytes, int(arena.array[:100].sum()), int(arena.array[4999])) == (5000, 700, 8)

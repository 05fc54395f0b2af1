"""Who maps the arena: what they hold ends with them, however they end, and costs nobody else anything."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Iterator

import pytest

from transfer_queue.shard import readers as module
from transfer_queue.shard.readers import Readers
from transfer_queue.shard.refused import Refused
from transfer_queue.shard.store import Store


@pytest.fixture
def store() -> Iterator[Store]:
    found = Store(10_000)
    yield found
    found.close()


@pytest.fixture
def readers(store: Store) -> Iterator[Readers]:
    found = Readers(store)
    yield found
    found.close()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    found = subprocess.Popen(["sleep", "600"])
    yield found
    found.kill()
    found.wait()


def write(store: Store, owner: str = "w#0") -> int:
    return store.write(owner, [b"abc"], [[0, 3]]).first


def test_a_process_that_is_killed_wakes_the_loop_and_lets_go_of_all_its_connections_held(store, readers, process):
    blocks = [write(store) for _ in range(3)]
    for name, block in zip((b"1", b"2"), blocks, strict=False):
        readers.join(name, "r#0", process.pid)
        readers.hold(name, [block])
    readers.join(b"other", "o#0", os.getpid())
    readers.hold(b"other", [blocks[2]])
    store.free(blocks)
    assert store.held_bytes == 9
    assert select.select(readers.watched(), [], [], 0)[0] == []
    process.kill()
    assert select.select(readers.watched(), [], [], 10)[0] == readers.watched()
    readers.reap()
    assert store.held_bytes == 3
    with pytest.raises(Refused, match="has not joined"):
        readers.hold(b"1", [write(store)])


def test_all_connections_of_a_process_share_one_pidfd_and_it_is_closed(store, readers, process):
    before = len(os.listdir("/proc/self/fd"))
    for number in range(10):
        readers.join(b"%d" % number, "r#0", process.pid)
        readers.join(b"%d" % number, "r#0", process.pid)  # a repeat does no harm
    assert len(os.listdir("/proc/self/fd")) == before + 1
    process.kill()
    process.wait()
    readers.reap()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("pid", [0, -1, 2**31, 2**63, 2**22 + 1])
def test_a_pid_that_is_no_process_is_refused(store, readers, pid):
    with pytest.raises(Refused) as refused:
        readers.join(b"1", "r#0", pid)
    assert refused.value.code == ("bad_request" if pid == 2**22 + 1 else "malformed")
    with pytest.raises(Refused, match="has not joined"):
        readers.hold(b"1", [write(store)])


def test_a_hold_on_nothing_is_refused(readers, process):
    readers.join(b"1", "r#0", process.pid)
    with pytest.raises(Refused, match="no block"):
        readers.hold(b"1", [])


def test_a_connection_that_joined_as_one_stays_that_one(readers, process):
    readers.join(b"1", "r#0", process.pid)
    for owner, pid in (("r#1", process.pid), ("r#0", os.getpid())):
        with pytest.raises(Refused, match="one owner and one process"):
            readers.join(b"1", owner, pid)
    with pytest.raises(Refused, match="name#incarnation"):
        readers.join(b"2", "nobody", process.pid)


def test_only_the_connection_that_holds_lets_go_and_a_block_is_free_after_its_last_hold(store, readers):
    block = write(store)
    for name in (b"1", b"2"):
        readers.join(name, "r#0", os.getpid())
    first, offsets = readers.hold(b"1", [block, block])
    second, _ = readers.hold(b"2", [block])
    assert offsets == [store.blocks[block].offset] * 2
    store.free([block])
    readers.release(b"2", [first, 10**9])
    readers.release(b"nobody", [first])
    readers.release(b"1", [first, first])
    assert store.held_bytes == 3
    readers.release(b"2", [second])
    assert (store.held_bytes, store.extents) == (0, 0)


def test_without_a_process_to_watch_holds_end_with_their_owner(store, readers, monkeypatch):
    readers.join(b"1", "r#0", None)  # its number means nothing here
    monkeypatch.setattr(module, "_WATCHED", False)
    unwatched = Readers(store)
    unwatched.join(b"1", "r#0", os.getpid())
    assert unwatched.watched() == []
    block = write(store)
    for found in (readers, unwatched):
        found.hold(b"1", [block])
    store.free([block])
    unwatched.reap()
    for found, left in ((readers, 3), (unwatched, 0)):
        found.swept("r")
        found.swept("r#0")
        assert store.held_bytes == left


def test_an_ended_owner_whose_process_lives_on_keeps_what_it_reads(store, readers, process):
    readers.join(b"1", "r#0", process.pid)
    block = write(store)
    readers.hold(b"1", [block])
    readers.swept("r#0")
    store.free([block])
    assert store.held_bytes == 3


def test_what_a_living_stray_may_still_write_to_is_used_again_only_after_its_end(store, readers, process):
    readers.join(b"1", "w#0", process.pid)
    mapped = store.reserve("w#0", [[0, 100]], b"1", readers.writer(b"1"))
    published = store.reserve("w#0", [[0, 100]], b"1", readers.writer(b"1"))
    read = store.reserve("w#0", [[0, 100]], b"1", readers.writer(b"1"))
    sent = store.reserve("w#0", [[0, 100]], b"1", readers.writer(b"unknown"))
    store.offsets([read.first])  # somebody was told of it: its writer is through
    assert store.sweep("w#0", [published.first], readers.quarantine) == 300
    assert (store.used_bytes, store.held_bytes, list(store.lingering)) == (100, 100, [mapped.first])
    assert sent.left == read.left == 0
    process.kill()
    process.wait()
    readers.reap()
    assert (store.held_bytes, mapped.left) == (0, 0)


def test_a_writer_that_is_known_to_be_gone_leaves_nothing_to_wait_for(store, readers, process):
    readers.join(b"1", "w#0", process.pid)
    store.reserve("w#0", [[0, 100]], b"1", readers.writer(b"1"))
    process.kill()
    process.wait()
    readers.reap()
    store.sweep("w#0", [], readers.quarantine)
    assert (store.used_bytes, store.held_bytes, store.extents) == (0, 0, 0)


def test_holds_and_processes_and_connections_have_limits(store, readers, process, monkeypatch):
    monkeypatch.setattr(module, "MOST_HELD", 3)
    monkeypatch.setattr(module, "MOST_PROCESSES", 1)
    monkeypatch.setattr(module, "MOST_CONNECTIONS", 2)
    block = write(store)
    readers.join(b"1", "r#0", process.pid)
    readers.hold(b"1", [block, block])
    with pytest.raises(Refused, match="the limit is 3"):
        readers.hold(b"1", [block, block])
    with pytest.raises(Refused, match="1 processes map"):
        readers.join(b"2", "r#0", os.getpid())
    readers.join(b"2", "r#0", process.pid)
    readers.join(b"3", "r#0", process.pid)  # in the place of 2, which holds nothing and may be closed
    with pytest.raises(Refused, match="has not joined"):
        readers.hold(b"2", [block])
    readers.hold(b"3", [block])
    with pytest.raises(Refused, match="2 connections hold"):
        readers.join(b"4", "r#0", process.pid)

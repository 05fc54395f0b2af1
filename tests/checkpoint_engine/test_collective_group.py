"""Groups outside the default world: they form, carry buckets, break in time, and leave nothing behind."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
import zmq
from ce_helpers import eventually, open_files, resident_mib, settled, threads
from torch.distributed import FileStore

from checkpoint_engine.board_store import BoardStore
from checkpoint_engine.broadcast import broadcast_buffer, check_bucket
from checkpoint_engine.collective import Abandoned, Group, GroupError
from checkpoint_engine.hosted_board import HostedBoard, JoinedBoard
from checkpoint_engine.rendezvous import Board

HOST = "127.0.0.1"


def board_store(board: Board) -> BoardStore:
    return BoardStore(board.post, board.await_note, 5.0)


def make_groups(world: int, timeout_s: float = 5.0) -> list[Group]:
    board = Board()

    def member(rank: int) -> Group:
        return Group(board_store(board), rank, world, HOST, timeout_s)

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(member, range(world)))


def send_all(groups: list[Group], buffers: list[torch.Tensor | None], total: int, bucket: int) -> None:
    with ThreadPoolExecutor(len(groups)) as pool:
        jobs = [pool.submit(broadcast_buffer, group, buffer, total, bucket) for group, buffer in zip(groups, buffers, strict=True)]
        for job in jobs:
            job.result(20)


@pytest.mark.parametrize("total", [0, 1, 4095, 4096, 4097, 40 * 4096 + 3])
def test_a_buffer_arrives_whole_at_everyone_also_past_one_that_keeps_nothing(total: int) -> None:
    groups = make_groups(3)
    source = torch.randint(0, 255, (total,), dtype=torch.uint8)
    target = torch.zeros(total, dtype=torch.uint8)
    send_all(groups, [source, None, target], total, 4096)
    assert torch.equal(source, target)
    for group in groups:
        group.close()


def test_through_device_buckets_the_same_bytes_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """The staging of nccl and hccl, run on the CPU: two alternating buckets never mix, and each rank has one pair, whatever it sends."""
    groups = make_groups(3)
    places: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    plain = Group.broadcast

    def spy(group: Group, tensor: torch.Tensor) -> object:
        places[group.rank].add(tensor.data_ptr())
        return plain(group, tensor)

    monkeypatch.setattr(Group, "broadcast", spy)
    for group in groups:
        group.staging = torch.device("cpu")
    for total in (30 * 4096 + 77, 5 * 4096):
        source, target = torch.randint(0, 255, (total,), dtype=torch.uint8), torch.zeros(total, dtype=torch.uint8)
        send_all(groups, [source, target, None], total, 4096)
        assert torch.equal(source, target)
        assert not any(source.data_ptr() <= place < source.data_ptr() + total for place in places[0])
    assert [len(found) for found in places.values()] == [2, 2, 2]
    for group in groups:
        group.close()


def rebuild() -> None:
    groups = make_groups(2)
    send_all(groups, [torch.ones(9000, dtype=torch.uint8), torch.zeros(9000, dtype=torch.uint8)], 9000, 4096)
    for group in groups:
        group.close()


def test_fifty_rebuilds_leave_no_descriptor_thread_or_socket() -> None:
    for _ in range(3):
        rebuild()
    before = settled()
    for _ in range(50):
        rebuild()
    gc.collect()
    eventually(lambda: open_files() <= before[0] and threads() <= before[1], what=f"{open_files()}, {threads()} go back to {before}")


@pytest.mark.e2e
def test_a_thousand_rebuilds_leave_nothing_and_take_no_memory_after_the_first_hundred() -> None:
    for _ in range(100):
        rebuild()
    gc.collect()
    before, memory = settled(), resident_mib()
    for _ in range(900):
        rebuild()
    gc.collect()
    eventually(lambda: open_files() <= before[0] and threads() <= before[1], what=f"{open_files()}, {threads()} go back to {before}")
    assert resident_mib() < memory + 8, "less than 10 KiB a group"


def test_a_process_that_ends_right_after_its_groups_were_closed_ends_well() -> None:
    """A thread that was deleting one was cut off in torch's destructor by the end of the interpreter: SIGABRT, with everything done."""
    code = """
import threading
from torch.distributed import HashStore
from checkpoint_engine.collective import Group
groups = []
def join(store, rank): groups.append(Group(store, rank, 2, "127.0.0.1", 5.0))
for _ in range(4):
    store = HashStore()
    ranks = [threading.Thread(target=join, args=(store, rank)) for rank in range(2)]
    for rank in ranks: rank.start()
    for rank in ranks: rank.join()
for group in groups: group.close()
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_store_listens_on_its_one_address_only() -> None:
    store = HostedBoard(HOST, 10.0)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", store.port), timeout=2)


def test_a_hosted_board_answers_who_looks_early_and_goes_on_past_nonsense() -> None:
    board = HostedBoard(HOST, 5.0)
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        stranger.connect(f"tcp://{HOST}:{board.port}")
        for nonsense in (b"", b"\xc1", b"\x80\x04pickle"):
            stranger.send(nonsense)
        store = JoinedBoard(HOST, board.port, 5.0).store()
        threading.Timer(0.1, board.store().set, ["late", b"note"]).start()
        assert store.get("late") == b"note"
        store.set("back", b"at you")
        assert board.store().get("back") == b"at you"
        began = time.monotonic()
        with pytest.raises(GroupError, match="did not come"):
            store.wait(["never"], timedelta(seconds=0.2))
        assert time.monotonic() - began < 2


def test_a_board_that_is_not_there_is_an_error_in_time_and_a_dropped_one_ends_its_thread() -> None:
    board = HostedBoard(HOST, 5.0)
    port, before = board.port, threads()
    del board
    eventually(lambda: threads() < before)
    began = time.monotonic()
    with pytest.raises(GroupError, match="is rank 0 alive"):
        JoinedBoard(HOST, port, 0.3)
    assert time.monotonic() - began < 2


def test_a_member_that_never_comes_is_an_error_in_time() -> None:
    began = time.monotonic()
    with pytest.raises(GroupError, match="did not form"):
        Group(board_store(Board()), 0, 2, HOST, 0.5)
    assert time.monotonic() - began < 3


def test_a_death_notice_ends_the_wait_for_a_member_that_will_not_come() -> None:
    board = Board()
    threading.Timer(0.1, board.abandon).start()
    began = time.monotonic()
    with pytest.raises(GroupError, match="abandoned"):
        Group(board_store(board), 0, 2, HOST, 5.0)
    assert time.monotonic() - began < 1


def test_a_death_notice_ends_a_wait_long_before_the_timeout() -> None:
    groups = make_groups(2, timeout_s=3.0)
    notice = threading.Event()
    threading.Timer(0.2, notice.set).start()
    began = time.monotonic()
    with pytest.raises(Abandoned):
        groups[1].wait(groups[1].broadcast(torch.zeros(5000, dtype=torch.uint8)), notice.is_set)
    groups[1].close()
    assert time.monotonic() - began < 1.5
    groups[0].close()


def test_a_bucket_that_lands_just_after_a_slice_is_not_taken_for_a_failure() -> None:
    class Late:
        """A work whose slice ends before, and whose completion comes after: the race seen on a busy machine."""

        waits = 0

        def wait(self, *timeout: object) -> bool:
            self.waits += 1
            if timeout:
                raise RuntimeError("Operation timed out!")
            return True

        def is_completed(self) -> bool:
            return True

    groups = make_groups(2)
    work = Late()
    groups[0].wait(work)  # type: ignore[arg-type]
    assert work.waits == 2
    for group in groups:
        group.close()


def test_a_stopped_peer_is_an_error_at_the_timeout_and_a_killed_one_at_once(tmp_path: Path) -> None:
    for stroke, least_s, most_s in ((signal.SIGSTOP, 0.8, 5.0), (signal.SIGKILL, 0.0, 0.9)):
        meeting = str(tmp_path / stroke.name)
        child = get_context("fork").Process(target=_join_and_rest, args=(meeting,))
        child.start()
        group = Group(FileStore(meeting, 2), 0, 2, HOST, 1.0)
        assert child.pid
        os.kill(child.pid, stroke)
        began = time.monotonic()
        with pytest.raises(GroupError, match="peer"):
            broadcast_buffer(group, torch.zeros(1 << 26, dtype=torch.uint8), 1 << 26, 1 << 20)
        assert least_s <= time.monotonic() - began < most_s
        group.close()
        child.kill()
        child.join(5)


def _join_and_rest(meeting: str) -> None:
    group = Group(FileStore(meeting, 2), 1, 2, HOST, 1.0)
    threading.Event().wait(20)
    group.close()


@pytest.mark.parametrize("make", [lambda: HostedBoard(HOST, 30.0), lambda: check_bucket(100), lambda: make_groups(1, 0.0)])
def test_limits_beyond_the_rule_are_refused(make: object) -> None:
    with pytest.raises(ValueError, match=r"must be in|is below"):
        make()  # type: ignore[operator]

"""Operations on a device: when they count as done. The works are stand-ins with the states that torch documents; no device was at hand.

torch's Work: `is_completed` is true of an operation that failed, too; `wait` raises what failed and returns False for one that was aborted; nccl's
`is_success` always raises, hccl's tells what its `wait` does not.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from ce_helpers import eventually
from test_collective_group import board_store, make_groups

from checkpoint_engine import collective
from checkpoint_engine.broadcast import broadcast_buffer
from checkpoint_engine.collective import Abandoned, Group, GroupError, ended
from checkpoint_engine.rendezvous import Board


class DeviceWork:
    """Completes when it is asked for the `after`-th time (never: None). `error`: it failed; `aborted`; `success`: what `is_success` says."""

    def __init__(self, after: int | None = 3, error: str = "", aborted: bool = False, success: bool | None = None) -> None:
        self._after, self._error, self._aborted, self._success = after, error, aborted, success
        self.asked = 0
        self.ordered = False  # the current stream was told to come after it

    def is_completed(self) -> bool:
        self.asked += 1
        return self._after is not None and self.asked >= self._after

    def wait(self, timeout: timedelta) -> bool:
        assert self._after is not None, "a short wait on a device's operation that still runs makes it a failure"
        assert self.asked >= self._after
        self.ordered = True
        if self._error:
            raise RuntimeError(f"{self._error}\na stack trace")
        return not self._aborted

    def is_success(self) -> bool:
        if self._success is None:
            raise NotImplementedError("WorkNCCL::isSuccess() is deprecated")
        return self._success


@pytest.fixture(params=["nccl", "hccl"])
def group(request: pytest.FixtureRequest) -> Any:
    """A group that waits as one of a device does."""
    groups = make_groups(2, timeout_s=1.0)
    groups[0].backend = request.param
    yield groups[0]
    for made in groups:
        made.backend = "gloo"
        made.close()


def success_of(group: Group) -> bool | None:
    return True if group.backend == "hccl" else None


def test_a_device_operation_is_done_when_it_ended_well_and_the_next_copy_comes_after_it(group: Group) -> None:
    work = DeviceWork(success=success_of(group))
    group.wait(work)  # type: ignore[arg-type]
    assert work.asked >= 3
    assert work.ordered


FAILED = [
    DeviceWork(error="NCCL error: remote process exited", success=True),
    DeviceWork(after=1, error="NCCL error: remote process exited", success=True),
    DeviceWork(aborted=True, success=True),
]


@pytest.mark.parametrize("work", FAILED)
def test_a_device_operation_that_failed_is_completed_and_does_not_count_as_done(group: Group, work: DeviceWork) -> None:
    work.asked = 0
    assert eventually(work.is_completed)
    with pytest.raises(GroupError, match=r"a peer went: (NCCL error: remote process exited|the operation was aborted)$"):
        group.wait(work)  # type: ignore[arg-type]


def test_what_only_is_success_tells_is_told_by_it_and_where_it_is_not_there_it_is_not_asked() -> None:
    assert ended(DeviceWork(after=1, success=False), asks_success=True) == (False, "the operation failed on the device")  # type: ignore[arg-type]
    assert ended(DeviceWork(after=1, success=True), asks_success=True) == (True, "")  # type: ignore[arg-type]
    assert ended(DeviceWork(after=1), asks_success=False) == (True, "")  # type: ignore[arg-type]


def test_a_device_that_fails_when_it_is_asked_is_an_error_of_the_group(group: Group) -> None:
    class Broken(DeviceWork):
        def is_completed(self) -> bool:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(GroupError, match="a peer went: CUDA error"):
        group.wait(Broken())  # type: ignore[arg-type]


def test_a_device_operation_that_never_ends_is_an_error_at_the_timeout_and_a_death_notice_ends_its_wait_before(group: Group) -> None:
    notice = threading.Event()
    threading.Timer(0.1, notice.set).start()
    began = time.monotonic()
    with pytest.raises(Abandoned):
        group.wait(DeviceWork(after=None), notice.is_set)  # type: ignore[arg-type]
    assert time.monotonic() - began < 0.9
    with pytest.raises(GroupError, match=r"no progress for 1\.0 s"):
        group.wait(DeviceWork(after=None))  # type: ignore[arg-type]


def test_bytes_of_a_bucket_whose_operation_failed_never_reach_the_slot(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of five buckets fails: what was on its way after the first is neither copied out nor counted as arrived."""
    works = [DeviceWork(success=True), DeviceWork(error="NCCL error", success=True), *(DeviceWork(success=True) for _ in range(3))]
    asked = iter(works)

    def arrive(group: Group, bucket: torch.Tensor) -> DeviceWork:
        bucket.fill_(9)
        return next(asked)

    monkeypatch.setattr(Group, "broadcast", arrive)
    group.rank, group.staging = 1, torch.device("cpu")
    slot, arrived = torch.zeros(5 * 4096, dtype=torch.uint8), []
    with pytest.raises(GroupError, match="NCCL error"):
        broadcast_buffer(group, slot, 5 * 4096, 4096, progress=arrived.append)
    assert arrived == [4096]
    assert slot[:4096].eq(9).all()
    assert slot[4096:].eq(0).all()


class DeviceGroup:
    """A group of a device: what it was told, in order. `hangs`: its first operation does not come back before it is aborted."""

    def __init__(self, hangs: bool = False) -> None:
        self.told: list[str] = []
        self._hangs, self._aborted = hangs, threading.Event()

    def broadcast(self, tensors: list[torch.Tensor], options: object) -> DeviceWork:
        self.told.append("broadcast")
        if self._hangs:
            self._aborted.wait(20)
            raise RuntimeError("NCCL communicator was aborted")
        return DeviceWork(after=1, error="NCCL error" if len(self.told) == 3 else "")

    def abort(self) -> None:
        self.told.append("abort")
        self._aborted.set()

    def shutdown(self) -> None:
        self.told.append("shutdown")


def device_group(made: DeviceGroup, monkeypatch: pytest.MonkeyPatch, timeout_s: float = 5.0) -> Group:
    monkeypatch.setattr(collective, "_staging", lambda backend: torch.device("cpu"))
    monkeypatch.setattr(collective, "_make", lambda *arguments: made)
    return Group(board_store(Board()), 0, 2, "127.0.0.1", timeout_s, "nccl")


def test_a_device_group_connects_when_it_is_made_and_one_that_served_is_shut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    made = DeviceGroup()
    group = device_group(made, monkeypatch)
    assert made.told == ["broadcast"]
    group.wait(group.broadcast(torch.zeros(5)))
    group.close()
    eventually(lambda: made.told == ["broadcast", "broadcast", "shutdown"], what=f"{made.told}")


def test_a_device_group_that_failed_is_aborted_before_its_buckets_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    made = DeviceGroup()
    group = device_group(made, monkeypatch)
    slot = torch.zeros(5 * 4096, dtype=torch.uint8)
    with pytest.raises(GroupError, match="NCCL error"):
        broadcast_buffer(group, slot, 5 * 4096, 4096)
    assert len(group.buckets(2, 4096)) == 2, "they are the group's"
    group.close()
    eventually(lambda: made.told[-1] == "abort", what=f"{made.told}")


def test_a_device_group_whose_member_never_comes_is_an_error_in_time_and_its_connection_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    made, before = DeviceGroup(hangs=True), threading.active_count()
    began = time.monotonic()
    with pytest.raises(GroupError, match=r"did not form.*a member is missing"):
        device_group(made, monkeypatch, timeout_s=0.5)
    assert time.monotonic() - began < 5
    eventually(lambda: made.told == ["broadcast", "abort"], what=f"{made.told}")
    eventually(lambda: threading.active_count() <= before, what="who hung in the connection is gone")


class Nccl:
    """torch's class of nccl groups: what one is made with. `refuses`: making it fails."""

    made: ClassVar[list[Nccl]] = []
    refuses = False

    class Options:
        def __init__(self) -> None:
            self._timeout = timedelta(minutes=10)
            self.config = SimpleNamespace(blocking=-(2**31))

    def __init__(self, store: object, rank: int, size: int, options: Nccl.Options) -> None:
        self.options, self.environment = options, {key: value for key, value in os.environ.items() if key.startswith("TORCH_NCCL_")}
        Nccl.made.append(self)
        if Nccl.refuses:
            raise RuntimeError("no NCCL here")


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize("before", [{}, {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_HIGH_PRIORITY": "1"}])
def test_only_nccl_groups_made_here_are_told_not_to_end_the_process(before: dict[str, str], refuses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in [key for key in os.environ if key.startswith("TORCH_NCCL_")]:
        monkeypatch.delenv(key)
    for key, value in before.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", Nccl, raising=False)
    monkeypatch.setattr(Nccl, "made", [])
    monkeypatch.setattr(Nccl, "refuses", refuses)
    with contextlib.suppress(RuntimeError):
        collective._make(board_store(Board()), 0, 2, "127.0.0.1", 5.0, "nccl")
    (made,) = Nccl.made
    assert made.environment == before | {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",
        "TORCH_NCCL_BLOCKING_WAIT": "0",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        "TORCH_NCCL_ENABLE_MONITORING": "0",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "86400",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
        "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
        "TORCH_NCCL_PROPAGATE_ERROR": "0",
        "TORCH_NCCL_DESYNC_DEBUG": "0",
    }
    assert {key: value for key, value in os.environ.items() if key.startswith("TORCH_NCCL_")} == before
    assert made.options._timeout >= timedelta(hours=1), "far above ours: torch's watchdog must not be the one that ends an operation"
    assert made.options.config.blocking == 0, "who makes a communicator with a member that never comes returns one day"


def test_the_variables_are_those_that_torch_reads() -> None:
    header = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"
    if not header.exists():
        pytest.skip("this torch comes without its headers")
    text = header.read_text()
    assert [key for key in collective._OURS["nccl"] if f'"{key}"' not in text] == []

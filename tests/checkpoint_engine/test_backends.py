"""Which backend a group gets. No device was at hand: devices are told, and torch's device modules are stood in for by what they are asked."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ce_helpers import eventually, plain_weights, policy, running_publisher

from checkpoint_engine.backends import CPU, Device, choose, own_device
from checkpoint_engine.collective import Group, GroupError
from checkpoint_engine.engine import CollectiveEngine, Metadata
from checkpoint_engine.fanout import SyncReport
from checkpoint_engine.publisher import Publisher
from checkpoint_engine.publisher_client import PublisherClient
from checkpoint_engine.receiver import Receiver
from checkpoint_engine.rendezvous import Board


def gpu(unit: str) -> Device:
    return Device("cuda", unit)


def npu(unit: str) -> Device:
    return Device("npu", unit)


CHOICES: list[tuple[str, Device, dict[str, Device], str, tuple[str, ...]]] = [
    ("auto", CPU, {"b": CPU, "a": CPU}, "gloo", ("a", "b")),
    ("auto", gpu("0"), {"b": gpu("2"), "a": gpu("1")}, "nccl", ("a", "b")),
    ("auto", npu("0"), {"a": npu("1")}, "hccl", ("a",)),
    ("auto", gpu("0"), {"a": gpu("1"), "b": CPU}, "gloo", ("a", "b")),
    ("auto", CPU, {"a": gpu("1")}, "gloo", ("a",)),
    ("auto", gpu("0"), {"a": npu("1")}, "gloo", ("a",)),
    ("auto", gpu("0"), {"a": gpu("0")}, "gloo", ("a",)),  # nccl refuses two ranks on one device
    ("auto", gpu("0"), {"a": gpu("1"), "b": gpu("1")}, "gloo", ("a", "b")),
    ("auto", CPU, {}, "gloo", ()),
    ("gloo", gpu("0"), {"a": gpu("1")}, "gloo", ("a",)),
    ("nccl", gpu("0"), {"a": gpu("1"), "b": CPU, "c": gpu("1"), "d": gpu("0"), "e": gpu("2")}, "nccl", ("a", "e")),
    ("hccl", npu("0"), {"a": gpu("1"), "b": npu("1")}, "hccl", ("b",)),
]


@pytest.mark.parametrize(("setting", "own", "members", "backend", "able"), CHOICES)
def test_the_backend_follows_from_the_devices_of_all_members(
    setting: str, own: Device, members: dict[str, Device], backend: str, able: tuple[str, ...]
) -> None:
    assert choose(setting, own, members) == (backend, able)


class Runtime:
    """What torch.cuda (or torch.npu) is asked."""

    def __init__(self, started: bool, reserved: tuple[int, ...], uuids: bool = True) -> None:
        self._started, self._reserved, self._uuids = started, reserved, uuids

    def is_initialized(self) -> bool:
        return self._started

    def is_available(self) -> bool:
        return bool(self._reserved)

    def current_device(self) -> int:
        self._started = True
        return 0

    def device_count(self) -> int:
        return len(self._reserved)

    def memory_reserved(self, index: int) -> int:
        return self._reserved[index]

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(uuid=f"uuid-{index}") if self._uuids else SimpleNamespace()


def test_the_device_is_the_one_that_this_process_computes_on_and_none_is_started_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_device("auto") == CPU
    monkeypatch.setattr(torch, "cuda", Runtime(False, (0, 0)))
    assert own_device("auto") == own_device("gloo") == CPU
    assert not torch.cuda.is_initialized()
    monkeypatch.setattr(torch, "cuda", Runtime(True, (0, 70, 5)))
    assert own_device("auto") == own_device("nccl") == Device("cuda", "uuid-1", 1)
    assert own_device("gloo") == CPU


def test_a_backend_that_is_asked_for_by_name_starts_its_device_or_says_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"'nccl' needs a cuda device.*use 'auto'"):
        own_device("nccl")
    with pytest.raises(ValueError, match=r"'hccl' needs a npu device"):
        own_device("hccl")
    monkeypatch.setattr(torch, "cuda", Runtime(False, (0,)))
    assert own_device("nccl") == Device("cuda", "uuid-0", 0)


def test_a_device_without_a_name_of_its_own_is_known_by_host_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "npu", Runtime(True, (0, 9), uuids=False), raising=False)
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace())
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "4, 6")
    device = own_device("hccl")
    assert (device.kind, device.index) == ("npu", 1)
    assert device.unit.endswith("/6")
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES")
    assert own_device("auto").unit.endswith("/1")


@pytest.mark.parametrize("backend", ["nccl", "hccl"])
def test_without_a_device_a_backend_by_name_is_refused_where_it_is_set(backend: str) -> None:
    with pytest.raises(ValueError, match=f"'{backend}' needs a"):
        Publisher("policy", backend=backend)
    with pytest.raises(ValueError, match=f"'{backend}' needs a"):
        CollectiveEngine(is_master=True, backend=backend).prepare()
    from checkpoint_engine.board_store import BoardStore

    board = Board()
    with pytest.raises(GroupError, match=f"'{backend}' needs a"):
        Group(BoardStore(board.post, board.await_note, 1.0), 1, 2, "127.0.0.1", 1.0, backend)


@pytest.mark.parametrize("make", [lambda: Publisher("p", backend="mpi"), lambda: Receiver("r", "tcp://127.0.0.1:9", backend="mpi")])
def test_an_unknown_backend_is_refused(make: object) -> None:
    with pytest.raises(ValueError, match="'mpi' is unknown"):
        make()  # type: ignore[operator]


def test_an_engines_topology_names_the_backend_for_all_and_who_cannot_be_in_it() -> None:
    trainer = Metadata("h", 7, gpu("0"))
    _, rollouts = CollectiveEngine.build_topology(2, 2, [trainer, Metadata("h", 0, gpu("1")), Metadata("h", 0, gpu("2")), Metadata("h", 0, gpu("3"))])
    assert [entry.backend for entry in rollouts["master_metadata"]] == ["nccl", "nccl"]
    _, mixed = CollectiveEngine.build_topology(1, 2, [trainer, Metadata("h", 0, gpu("2")), Metadata("h", 0)])
    assert mixed["master_metadata"][0].backend == "gloo"
    with pytest.raises(ValueError, match=r"'nccl' and \['rollout 1: cpu'\]"):
        CollectiveEngine.build_topology(1, 2, [Metadata("h", 7, gpu("0"), "nccl"), Metadata("h", 0, gpu("2")), Metadata("h", 0)])


def test_receivers_that_cannot_be_in_the_group_pull_and_the_others_form_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher set to nccl, told that it has a device; one receiver has one too, one has not. Their group cannot be made here: all pull then."""
    reports: list[SyncReport] = []
    monkeypatch.setattr("checkpoint_engine.publisher.own_device", lambda setting: gpu("0"))
    monkeypatch.setattr("checkpoint_engine.fanout.own_device", lambda setting: gpu("0"))
    devices = {"receiver-with": gpu("1"), "receiver-without": CPU}
    monkeypatch.setattr("checkpoint_engine.receiver.own_device", lambda setting: devices.get(threading.current_thread().name, CPU))
    with running_publisher(backend="nccl", on_sync=reports.append) as publisher:
        client = PublisherClient(publisher.endpoint)
        receivers = [Receiver(name, publisher.endpoint) for name in ("with", "without")]
        eventually(lambda: len(publisher._fanout.members) == 2)
        client.publish(policy(0), plain_weights(0))
        weights = client.wait_published(policy(0), 5)
        for receiver in receivers:
            eventually(lambda receiver=receiver: receiver.latest() == weights, what=f"{receiver.member} has {weights}")
            receiver.close()
        eventually(lambda: reports)
        client.close()
    assert {(report.backend, report.members) for report in reports} == {("nccl", ("with",))}
    assert "needs a cuda device" in reports[0].error


@pytest.mark.parametrize("backend", ["nccl", "hccl"])
def test_a_receiver_without_a_device_for_the_backend_pulls_and_says_so(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is told to the receiver: this machine has none."""
    monkeypatch.setattr("checkpoint_engine.publisher.own_device", lambda setting: gpu("0"))
    monkeypatch.setattr("checkpoint_engine.fanout.own_device", lambda setting: gpu("0"))
    reports: list[SyncReport] = []
    with running_publisher(backend=backend, on_sync=reports.append) as publisher:
        client, receiver = PublisherClient(publisher.endpoint), Receiver("r", publisher.endpoint, backend=backend)
        assert f"backend = '{backend}' needs a" in receiver.pulls_because
        eventually(lambda: len(publisher._fanout.members) == 1)
        for version in range(2):
            client.publish(policy(version), plain_weights(version), wait_s=5)
            weights = client.wait_published(policy(version), 5)
            eventually(lambda weights=weights: receiver.latest() == weights, what=f"{weights}")
        assert receiver.failure is None
        assert (receiver.counters.by_pull_shared, receiver.counters.failed) == (2, 0)
        receiver.close()
        client.close()
    assert not reports


def test_a_receiver_that_chooses_by_devices_takes_part_without_one() -> None:
    receiver = Receiver("r", "tcp://127.0.0.1:9", backend="auto")
    assert receiver.pulls_because == ""
    receiver.close()

"""What goes through a group: the bytes of the slots themselves, in few operations, the next one prepared while one travels."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from ce_helpers import Named, bits, eventually, odd_weights, plain_weights, policy, running_publisher
from test_engine_contract import form, make, receive

from checkpoint_engine import collective
from checkpoint_engine.collective import Group
from checkpoint_engine.digest import weights_digest
from checkpoint_engine.publisher import Publisher
from checkpoint_engine.publisher_client import PublisherClient
from checkpoint_engine.receiver import Receiver

BUCKET = 4096


@dataclass
class Traffic:
    """Every operation of every group of this process, in order: (rank, address, bytes); and what each rank did: "start" or "done"."""

    sent: list[tuple[int, int, int]] = field(default_factory=list)
    steps: dict[int, list[str]] = field(default_factory=dict)

    def of(self, rank: int) -> list[tuple[int, int]]:
        return [(address, nbytes) for found, address, nbytes in self.sent if found == rank]


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> Traffic:
    seen, broadcast, wait = Traffic(), Group.broadcast, Group.wait

    def started(group: Group, tensor: torch.Tensor) -> object:
        seen.sent.append((group.rank, tensor.data_ptr(), tensor.nbytes))
        seen.steps.setdefault(group.rank, []).append("start")
        return broadcast(group, tensor)

    def waited(group: Group, *arguments: object) -> None:
        wait(group, *arguments)  # type: ignore[arg-type]
        seen.steps.setdefault(group.rank, []).append("done")

    monkeypatch.setattr(Group, "broadcast", started)
    monkeypatch.setattr(Group, "wait", waited)
    return seen


@contextmanager
def sent_once(weights: Callable[[], Named]) -> Iterator[tuple[Publisher, list[Receiver]]]:
    """A version that two receivers have got through a group."""
    with running_publisher(bucket_bytes=BUCKET) as publisher:
        client = PublisherClient(publisher.endpoint)
        receivers = [Receiver(f"r{i}", publisher.endpoint) for i in range(2)]
        eventually(lambda: len(publisher._fanout.members) == 2)
        client.publish(policy(0), weights, wait_s=5)
        published = client.wait_published(policy(0), 5)
        for receiver in receivers:
            eventually(lambda receiver=receiver: receiver.latest() == published)
            eventually(lambda receiver=receiver: receiver.counters.receive_s > 0)
            assert receiver.counters.by_broadcast == 1
        yield publisher, receivers
        for receiver in receivers:
            receiver.close()
        client.close()


def mixed() -> Named:
    """Many small tensors, one of several buckets, one that begins and ends within buckets."""
    small = [(f"norm.{i}", torch.full((3,), float(i))) for i in range(100)]
    return [*small, ("large", torch.arange(30_000.0)), ("odd", torch.arange(999, dtype=torch.int16))]


def slices(start: int, total: int) -> list[tuple[int, int]]:
    """(address, bytes) of the buckets of a buffer."""
    return [(start + offset, min(BUCKET, total - offset)) for offset in range(0, total, BUCKET)]


def test_buckets_are_the_slots_themselves_at_the_sender_and_at_every_receiver(traffic: Traffic) -> None:
    """Nothing is packed beside the slot and nothing is unpacked: large tensors travel from where the trainer copied them to where they are read from.
    One larger than a bucket spans several, small ones share one."""
    with sent_once(mixed) as (publisher, receivers):
        lease = publisher._cache.lease("test", 5)
        assert lease
        total = lease.manifest.total_bytes
        assert traffic.of(0) == slices(lease.arena.array.ctypes.data, total)
        assert len(traffic.of(0)) == -(-total // BUCKET) < 40, "as many operations as buckets, not as tensors"
        publisher._cache.release(lease)
        starts = []
        for receiver in receivers:
            with receiver.get_weights() as held:
                starts.append(held.arena.array.ctypes.data)
                large = dict(held)["large"]
                assert torch.equal(large, torch.arange(30_000.0))
                assert 0 <= large.data_ptr() - starts[-1] < total, "it is read where it landed"
        assert sorted(map(tuple, (traffic.of(1), traffic.of(2)))) == sorted(tuple(slices(start, total)) for start in starts)


def test_the_next_bucket_is_on_its_way_before_the_one_before_has_landed(traffic: Traffic) -> None:
    with sent_once(lambda: plain_weights(0)):
        buckets = len(traffic.of(0))
        assert buckets == 32
        for rank in range(3):
            assert traffic.steps[rank] == ["start", "start", *["done", "start"] * (buckets - 2), "done", "done"]


def test_an_engines_manifest_goes_through_the_group_and_its_bytes_go_from_slot_to_slot(traffic: Traffic) -> None:
    trainer, rollout = make(True), make(False)
    form([trainer], [rollout])

    async def sync() -> list[object]:
        return list(await asyncio.gather(trainer.send_weights(iter(mixed()), policy(0)), receive(rollout)))

    assert asyncio.run(sync())[1] == [(name, bits(tensor)) for name, tensor in mixed()]
    for rank, engine in enumerate((trainer, rollout)):
        lease = engine._lease(None)
        (_length, counted), (_, encoded), *buckets = traffic.of(rank)
        assert (counted, encoded > 100 * 20) == (8, True), "the length, then the manifest"
        assert buckets == slices(lease.arena.array.ctypes.data, lease.manifest.total_bytes)
        engine.cache.release(lease)
        engine.finalize()


EVERY_DTYPE = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool),
    *(torch.complex64, torch.complex128, torch.float8_e8m0fnu),
]


def random_bits() -> Named:
    """All bits at random, NaN payloads and infinities among them, in every dtype, of an odd number of elements, over more than a bucket; and odd
    shapes of each: 0-d, empty, strided, with a dimension of 0 in the middle."""
    generator, named = torch.Generator().manual_seed(4), []
    for dtype in EVERY_DTYPE:
        raw = torch.randint(0, 2 if dtype == torch.bool else 256, (4999 * dtype.itemsize,), dtype=torch.uint8, generator=generator)
        tensor = raw.view(dtype)
        name = f"bits.{dtype}"
        named += [(name, tensor), (f"{name}.scalar", tensor[7]), (f"{name}.empty", tensor[:0]), (f"{name}.hollow", tensor[:0].reshape(3, 0, 2))]
        named.append((f"{name}.strided", tensor[:4998].reshape(2, 2499).t()[::7]))
    return named


@pytest.mark.parametrize("staged", [False, True])
def test_every_dtype_and_shape_arrives_bit_for_bit_directly_and_through_buckets_of_a_device(staged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Staged: the way of nccl and hccl, with the CPU in the device's place."""
    if staged:
        monkeypatch.setattr(collective, "_staging", lambda backend: torch.device("cpu"))
    weights = [*random_bits(), *odd_weights(5)]
    with sent_once(lambda: weights) as (publisher, receivers):
        assert publisher.published
        assert publisher.published.digest == weights_digest(weights)
        for receiver in receivers:
            with receiver.get_weights() as held:
                assert [(name, bits(tensor)) for name, tensor in held] == [(name, bits(tensor)) for name, tensor in weights]


def test_through_buckets_of_a_device_each_rank_has_one_pair_for_all_versions(traffic: Traffic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied into a bucket while the other travels: never into one that is on its way."""
    monkeypatch.setattr(collective, "_staging", lambda backend: torch.device("cpu"))
    with running_publisher(bucket_bytes=BUCKET) as publisher:
        client, receiver = PublisherClient(publisher.endpoint), Receiver("r", publisher.endpoint)
        eventually(lambda: len(publisher._fanout.members) == 1)
        for version in range(3):
            client.publish(policy(version), plain_weights(version), wait_s=5)
            published = client.wait_published(policy(version), 5)
            eventually(lambda published=published: receiver.latest() == published)
            with receiver.get_weights():  # from now on its slot may be written over
                pass
        eventually(lambda: receiver.counters.by_broadcast == 3)
        for rank in (0, 1):
            places = [address for address, nbytes in traffic.of(rank) if nbytes > 1]
            assert len(places) == 3 * 32
            assert len(set(places)) == 2
            assert all(one != after for one, after in itertools.pairwise(places))
        receiver.close()
        client.close()

"""The CheckpointEngine contract, with the meanings of verl's methods, and its implementation over a group and the host cache.

For a framework that brings its own orchestration (every worker is told what to do, step by step). A run of AsyncFlow itself uses `Publisher` and
`Receiver`, which need no orchestrator; groups, buckets, cache and digests underneath are the same.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import torch

from checkpoint_engine.backends import CPU, Device, check_setting, choose, own_device
from checkpoint_engine.broadcast import broadcast_buffer, check_bucket
from checkpoint_engine.cache import HostCache, NoFreeSlot
from checkpoint_engine.collective import Group, GroupError, address_towards
from checkpoint_engine.digest import Verifier, digested
from checkpoint_engine.hosted_board import HostedBoard, JoinedBoard
from checkpoint_engine.manifest import Manifest, check_manifest
from checkpoint_engine.slot import Lease
from checkpoint_engine.walking import MOST_WORDS, PlainWalk, Walk, WalkAbandoned, Walked
from checkpoint_engine.weights_id import WeightsId

_LEASE_S = 300.0
_MOST_MANIFEST_BYTES = 1 << 28


class Metadata(msgspec.Struct, frozen=True):
    """What `prepare` of one worker tells the others. `port` 0: not the master. `backend`: the setting; `build_topology` returns the choice."""

    host: str
    port: int
    device: Device = CPU
    backend: str = "auto"


Topology = dict[str, list[Any]]
"""Keyword arguments of `init_process_group`, one list entry a worker."""


class CheckpointEngine(ABC):
    """Weights from trainer ranks to rollout ranks. Order of a sync: prepare → build_topology → init_process_group → send/receive → finalize."""

    @abstractmethod
    def prepare(self) -> Metadata:
        """Allocate what a sync needs; tell how to be reached."""

    @classmethod
    @abstractmethod
    def build_topology(cls, trainer_world_size: int, rollout_world_size: int, metadata: Sequence[Metadata]) -> tuple[Topology, Topology]:
        """From everybody's metadata (trainers first) the arguments of `init_process_group` for trainers and for rollouts."""

    @abstractmethod
    def init_process_group(self, rank: int, world_size: int, master_metadata: Metadata) -> None:
        """Blocks until all came, under a deadline. Rank -1 walks generators but sends nothing."""

    @abstractmethod
    async def send_weights(self, weights: Walked | Walk, label: WeightsId | None = None) -> WeightsId:
        """Send (Hugging Face name, tensor), or what a walk yields. Every trainer rank walks, for the gather inside is collective; it returns when
        rank 0 has taken its copy of the whole version, and raises when it has not."""

    @abstractmethod
    async def receive(self) -> WeightsId:
        """Receive a version into the local cache and verify it. Every rollout takes part in every send, also in one that rank 0 gives up."""

    def receive_weights(self) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Receive, then yield (name, view into the cache)."""
        return self._received()

    async def _received(self) -> AsyncIterator[tuple[str, torch.Tensor]]:
        async for item in self.get_weights(await self.receive()):
            yield item

    @abstractmethod
    def get_weights(self, weights: WeightsId | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Yield a version of the local cache (None: the newest), without any communication."""

    @abstractmethod
    def finalize(self) -> None:
        """End of a sync: the group goes, the cache stays."""


class CollectiveEngine(CheckpointEngine):
    """Trainer rank 0 broadcasts through a group of gloo, nccl or hccl; manifest in band, bytes in buckets.

    `is_master`: this is trainer rank 0, reachable at `host`; its `backend` is everybody's (see backends.py). Raises GroupError when a peer is missing
    or goes; the cache then serves what it served. `copy_timeout_s`: how long the others wait for rank 0 to take its copy, the trainer ranks from
    the end of their own walk, the rollouts from when they begin to receive; they raise WalkAbandoned if it did not take it, GroupError if it went.
    """

    def __init__(
        self,
        bucket_bytes: int = 16 << 20,
        is_master: bool = False,
        host: str = "127.0.0.1",
        backend: str = "auto",
        timeout_s: float = 5.0,
        copy_timeout_s: float = 120.0,
    ) -> None:
        self._bucket_bytes = check_bucket(bucket_bytes)
        self._is_master, self._host, self._backend, self._timeout_s = is_master, host, check_setting(backend), timeout_s
        self._copy_timeout_s = copy_timeout_s
        self._board: HostedBoard | None = None  # the master's
        self._joined: JoinedBoard | None = None  # of everybody else: where rank 0 says how a walk ended
        self._walks = 0  # through this group, also those that came to nothing
        self._group: Group | None = None
        self._rank = 0
        self._sent = 0
        self.cache = HostCache()

    def prepare(self) -> Metadata:
        if self._is_master and self._board is None:
            self._board = HostedBoard(self._host, self._timeout_s)
        return Metadata(self._host, self._board.port if self._board else 0, own_device(self._backend), self._backend)

    @classmethod
    def build_topology(cls, trainer_world_size: int, rollout_world_size: int, metadata: Sequence[Metadata]) -> tuple[Topology, Topology]:
        world = rollout_world_size + 1
        master = metadata[0]
        if master.port == 0:
            raise ValueError("metadata[0] has port 0: trainer rank 0 was not made with is_master=True, nobody could meet; order trainers first")
        devices = {f"rollout {i}": entry.device for i, entry in enumerate(metadata[trainer_world_size:])}
        backend, able = choose(master.backend, master.device, devices)
        left_out = [f"{name}: {device}" for name, device in devices.items() if name not in able]
        if left_out:
            problem = f"backend = {backend!r} and {left_out}: the master on {master.device} could not send to them"
            raise ValueError(f"{problem}; give each a device of its own, or use 'auto'")
        master = msgspec.structs.replace(master, backend=backend)

        def arguments(ranks: list[int]) -> Topology:
            return {"rank": ranks, "world_size": [world] * len(ranks), "master_metadata": [master] * len(ranks)}

        return arguments([0] + [-1] * (trainer_world_size - 1)), arguments(list(range(1, world)))

    def init_process_group(self, rank: int, world_size: int, master_metadata: Metadata) -> None:
        self._rank, self._walks = rank, 0
        host, port = master_metadata.host, master_metadata.port
        if self._board is None:
            self._joined = JoinedBoard(host, port, self._timeout_s)
        board = self._board or self._joined
        if rank >= 0 and board is not None:
            own, store = self._host if rank == 0 else address_towards(host), board.store()
            try:
                self._group = Group(store, rank, world_size, own, self._timeout_s, master_metadata.backend)
            finally:
                store.end()  # a backend's threads have nothing to say on the board any more

    async def send_weights(self, weights: Walked | Walk, label: WeightsId | None = None) -> WeightsId:
        label = WeightsId("model", 0, self._sent) if label is None else label
        self._sent = label.version + 1
        self._walks += 1
        walk = weights if isinstance(weights, Walk) else PlainWalk(weights, self._rank == 0, self._say, self._hear)
        try:
            if walk.is_root != (self._rank == 0):
                raise ValueError(f"the walk's root is not trainer rank 0 (here: rank {self._rank}): nothing is sent; make the walk with root=0")
            if not walk.hand_over(lambda tensors: self._put(label, tensors)):  # on this thread: the walk may be collective and bound to a device
                raise WalkAbandoned(f"{label} was not taken by trainer rank 0 now: nothing was sent; send it again")
        except BaseException as error:  # whatever it was, the rollouts must not wait for it
            self._post("version", f"{type(error).__name__}: {error}"[:MOST_WORDS])
            raise
        if self._rank < 0:
            return label
        lease = self._lease(label)
        try:
            return await asyncio.to_thread(self._send, lease)
        finally:
            self.cache.release(lease)

    async def receive(self) -> WeightsId:
        return await asyncio.to_thread(self._receive)

    async def get_weights(self, weights: WeightsId | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        lease = self._lease(weights)
        try:
            for item in lease.tensors():
                yield item
        finally:
            self.cache.release(lease)

    def finalize(self) -> None:
        if self._group is not None:
            self._group.close()
        for board in (self._board, self._joined):
            if board is not None:
                board.close()
        self._group, self._board, self._joined = None, None, None

    def _put(self, label: WeightsId, tensors: Callable[[], Walked]) -> bool:
        self.cache.put(label, tensors())
        return True

    def _say(self, error: str) -> None:
        """To the other trainer ranks, how the walk ended."""
        self._post("walk", error)

    def _hear(self) -> str:
        return self._read("walk")

    def _post(self, kind: str, error: str) -> None:
        """Rank 0's note on this walk, "" for a good one. The note before the last was read: a walk begins when all are through with the former."""
        if self._board is not None:
            self._board.post(f"{kind}/{self._walks}", error.encode(), instead_of=f"{kind}/{self._walks - 2}")

    def _read(self, kind: str) -> str:
        if self._joined is None:
            raise GroupError("init_process_group was not called (or finalize was): there is nobody to talk to; call it first")
        return self._joined.fetch(f"{kind}/{self._walks}", self._copy_timeout_s).decode()

    def _lease(self, weights: WeightsId | None) -> Lease:
        lease = self.cache.lease("engine", _LEASE_S, weights)
        if lease is None:
            raise LookupError(f"{weights or 'any version'} is not in the cache: nothing can be read; send or receive weights first")
        return lease

    def _send(self, lease: Lease) -> WeightsId:
        group = self._in_group()
        manifest = digested(lease.manifest, lease.arena.array)
        encoded = torch.frombuffer(bytearray(msgspec.msgpack.encode(manifest)), dtype=torch.uint8)
        self._post("version", "")  # from here on it is the group's timeout that counts
        self._now(group, torch.tensor([encoded.numel()]))
        self._now(group, encoded)
        broadcast_buffer(group, lease.arena.tensor(), manifest.total_bytes, self._bucket_bytes)
        return manifest.weights

    def _receive(self) -> WeightsId:
        group = self._in_group()
        self._walks += 1
        error = self._read("version")
        if error:
            raise WalkAbandoned(f"trainer rank 0 sent nothing: the weights before stay ({error})")
        manifest = self._receive_manifest(group)
        reservation = self.cache.reserve(manifest.weights, manifest.total_bytes)
        if reservation is None:
            broadcast_buffer(group, None, manifest.total_bytes, self._bucket_bytes)
            raise NoFreeSlot(f"{manifest.weights} came while every slot was being read: it was dropped; finish get_weights() before the next sync")
        try:
            verifier = Verifier(manifest, reservation.arena.array)
            broadcast_buffer(group, reservation.arena.tensor(), manifest.total_bytes, self._bucket_bytes)
            verifier.finish()
        except BaseException as error:  # whatever ended it: the slot must not stay reserved
            self.cache.abandon(reservation, tainted=isinstance(error, GroupError))
            raise
        self.cache.complete(reservation, manifest)
        return manifest.weights

    def _receive_manifest(self, group: Group) -> Manifest:
        length = self._now(group, torch.zeros(1, dtype=torch.int64)).item()
        if not 0 < length <= _MOST_MANIFEST_BYTES:
            raise GroupError(f"a manifest of {length} bytes was announced: the group is out of step; finalize and form another")
        encoded = self._now(group, torch.zeros(int(length), dtype=torch.uint8))
        manifest = msgspec.msgpack.decode(np.asarray(encoded).tobytes(), type=Manifest)
        check_manifest(manifest)
        return manifest

    def _now(self, group: Group, tensor: torch.Tensor) -> torch.Tensor:
        with group.on_stream():
            staged = tensor.to(group.staging) if group.staging is not None else tensor
            group.wait(group.broadcast(staged))
            return staged.cpu()

    def _in_group(self) -> Group:
        if self._group is None:
            raise GroupError("init_process_group was not called (or finalize was): there is nobody to talk to")
        return self._group

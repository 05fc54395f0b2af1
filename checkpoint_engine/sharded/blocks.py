"""Which rank holds which part of a distributed tensor, and where in the whole it belongs. Arithmetic only: nothing is sent.

The rules are those of torch's placements (2.13): `Shard` cuts like `torch.chunk`, so the last ranks may hold less or nothing; FSDP2 over tensor
parallelism on one dimension (`_StridedShard`, `split_factor` > 1) cuts each of `split_factor` chunks and joins what belongs to a rank.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec
import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement

Run: TypeAlias = tuple[int, int]  # start, stop along one dimension of the whole


class Block(msgspec.Struct, frozen=True):
    """What one rank holds: for each dimension the runs of the whole that follow one another in the block."""

    rank: int  # in the world
    runs: tuple[tuple[Run, ...], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(sum(stop - start for start, stop in runs) for runs in self.runs)

    def is_dense(self, shape: Sequence[int]) -> bool:
        """It is one stretch of the memory of the whole (contiguous, of `shape`): whole rows, one after another."""
        return all(len(runs) == 1 for runs in self.runs) and all(runs[0] == (0, size) for runs, size in zip(self.runs[1:], shape[1:], strict=True))

    def region(self, whole: torch.Tensor) -> torch.Tensor:
        """The view of `whole` that a dense block fills."""
        return whole[slice(*self.runs[0][0])] if self.runs else whole

    def place(self, whole: torch.Tensor, block: torch.Tensor) -> None:
        """Copy `block` (of `self.shape`, any dtype and device) to where it belongs."""
        for runs in itertools.product(*(_with_offsets(runs) for runs in self.runs)):
            target, source = whole, block
            for dim, (start, stop, offset) in enumerate(runs):
                target, source = target.narrow(dim, start, stop - start), source.narrow(dim, offset, stop - start)
            target.copy_(source)


def blocks_of(tensor: DTensor, root: int) -> list[Block]:
    """Every part of `tensor` once, none of them empty, but for partial sums, which have none. Of replicas the one beside `root` is named: the same on
    every rank of the mesh, and nothing on a mesh without `root` (beside tensor parallelism, FSDP2's meshes are columns: one of them has it)."""
    mesh, placements = tensor.device_mesh.mesh, tensor.placements
    here = (mesh == root).nonzero().tolist()
    if not here:
        return []
    choices = [[here[0][i]] if placement.is_replicate() else range(mesh.size(i)) for i, placement in enumerate(placements)]
    found = (Block(int(mesh[place]), _runs(tensor.shape, placements, mesh.shape, place)) for place in itertools.product(*choices))
    return [block for block in found if math.prod(block.shape)]


def _runs(shape: Sequence[int], placements: Sequence[Placement], mesh: Sequence[int], place: Sequence[int]) -> tuple[tuple[Run, ...], ...]:
    """Left to right over the mesh, as torch does: each placement cuts what the ones before it left."""
    runs: list[list[Run]] = [[(0, size)] for size in shape]
    for placement, ranks, rank in zip(placements, mesh, place, strict=True):
        if not placement.is_replicate():
            dim = int(placement.dim) % len(shape)  # type: ignore[attr-defined]  # what is no replica and no partial sum is a shard
            split = int(getattr(placement, "split_factor", 1))
            chunks = (_chunk(runs[dim], split, i) for i in range(split))
            runs[dim] = _joined(run for chunk in chunks for run in _chunk(chunk, ranks, rank))
    return tuple(map(tuple, runs))


def _chunk(runs: Sequence[Run], parts: int, part: int) -> list[Run]:
    """What `torch.chunk(parts)[part]` leaves of the runs, laid end to end; beyond the last chunk nothing."""
    total = sum(stop - start for start, stop in runs)
    step = -(-total // parts)
    first, last = min(part * step, total), min((part + 1) * step, total)
    cut = ((max(start, start + first - offset), min(stop, start + last - offset)) for start, stop, offset in _with_offsets(runs))
    return [(start, stop) for start, stop in cut if start < stop]


def _joined(runs: Iterator[Run]) -> list[Run]:
    joined: list[Run] = []
    for start, stop in runs:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


def _with_offsets(runs: Sequence[Run]) -> Iterator[tuple[int, int, int]]:
    """(start, stop, where the run begins in the block)"""
    offset = 0
    for start, stop in runs:
        yield start, stop, offset
        offset += stop - start

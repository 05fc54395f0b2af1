"""One version through a group, bucket by bucket, two in flight: the next is prepared while one travels.

By gloo a bucket is a view of the slot on both sides: nothing is packed, and bytes land where they stay. A backend of devices can only send device
memory: two buckets there alternate between host copy and transfer, so that bucket i + 1 is copied in (or i - 1 out) while i travels. A tensor larger
than a bucket simply spans several: buckets cut the buffer, not the tensor list.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from checkpoint_engine.collective import Group, GroupError

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

LEAST_BUCKET_BYTES = 4096
_IN_FLIGHT = 2

Progress = Callable[[int], None]
"""Called with the number of leading bytes of the buffer that have arrived (or been sent)."""


_Flight: TypeAlias = "tuple[int, int, torch.Tensor, dist.Work]"  # start, stop, bucket, its operation


def check_bucket(bucket_bytes: int) -> int:
    if bucket_bytes < LEAST_BUCKET_BYTES:
        raise ValueError(f"bucket_bytes = {bucket_bytes} is below {LEAST_BUCKET_BYTES}: a bucket would be mostly overhead; raise it")
    return bucket_bytes


def broadcast_buffer(
    group: Group,
    buffer: torch.Tensor | None,
    total_bytes: int,
    bucket_bytes: int,
    over: Callable[[], bool] = lambda: False,
    progress: Progress = lambda done: None,
) -> None:
    """Send (rank 0) or receive `buffer` (uint8 [>= total_bytes], CPU) through `group`.

    `buffer` None on a receiver: take part so that the others are served, and throw the bytes away (no free slot). Raises GroupError.
    """
    flying: deque[_Flight] = deque()
    try:
        with group.on_stream():
            lane = _Lane(buffer, bucket_bytes, group)
            for start in range(0, total_bytes, bucket_bytes):
                if len(flying) == _IN_FLIGHT:
                    _land(group, lane, flying.popleft(), over, progress)
                stop = min(start + bucket_bytes, total_bytes)
                bucket = lane.bucket(start, stop)
                flying.append((start, stop, bucket, group.broadcast(bucket)))
            while flying:
                _land(group, lane, flying.popleft(), over, progress)
    except GroupError as error:
        # A work keeps the group's sockets open, a traceback's frames keep the work: peers would not notice that this rank gave up.
        flying.clear()
        raise error.with_traceback(None)  # noqa: B904  # it is the same error


def _land(group: Group, lane: _Lane, flight: _Flight, over: Callable[[], bool], progress: Progress) -> None:
    start, stop, bucket, work = flight
    group.wait(work, over)
    lane.landed(start, stop, bucket)
    progress(stop)


class _Lane:
    """Where bucket bytes live while they travel."""

    def __init__(self, buffer: torch.Tensor | None, bucket_bytes: int, group: Group) -> None:
        self._buffer, self._sends = buffer, group.rank == 0
        self._direct = buffer is not None and group.staging is None
        self._spare = deque([] if self._direct else group.buckets(_IN_FLIGHT, bucket_bytes))

    def bucket(self, start: int, stop: int) -> torch.Tensor:
        """uint8 [stop - start]: what the collective reads (sender) or fills (receiver)."""
        if self._direct and self._buffer is not None:
            return self._buffer[start:stop]
        self._spare.rotate(-1)
        bucket = self._spare[0][: stop - start]
        if self._sends and self._buffer is not None:
            bucket.copy_(self._buffer[start:stop])
        return bucket

    def landed(self, start: int, stop: int, bucket: torch.Tensor) -> None:
        """The bucket's operation has ended well. Returns when its bytes are in the buffer: the copy is not left to a stream."""
        if not self._direct and not self._sends and self._buffer is not None:
            self._buffer[start:stop].copy_(bucket)

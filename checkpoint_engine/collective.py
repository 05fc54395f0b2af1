"""Process groups outside the default world: the one file that makes them.

The publisher is rank 0. The same code makes gloo, nccl and hccl groups; they meet through any store of torch's interface. Every step has a
deadline. What gloo does when a peer goes (torch 2.13, measured): a killed peer on a live host resets its connections, so the next
operation raises at once; a stopped peer or a dead host is noticed at the group's timeout only; `abort` changes nothing; deleting a group joins
its running operations, so it can take that timeout (the interpreter lock is free). Therefore waits are sliced, so that a death notice ends them,
and an abandoned group is deleted by a thread of its own.

gloo, nccl, hccl and the store are neither encrypted nor authenticated: for trusted networks only.

torch is imported where a group is made, not here: who only pulls needs none. `import_torch` does it beforehand, for a group has 2 s to form.
"""

from __future__ import annotations

import importlib
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

MOST_TIMEOUT_S = 10.0
FORM_S = 2.0
SLICE_S = 0.05
_THREADS = 2  # one bucket is on its way while the next is queued


class GroupError(RuntimeError):
    """The group cannot be used any more: form another one under the next epoch."""


class Abandoned(GroupError):
    """Someone said that the group is over (a death notice, a newer epoch)."""


def import_torch() -> None:
    """Pay for the import now: seconds, where it was not imported yet."""
    importlib.import_module("torch.distributed")


def check_timeout(timeout_s: float) -> float:
    if not 0 < timeout_s <= MOST_TIMEOUT_S:
        raise ValueError(f"group_timeout_s = {timeout_s} must be in (0, {MOST_TIMEOUT_S}]: a dead peer would stall everyone for longer; lower it")
    return timeout_s


def address_towards(host: str) -> str:
    """The local address whose interface leads to `host`: where this rank listens for the others."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # a datagram socket sends nothing on connect
        return str(probe.getsockname()[0])


class Group:
    """One group of one membership epoch. Not thread-safe, except `close`."""

    def __init__(self, store: dist.Store, rank: int, world: int, host: str, timeout_s: float, backend: str = "gloo") -> None:
        """Blocks until all `world` ranks came, for at most min(FORM_S, timeout_s). `host`: the local address this rank is reached at."""
        import torch.distributed as dist

        self.rank, self.world, self.backend = rank, world, backend
        self._timeout_s = check_timeout(timeout_s)
        form_s = min(FORM_S, timeout_s)
        store.set_timeout(timedelta(seconds=form_s))
        try:
            self._group: Any = _make(store, rank, world, host, form_s, backend)
        except RuntimeError as error:  # torch raises nothing finer: a peer did not come in time, or went
            raise GroupError(f"rank {rank} of {world}: the group did not form within {form_s} s: {_first_line(error)}") from error
        self._store: dist.Store | None = store
        self._pause = threading.Event()
        self._options = dist.BroadcastOptions()
        self._options.rootRank, self._options.rootTensor = 0, 0
        self._options.timeout = timedelta(seconds=timeout_s)

    def broadcast(self, tensor: torch.Tensor) -> dist.Work:
        """Start sending (rank 0) or receiving `tensor`, contiguous. Wait for the returned work with `wait`, in order."""
        try:
            return self._group.broadcast([tensor], self._options)
        except RuntimeError as error:
            raise GroupError(f"rank {self.rank} of {self.world}: broadcast could not start: {error}") from error

    def wait(self, work: dist.Work, over: Callable[[], bool] = lambda: False) -> None:
        """Park until `work` is done; `over` is asked every slice. Raises Abandoned, or GroupError when a peer went or the timeout passed."""
        end = time.monotonic() + self._timeout_s
        who = f"rank {self.rank} of {self.world}"
        while not over():
            done, problem = self._slice(work)
            if problem:
                raise GroupError(f"{who}: a peer went: {problem}")  # outside of the handler: see broadcast.py on what tracebacks keep alive
            if done:
                return
            if time.monotonic() >= end:
                raise GroupError(f"{who}: no progress for {self._timeout_s} s: a peer hangs")
        raise Abandoned(f"{who}: the group was abandoned while a bucket was on its way")

    def _slice(self, work: dist.Work) -> tuple[bool, str]:
        """Wait for at most a slice: (done, what went wrong)."""
        if self.backend != "gloo":
            # Device backends take a short wait for a failure and offer no completion signal with a deadline: ask, half a millisecond apart.
            return work.is_completed() or (self._pause.wait(5e-4) and False), ""
        try:
            return bool(work.wait(timedelta(seconds=SLICE_S))), ""
        except RuntimeError:  # torch raises nothing finer: the slice is over, or the work ended badly
            if not work.is_completed():
                return False, ""
        try:  # it may also have ended well just after the slice: only asking again tells
            return bool(work.wait()), ""
        except RuntimeError as error:
            return False, _first_line(error)

    def close(self) -> None:
        """Give the group up at once; operations that still run are joined by a thread of their own, for at most the group's timeout."""
        owned = [self._group, self._store]  # the only references from here on: the last one must go in that thread
        self._group = self._store = None
        if owned[0] is not None:
            threading.Thread(target=owned.clear, name="group-destroy", daemon=True).start()


def _make(store: dist.Store, rank: int, world: int, host: str, timeout_s: float, backend: str) -> Any:
    import torch.distributed as dist

    timeout = timedelta(seconds=timeout_s)
    if backend == "gloo":
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # the only way to bind one address
        options._timeout = timeout
        options._threads = _THREADS
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
        return dist.ProcessGroupGloo(store, rank, world, options)
    if backend == "nccl":
        nccl = dist.ProcessGroupNCCL.Options()
        nccl._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, world, nccl)
    if backend == "hccl":
        import torch_npu  # type: ignore[import-not-found]  # an extra of its own: importing it without an NPU fails

        hccl = torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options()
        hccl._timeout = timeout
        return torch_npu._C._distributed_c10d.ProcessGroupHCCL(store, rank, world, hccl)
    raise ValueError(f"backend {backend!r} is unknown: no group is made; use gloo, nccl or hccl")


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__

"""Process groups outside the default world: the one file that makes them.

The publisher is rank 0. The same code makes gloo, nccl and hccl groups; they meet through any store of torch's interface. Every step has a
deadline. What gloo does when a peer goes (torch 2.13, measured): a killed peer on a live host resets its connections, so the next
operation raises at once; a stopped peer or a dead host is noticed at the group's timeout only; `abort` changes nothing; deleting a group joins
its running operations, so it can take that timeout (the interpreter lock is free). Therefore waits are sliced, so that a death notice ends them,
and an abandoned group is deleted by a thread of its own.

nccl and hccl were never run here; what is said of them is read from torch's and torch_npu's sources. They connect in their first operation, in a
call without a deadline, so a group makes that one itself, on a thread that can be left behind. A failed group is aborted: what runs on the device
would wait for the dead peer for ever. A communicator that is being made cannot be: `abort` waits for the lock that the making holds. nccl's is made
without blocking, so both end by torch's own limit (TORCH_NCCL_NONBLOCKING_TIMEOUT, 30 min); hccl's end when the call does.

nccl's watchdog would end the process at a failure, and at one of ours even for the sake of a healthy group of the same process: whichever group
fails sets a flag that all groups share, and the monitor of the first one acts on it. So ours have no time-out there (`WATCHDOG_S`; ours comes long
before), and are made under variables of their own (`_OURS`). What is left: an operation that fails, rather than hangs, is found by the watchdog
first if that looks (every 100 ms) before we do (every 0.5 ms); then a group that was made first, by others, with TORCH_NCCL_DUMP_ON_TIMEOUT on (the
default) ends the process some minutes later. Who has one in such a process and cannot have that sets the variable to 0 for all of it.

gloo, nccl, hccl and the store are neither encrypted nor authenticated: for trusted networks only.

torch is imported where a group is made, not here: who only pulls needs none. `import_torch` does it beforehand, for a group has 2 s to form.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from checkpoint_engine.backends import KINDS, own_device

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

MOST_TIMEOUT_S = 10.0
FORM_S = 2.0
DEVICE_FORM_S = MOST_TIMEOUT_S
"""nccl and hccl start threads and measure their links when they connect: seconds."""
SLICE_S = 0.05
_ASK_S = 5e-4
_THREADS = 2  # one bucket is on its way while the next is queued
WATCHDOG_S = 86400.0
_CLEAN_UP_ONLY = "2"  # of torch's error handling modes: abort what failed, and let the process live
_OURS = {  # read when a group is made, and only then
    "nccl": {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": _CLEAN_UP_ONLY,
        "TORCH_NCCL_BLOCKING_WAIT": "0",  # `wait` is asked for errors, not for time
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",  # where ours is the process's first, its monitor does not act on the flag
        "TORCH_NCCL_ENABLE_MONITORING": "0",  # a clean-up that hangs is no reason to end the process,
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": f"{WATCHDOG_S:.0f}",  # nor to set the flag
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",  # nobody dumps, so the watchdog need not sleep four times this long before it cleans up
        "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",  # on the watchdog's thread: nobody could catch them there; `wait` raises them, too
        "TORCH_NCCL_PROPAGATE_ERROR": "0",  # through the store, which is over by then; peers hear of it from the publisher
        "TORCH_NCCL_DESYNC_DEBUG": "0",  # notes of every operation in the store
    },
    "hccl": {"HCCL_ASYNC_ERROR_HANDLING": _CLEAN_UP_ONLY},
}
_ENVIRONMENT = threading.Lock()
_ENDING: set[threading.Thread] = set()  # threads that delete a group
SLACK_S = 2.0
"""Beside the timeout of a group's operations: how long its end may take at the end of the process."""


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


def form_s(backend: str) -> float:
    """How long a group may take until it stands."""
    return FORM_S if backend == "gloo" else DEVICE_FORM_S


def address_towards(host: str) -> str:
    """The local address whose interface leads to `host`: where this rank listens for the others."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # a datagram socket sends nothing on connect
        return str(probe.getsockname()[0])


class Group:
    """One group of one membership epoch. Not thread-safe, except `close`.

    `staging`: the device that buckets travel from and to; None: the host memory itself.
    """

    def __init__(self, store: dist.Store, rank: int, world: int, host: str, timeout_s: float, backend: str = "gloo") -> None:
        """Blocks until all `world` ranks came, for at most min(form_s(backend), timeout_s). `host`: the local address this rank is reached at.
        Raises GroupError."""
        import torch.distributed as dist

        self.rank, self.world, self.backend = rank, world, backend
        self._timeout_s = check_timeout(timeout_s)
        self.staging = _staging(backend)
        self._buckets: list[torch.Tensor] = []
        self._store: dist.Store | None = store
        self._group: Any = None
        self._broken = False
        self._pause = threading.Event()
        self._options = dist.BroadcastOptions()
        self._options.rootRank, self._options.rootTensor = 0, 0
        self._options.timeout = timedelta(seconds=timeout_s)
        limit_s = min(form_s(backend), timeout_s)
        store.set_timeout(timedelta(seconds=limit_s))
        try:
            self._group = _make(store, rank, world, host, limit_s, backend)
            if self.staging is not None:
                self._connect(limit_s)
        except RuntimeError as error:  # torch raises nothing finer: a peer did not come in time, or went
            self._broken = True
            self.close()
            raise GroupError(f"rank {rank} of {world}: the group did not form within {limit_s} s: {_first_line(error)}") from error

    def broadcast(self, tensor: torch.Tensor) -> dist.Work:
        """Start sending (rank 0) or receiving `tensor`, contiguous. Wait for the returned work with `wait`, in order."""
        try:
            return self._group.broadcast([tensor], self._options)
        except RuntimeError as error:
            self._broken = True
            raise GroupError(f"rank {self.rank} of {self.world}: broadcast could not start: {error}") from error

    def wait(self, work: dist.Work, over: Callable[[], bool] = lambda: False) -> None:
        """Park until `work` is done; `over` is asked every slice. Raises Abandoned, or GroupError when a peer went or the timeout passed."""
        end = time.monotonic() + self._timeout_s
        who = f"rank {self.rank} of {self.world}"
        while not over():
            done, problem = self._slice(work)
            if problem:
                self._broken = True
                raise GroupError(f"{who}: a peer went: {problem}")  # outside of the handler: see broadcast.py on what tracebacks keep alive
            if done:
                return
            if time.monotonic() >= end:
                self._broken = True
                raise GroupError(f"{who}: no progress for {self._timeout_s} s: a peer hangs")
        self._broken = True
        raise Abandoned(f"{who}: the group was abandoned while a bucket was on its way")

    def buckets(self, count: int, nbytes: int) -> list[torch.Tensor]:
        """`count` buffers (uint8 [>= nbytes]) where operations read and write, kept until the group is gone: a failed one may still write there."""
        if len(self._buckets) < count or self._buckets[0].nbytes < nbytes:
            import torch

            self._buckets = [torch.empty(nbytes, dtype=torch.uint8, device=self.staging or "cpu") for _ in range(count)]
        return self._buckets

    @contextlib.contextmanager
    def on_stream(self) -> Iterator[None]:
        """Copies between host and buckets, and the operations that wait for them, go by a stream of their own: not behind what an engine computes."""
        if self.staging is None or self.staging.type == "cpu":
            yield
            return
        import torch

        module = torch.get_device_module(self.staging.type)
        with module.stream(module.Stream(self.staging)):
            yield

    def _slice(self, work: dist.Work) -> tuple[bool, str]:
        """Wait for at most a slice: (done, what went wrong)."""
        if self.backend != "gloo":
            # Device backends take a short wait for a failure and offer no completion signal with a deadline: ask, half a millisecond apart.
            done, problem = ended(work, self.backend == "hccl")
            return done or (self._pause.wait(_ASK_S) and False), problem
        try:
            return bool(work.wait(timedelta(seconds=SLICE_S))), ""
        except RuntimeError:  # torch raises nothing finer: the slice is over, or the work ended badly
            if not work.is_completed():
                return False, ""
        try:  # it may also have ended well just after the slice: only asking again tells
            return bool(work.wait()), ""
        except RuntimeError as error:
            return False, _first_line(error)

    def _connect(self, limit_s: float) -> None:
        """The first operation of a device backend: who never comes back from it is left behind."""
        import torch

        begun: Future[dist.Work] = Future()
        one, group, options = torch.zeros(1, dtype=torch.uint8, device=self.staging), self._group, self._options

        def begin() -> None:
            try:
                begun.set_result(group.broadcast([one], options))
            except RuntimeError as error:
                begun.set_exception(error)

        threading.Thread(target=begin, name="group-connect", daemon=True).start()
        try:
            work = begun.result(limit_s)
        except TimeoutError:
            raise GroupError("a member is missing, or its device cannot be reached") from None
        self.wait(work)

    def close(self) -> None:
        """Give the group up at once; operations that still run are joined by a thread of their own, for at most the group's timeout."""
        owned = [self._group, self._store, self._buckets]  # the only references from here on: the last one must go in that thread
        self._group = self._store = None
        self._buckets = []
        if owned[0] is not None:
            ending = threading.Thread(target=_end, args=(owned, self.backend, self._broken), name="group-destroy", daemon=True)
            _ENDING.add(ending)
            ending.start()


def ended(work: dist.Work, asks_success: bool) -> tuple[bool, str]:
    """An operation on a device, without waiting for it: (it ended well, what went wrong).

    Completed is not succeeded: `is_completed` is true of a failed operation too. `wait` raises what failed (nccl) and lets the current stream's next
    copy come after it; it does not block here. hccl's `wait` says nothing of failures, its `is_success` does (`asks_success`); nccl has none.
    """
    try:
        if not work.is_completed():
            return False, ""
        if not work.wait(timedelta(seconds=1)):
            return False, "the operation was aborted"
        if asks_success and not work.is_success():
            return False, "the operation failed on the device"
    except RuntimeError as error:  # torch raises nothing finer
        return False, _first_line(error)
    return True, ""


def _staging(backend: str) -> torch.device | None:
    """Where this process's buckets lie. Raises GroupError where it has no such device."""
    if backend not in KINDS:
        raise GroupError(f"backend {backend!r} is unknown: no group is made; use gloo, nccl or hccl")
    if KINDS[backend] == "cpu":
        return None
    import torch

    try:
        device = own_device(backend)
    except ValueError as error:
        raise GroupError(str(error)) from error
    return torch.device(device.kind, device.index)


def _make(store: dist.Store, rank: int, world: int, host: str, timeout_s: float, backend: str) -> Any:
    import torch.distributed as dist

    timeout = timedelta(seconds=timeout_s)
    if backend == "gloo":
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # the only way to bind one address
        options._timeout = timeout
        options._threads = _THREADS
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
        return dist.ProcessGroupGloo(store, rank, world, options)
    with _surviving(backend):
        if backend == "nccl":
            nccl = dist.ProcessGroupNCCL.Options()
            nccl._timeout = timedelta(seconds=WATCHDOG_S)
            nccl.config.blocking = 0
            return dist.ProcessGroupNCCL(store, rank, world, nccl)
        import torch_npu  # type: ignore[import-not-found]  # an extra of its own: importing it without an NPU fails

        hccl = torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options()
        hccl._timeout = timeout
        return torch_npu._C._distributed_c10d.ProcessGroupHCCL(store, rank, world, hccl)


@contextlib.contextmanager
def _surviving(backend: str) -> Iterator[None]:
    """A group made in here does not end the process when it fails. Groups of others, made before or after, keep their own way: the variables are
    theirs again on return. What another thread makes or starts in that moment sees ours."""
    with _ENVIRONMENT:
        before = {key: os.environ.get(key) for key in _OURS[backend]}
        os.environ.update(_OURS[backend])
        try:
            yield
        finally:
            for key, value in before.items():
                if value is None:
                    os.environ.pop(key, None)
                else:
                    os.environ[key] = value


def _end(owned: list[Any], backend: str, broken: bool) -> None:
    """The last of a group: what still runs on a device is aborted, then its memory may go."""
    with contextlib.suppress(RuntimeError, AttributeError):  # it is given up in any case; torch_npu's names differ by release
        if backend == "nccl":
            owned[0].abort() if broken else owned[0].shutdown()
        elif backend == "hccl" and broken:
            owned[0].abort_hccl_comm("the group was given up")
    owned.clear()
    _ENDING.discard(threading.current_thread())


@atexit.register
def _join_ending() -> None:
    """A thread that wants the interpreter's lock back while the interpreter ends is unwound, here through a destructor of torch's: SIGABRT, after
    everything went well. What does not end by its own timeout is left behind all the same."""
    end = time.monotonic() + MOST_TIMEOUT_S + SLACK_S
    for thread in list(_ENDING):
        thread.join(max(end - time.monotonic(), 0.0))


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__

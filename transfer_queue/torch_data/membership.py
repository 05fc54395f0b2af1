"""A member of the queue that stays one while its process computes: its heartbeats come from a thread of their own.

It ends by `Leave`, which gives every lease back at once: when it is closed or collected, when the interpreter ends, and when the process for which it
works is gone (a worker process outlives a killed trainer by seconds, and would hold on to its rows).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping

import msgspec
from torch.utils.data import get_worker_info

from transfer_queue.client import QueueClient
from transfer_queue.connection import NOBODY
from transfer_queue.errors import QueueError, QueueGone
from transfer_queue.messages import Directive
from transfer_queue.torch_data.settings import Source

BEAT_S = 1.0  # a heartbeat at least this often; changes of the directive arrive at once
END_S = 5.0  # deadline of leaving: past it the controller notices by itself that no heartbeat comes


class Membership:
    """`client` is the member's connection, of the thread that made it. `close` may be called more than once."""

    def __init__(self, source: Source, name: str) -> None:
        self.client = QueueClient.connect(
            source.url, name=name, role=source.role, security=source.security, timeout_s=source.timeout_s, map_memory=source.map_memory
        )
        self._heart = Heart(self.client.attach())
        self.close = weakref.finalize(self, _end, os.getpid(), self.client, self._heart)

    @property
    def stop_reason(self) -> str | None:
        """Why the run was stopped; None while it was not, as far as a heartbeat has told."""
        directive = self._heart.directive
        return None if directive is None or directive.state != "stop" else directive.reason

    def check(self) -> None:
        """Raises what ended the heartbeats: the controller would soon take this member for dead, and give what it takes to others."""
        self._heart.check()

    def wait_beyond(self, model: str, version: int) -> None:
        """Until a newer version than this is committed, or the run is stopped. Raises what ended the heartbeats."""
        self._heart.wait(lambda directive: directive.state == "stop" or directive.versions.get(model, 0) > version)

    def wait_end(self) -> None:
        """Until somebody else has ended this member, or the process that it works for is gone."""
        with contextlib.suppress(QueueError, OSError):
            self._heart.wait(lambda directive: False)


class Heart:
    """The thread and what it hears. It refers to no Membership, so that one that nobody refers to is collected, and leaves."""

    def __init__(self, client: QueueClient) -> None:
        """`client` is the thread's own from now on."""
        self.directive: Directive | None = None  # the newest
        self._client = client
        self._error: Exception | None = None
        self._changed = threading.Condition()
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="queue-heartbeat", daemon=True)
        self._thread.start()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def wait(self, wanted: Callable[[Directive], bool]) -> None:
        """Until a directive is as wanted."""
        with self._changed:
            while self.directive is None or not wanted(self.directive):
                self.check()
                self._changed.wait(BEAT_S + self._client.timeout_s)  # the thread sets one of the two within it, or has ended with an error

    def stop(self) -> None:
        """Returns when the thread has ended, which takes no longer than a look at its sockets."""
        os.write(self._stop_write, b"\0")
        self._thread.join(END_S)
        os.close(self._stop_write)
        os.close(self._stop_read)

    def _run(self) -> None:
        parent = _parent()
        error: Exception = QueueGone(f"{self._client.owner} has left: it was closed, or the process that it works for has ended")
        try:
            with self._client:
                while self._beat([self._stop_read, *parent]):
                    pass
        except (QueueError, OSError) as raised:  # the member meets it at its next `check` or `wait`
            error = raised
        finally:
            for descriptor in parent:
                os.close(descriptor)
            self._tell(None, error)

    def _beat(self, ends: list[int]) -> bool:
        """One heartbeat; False when it was the last. An end is seen at once, whatever the heartbeat waits for."""
        pending = self._client.watch(seen=-1 if self.directive is None else self.directive.revision, wait_s=BEAT_S)
        deadline = time.monotonic() + BEAT_S + self._client.timeout_s
        ready = self._client.poll(deadline - time.monotonic(), *ends)
        if ready & set(ends):
            if self._stop_read not in ready:  # nobody is left to work for
                self._client.leave().result(END_S)
            return False
        self._tell(pending.result(deadline - time.monotonic()).directive, None)
        return True

    def _tell(self, directive: Directive | None, error: Exception | None) -> None:
        with self._changed:
            self.directive = directive or self.directive
            self._error = error
            self._changed.notify_all()


def _parent() -> list[int]:
    """Of a DataLoader's worker process: a descriptor that is readable once the process that iterates is gone."""
    parent = multiprocessing.parent_process()
    if get_worker_info() is None or parent is None or parent.pid is None:
        return []
    if not hasattr(os, "pidfd_open"):
        return [os.dup(parent.sentinel)]  # not enough alone: forked siblings keep its other end open
    with contextlib.suppress(ProcessLookupError):
        return [os.pidfd_open(parent.pid)]
    return [os.open(os.devnull, os.O_RDONLY)]  # gone already: always readable


def _end(process: int, client: QueueClient, heart: Heart) -> None:
    if os.getpid() != process:  # a forked child has inherited what is not its own
        return
    heart.stop()
    try:
        client.leave().result(END_S)
    except (QueueError, OSError):  # it left already, or counts as dead, or the controller is gone: nothing is left to give back
        pass
    finally:
        client.close()


# ------------------------------------------------------------ ending those of others


def leave_for(source: Source, members: Mapping[str, int], deadline_s: float) -> None:
    """These incarnations (by name) leave now: their leases go to others, and who of them is parked is woken. Best effort: heartbeats tell it, too."""
    with contextlib.ExitStack() as stack, contextlib.suppress(QueueError, OSError):
        waiting = []
        for name, incarnation in members.items():
            themselves = msgspec.structs.replace(NOBODY, member=name, incarnation=incarnation)
            waiting.append(stack.enter_context(QueueClient(source.url, source.security, themselves, deadline_s)).leave())
        for pending in waiting:
            with contextlib.suppress(QueueError):  # it left by itself
                pending.result(deadline_s)


def report_dead(source: Source, members: Mapping[str, int], cause: str, deadline_s: float) -> None:
    """The same where something went wrong: the event log says what."""
    with contextlib.suppress(QueueError, OSError), QueueClient.outsider(source.url, security=source.security) as client:
        for pending in [client.member_dead(name, cause, incarnation) for name, incarnation in members.items()]:
            pending.result(deadline_s)

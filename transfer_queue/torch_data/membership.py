"""A member of the queue that stays one while its process computes: its heartbeats come from a thread of their own.

It ends by `Leave`, which gives every lease back at once: when it is closed or collected, when the interpreter ends, and when the process for which it
works is gone (a worker process outlives a killed trainer by seconds, and would hold on to its rows).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import weakref
from collections.abc import Mapping

import msgspec
from torch.utils.data import get_worker_info

from transfer_queue.client import QueueClient
from transfer_queue.connection import NOBODY
from transfer_queue.errors import QueueError
from transfer_queue.heart import END_S, Heart
from transfer_queue.torch_data.settings import Source


class Membership:
    """`client` is the member's connection, of the thread that made it. `close` may be called more than once."""

    def __init__(self, source: Source, name: str) -> None:
        self.client = QueueClient.connect(
            source.url, name=name, role=source.role, security=source.security, timeout_s=source.timeout_s, map_memory=source.map_memory
        )
        self._heart = Heart(self.client.attach(), _parent)
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

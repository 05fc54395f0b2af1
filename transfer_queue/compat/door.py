"""The one connection of a process to its queue. A thread owns it; whoever has something to ask, on any thread and any loop, hands it in and gets a
future: `door().call(ask).result(wait_s)`, or `await asyncio.wrap_future(door().call(ask))`.

Calls are carried out one after the other, in the order in which they were handed in. An incarnation that the controller has ended joins again, and
the call that met it is made once more: what is asked may run twice, as a request that was refused has changed nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from transfer_queue import messages as m
from transfer_queue.compat.address import Address
from transfer_queue.errors import QueueError, QueueGone, QueueTimeout
from transfer_queue.keyed import KeyedClient

T = TypeVar("T")
Ask = Callable[[KeyedClient], T]

MOST_CALLS = 1 << 16  # that wait for their turn
ANSWER_S = 60.0  # of one request: shards may move gigabytes, and machines that train are busy
BEAT_S = 3.0  # between two signs of life, where the controller wants any
LEAVE_S = 1.0  # the controller answers at once, or it is gone
END_S = 5.0  # for the call that is under way when the door closes
JOINS = 1  # times that a call joins again
ENDED = ("stale_incarnation", "unknown_member")  # what a member is told that is none any more
CLOSED = "the queue was closed in this process: call init() again to find or start one"
BROKEN = "the thread that asks the queue has ended, see the traceback that it printed: call init() again to connect anew"


def door() -> Door:
    """That of this process, opened where `init` was called here, in the process that it was forked from, or for the whole cluster. Raises
    RuntimeError where it was not, and what `Door` raises."""
    from transfer_queue.compat.init import entered  # which imports us

    return entered()


class Door:
    """Open once it is made. Raises QueueTimeout, QueueRefused, QueueError where the queue cannot be joined."""

    def __init__(self, address: Address, join_s: float = 30.0) -> None:
        self.address = address
        self._gone = False  # the controller was, at the last call
        self._name = _name()  # one of its own: two of one name would end each other by turns
        self._join_s = join_s
        self._calls: deque[tuple[Ask[Any], Future[Any]]] = deque()
        self._changed = threading.Condition()
        self._closed = ""  # why no call is taken any more
        self._client: KeyedClient
        joined: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(joined,), name="transfer queue", daemon=True)
        self._thread.start()
        joined.result(2 * join_s)

    @property
    def lost(self) -> bool:
        """It leads nowhere: the queue is to be found anew."""
        return self._gone or self._closed == BROKEN

    def call(self, ask: Ask[T]) -> Future[T]:
        """`ask(client)` runs on the door's thread when its turn comes; a future that is cancelled before is left out.

        It gets what `ask` raises: QueueGone where the controller is gone, or where the door closes before. Raises QueueGone (closed), QueueError
        (`too_many`: MOST_CALLS wait already), RuntimeError on the door's own thread, where it would wait for itself.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("a call was made inside another one, which would wait for itself: make one after the other")
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise QueueGone(self._closed)
            if len(self._calls) >= MOST_CALLS:
                raise QueueError("too_many", f"{MOST_CALLS} calls of this process wait for their turn: wait for some of them")
            self._calls.append((ask, future))
            self._changed.notify()
        return future

    def close(self) -> None:
        """Calls that wait fail with QueueGone; the one under way has END_S, and past it ends by itself."""
        self._refuse(CLOSED)
        if threading.current_thread() is not self._thread:
            self._thread.join(END_S)

    def _refuse(self, why: str) -> None:
        """What waits, and what comes."""
        with self._changed:
            self._closed = self._closed or why
            waiting, self._calls = self._calls, deque()
            self._changed.notify()
        for _, future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(QueueGone(self._closed))

    # ------------------------------------------------------------ the thread

    def _run(self, joined: Future[None]) -> None:
        try:
            self._client = self._join()
        except BaseException as error:  # raised by whoever opens the door
            joined.set_exception(error)
            return
        joined.set_result(None)
        try:
            while self._turn():
                pass
        finally:
            self._refuse(BROKEN)  # where it was not closed: nobody would answer any more
            self._end()

    def _join(self) -> KeyedClient:
        address = self.address
        client = KeyedClient.connect(address.url, name=self._name, role="compat", security=address.security, timeout_s=self._join_s)
        client.timeout_s = ANSWER_S
        return client

    def _join_again(self) -> None:
        ended, self._client = self._client, self._join()  # the old one stays where that fails
        ended.close()

    def _turn(self) -> bool:
        """One call or one sign of life. False once the door is closed. What a call holds is let go on return."""
        with self._changed:
            until = time.monotonic() + BEAT_S
            while not self._calls and not self._closed and (left_s := until - time.monotonic()) > 0:
                self._changed.wait(left_s)
            if self._closed:
                return False
            call = self._calls.popleft() if self._calls else None
        if call is None:
            self._beat()
        elif call[1].set_running_or_notify_cancel():
            self._answer(*call)
        return True

    def _answer(self, ask: Ask[Any], future: Future[Any]) -> None:
        try:
            future.set_result(self._asked(ask))
            self._gone = False
        except BaseException as error:  # the caller's, whatever it is
            self._gone = isinstance(error, QueueGone) and not self._client.controller.up
            future.set_exception(error)
        finally:
            del ask, future  # an error keeps this frame, and would keep what was to be put

    def _asked(self, ask: Ask[T]) -> T:
        try:
            for _ in range(JOINS):
                with _ended():
                    return ask(self._client)
                self._join_again()
            return ask(self._client)
        finally:
            del ask

    def _beat(self) -> None:
        """Only a queue with topics ends who is silent. What goes wrong is told by the next call. What reads held is given back to the shards, which
        is said at a look at the sockets only: a process may compute for an hour between two calls."""
        self._client.poll(0.0)
        if self._client.registration.topics:
            with contextlib.suppress(QueueError, QueueTimeout, QueueGone), _ended():
                self._client.call(m.Watch(member="", incarnation=0, wait_s=0.0), LEAVE_S)
                return
            with contextlib.suppress(QueueError, QueueTimeout, OSError):
                self._join_again()

    def _end(self) -> None:
        with self._client as client:
            if client.controller.up:  # else it is gone, or was ended by us
                with contextlib.suppress(QueueError, QueueTimeout, QueueGone):
                    client.leave().result(LEAVE_S)


@contextlib.contextmanager
def _ended() -> Any:
    """Goes on behind the block where the controller has ended this incarnation."""
    try:
        yield
    except QueueError as error:
        if error.code not in ENDED:
            raise


def _name() -> str:
    """Also where containers share a host's name and have process numbers of their own."""
    host = re.sub(r"[#\s]", "-", socket.gethostname())[:64]
    return f"compat-{host}-{os.getpid()}-{secrets.token_hex(4)}"

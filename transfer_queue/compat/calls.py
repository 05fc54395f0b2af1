"""One call of the interface: what is asked through the process's one connection, and what the caller makes of the answer on his own thread. Sync
callers wait, coroutines are woken by the future; both with a deadline."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from transfer_queue.compat.door import door
from transfer_queue.compat.errors import StorageKeyNotFoundError
from transfer_queue.errors import KeysChanged, QueueError, QueueGone, QueueTimeout
from transfer_queue.keyed import KeyedClient

WAIT_S = 600.0  # for the calls before this one too: each of them has the client's own, shorter deadline
Reply = TypeVar("Reply")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Call(Generic[Reply, Answer]):
    ask: Callable[[KeyedClient], Reply]  # runs when nothing else is asked; of a coroutine on the door's thread
    answer: Callable[[Reply], Answer]  # runs on the caller's
    dropped: Callable[[KeyedClient, Reply], None] | None = None  # like `ask`: the reply came when nobody waited for it any more


def now(call: Call[Any, Answer]) -> Answer:
    """Raises what the client raises, StorageKeyNotFoundError, QueueTimeout."""
    future = door().call_here(call.ask)
    with _given_up(call, future):
        reply = future.result(WAIT_S)
    return call.answer(reply)


async def later(call: Call[Any, Answer]) -> Answer:
    """The same for a coroutine, on any loop."""
    future = door().call(call.ask)
    with _given_up(call, future):
        reply = await asyncio.wait_for(asyncio.wrap_future(future), WAIT_S)
    return call.answer(reply)


@contextlib.contextmanager
def _given_up(call: Call[Any, Any], future: Future[Any]) -> Iterator[None]:
    """Around the wait: what its end means, and what becomes of a call that nobody waits for any more, also where a coroutine was cancelled. One whose
    turn has not come is never made: who was told that it failed may have made another one."""
    try:
        yield
    except KeysChanged as error:
        raise StorageKeyNotFoundError(str(error)) from error
    except BaseException as error:  # whatever ended the wait, a cancelled coroutine included: what becomes of the call must be said
        failed = future.done() and not future.cancelled() and future.exception() is not None  # by the call itself
        if failed or future.cancel():
            rest = "it was not made"
        else:
            rest = "it is under way, and may still be carried out"
            _drop(call, future)
        if failed or not isinstance(error, TimeoutError):
            raise
        waited = f"no answer within {WAIT_S:g} s, {rest}"
        raise QueueTimeout(f"{waited}: the calls of this process before it hold the connection; see who asks for so much at once") from error


def _drop(call: Call[Any, Any], future: Future[Any]) -> None:
    """Its reply is there when the next call has its turn."""
    dropped = call.dropped
    if dropped is None:
        return

    def take(client: KeyedClient) -> None:
        if future.exception() is None:
            dropped(client, future.result())

    with contextlib.suppress(QueueGone, QueueError):  # it goes with the connection
        door().call(take)

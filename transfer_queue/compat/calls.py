"""One call of the interface: what is asked on the thread that owns the connection, and what the caller makes of the answer on his own. Sync callers
wait, coroutines are woken by the future; both with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from transfer_queue.compat.door import door
from transfer_queue.compat.errors import StorageKeyNotFoundError
from transfer_queue.errors import KeysChanged, QueueTimeout
from transfer_queue.keyed import KeyedClient

WAIT_S = 600.0  # for the calls before this one too: each of them has the client's own, shorter deadline
Reply = TypeVar("Reply")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Call(Generic[Reply, Answer]):
    ask: Callable[[KeyedClient], Reply]  # runs on the door's thread
    answer: Callable[[Reply], Answer]  # runs on the caller's


def now(call: Call[Any, Answer]) -> Answer:
    """Raises what the client raises, StorageKeyNotFoundError, QueueTimeout."""
    future = door().call(call.ask)
    try:
        reply = future.result(WAIT_S)
    except KeysChanged as error:
        raise StorageKeyNotFoundError(str(error)) from error
    except QueueTimeout:
        raise
    except TimeoutError as error:
        raise _late(future) from error
    return call.answer(reply)


async def later(call: Call[Any, Answer]) -> Answer:
    """The same for a coroutine, on any loop."""
    future = door().call(call.ask)
    try:
        reply = await asyncio.wait_for(asyncio.wrap_future(future), WAIT_S)
    except KeysChanged as error:
        raise StorageKeyNotFoundError(str(error)) from error
    except QueueTimeout:
        raise
    except TimeoutError as error:
        raise _late(future) from error
    return call.answer(reply)


def _late(future: Future[Any]) -> QueueTimeout:
    """A call whose turn has not come is never made: who was told that it failed may have made another one."""
    rest = "it was not made" if future.cancel() or future.cancelled() else "it is under way, and may still be carried out"
    return QueueTimeout(
        f"no answer within {WAIT_S:g} s, {rest}: the calls of this process before it hold the connection; see who asks for so much at once"
    )

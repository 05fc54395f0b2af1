"""What a caller is told when no answer comes in time, and what becomes of his call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from transfer_queue.compat import calls
from transfer_queue.compat.address import Address
from transfer_queue.compat.calls import Call, later, now
from transfer_queue.compat.door import Door
from transfer_queue.errors import QueueTimeout
from transfer_queue.local import LocalQueue

WAIT_S = 20.0


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    with LocalQueue([], keyed_only=True) as running:
        found = Door(Address(running.url), join_s=10.0)
        monkeypatch.setattr(calls, "door", lambda: found)
        yield found
        found.close()


def put(key: str) -> Call[Any, Any]:
    return Call(lambda client: client.put("train", [key], tags=[{}]), lambda reply: reply)


@pytest.mark.parametrize("way", ["sync", "coroutine"])
def test_a_call_that_was_given_up_before_its_turn_is_never_made(opened: Door, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    over = threading.Event()
    first: Future[bool] = opened.call(lambda client: over.wait(WAIT_S))
    monkeypatch.setattr(calls, "WAIT_S", 0.1)
    with pytest.raises(QueueTimeout, match="it was not made"):
        now(put("a")) if way == "sync" else asyncio.run(later(put("a")))
    over.set()
    assert first.result(WAIT_S)
    assert opened.call(lambda client: client.list_keys()).result(WAIT_S) == {}


@pytest.mark.parametrize("way", ["sync", "coroutine"])
def test_a_call_under_way_is_said_to_be(opened: Door, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    over = threading.Event()
    slow: Call[Any, Any] = Call(lambda client: over.wait(WAIT_S), lambda reply: reply)
    monkeypatch.setattr(calls, "WAIT_S", 0.3)
    with pytest.raises(QueueTimeout, match="under way"):
        now(slow) if way == "sync" else asyncio.run(later(slow))
    over.set()


@pytest.mark.parametrize("way", ["sync", "coroutine"])
def test_what_the_client_raises_is_not_its_own_cause(opened: Door, way: str) -> None:
    def ask(client: Any) -> None:
        raise QueueTimeout("the client's own")

    call: Call[Any, Any] = Call(ask, lambda reply: reply)
    with pytest.raises(QueueTimeout, match="the client's own") as raised:
        now(call) if way == "sync" else asyncio.run(later(call))
    assert raised.value.__cause__ is None

"""The one connection of a process, on queues in threads and on real processes."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import numpy as np
import pytest
from queue_run import spec

from transfer_queue import messages as m
from transfer_queue.client import QueueClient
from transfer_queue.compat import door as module
from transfer_queue.compat.address import Address
from transfer_queue.compat.conf import Settings
from transfer_queue.compat.door import Door
from transfer_queue.compat.processes import QueueProcesses
from transfer_queue.errors import QueueError, QueueGone, QueueTimeout
from transfer_queue.local import LocalQueue

WAIT_S = 20.0


@pytest.fixture
def store() -> Iterator[LocalQueue]:
    with LocalQueue([], keyed_only=True) as running:
        yield running


@pytest.fixture
def opened(store: LocalQueue) -> Iterator[Door]:
    found = Door(Address(store.url), join_s=10.0)
    yield found
    found.close()


def test_calls_run_on_one_thread_in_their_order_whatever_thread_hands_them_in(opened: Door) -> None:
    ran: list[tuple[int, int]] = []
    lock = threading.Lock()
    handed: list[Future[None]] = []

    def hand() -> None:
        for _ in range(50):
            with lock:  # so that the order is known
                at = len(handed)
                handed.append(opened.call(lambda client, at=at: ran.append((at, threading.get_ident()))))  # type: ignore[misc]

    threads = [threading.Thread(target=hand) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    for future in handed:
        future.result(WAIT_S)
    assert [at for at, _ in ran] == list(range(200))
    assert len({ident for _, ident in ran}) == 1


def test_coroutines_of_two_loops_at_once_get_their_answers(opened: Door) -> None:
    found: dict[int, dict[str, Any]] = {}

    async def put(loop: int, key: int) -> None:
        await asyncio.wrap_future(opened.call(lambda client: client.put(f"p{loop}", [str(key)], {"x": np.full((1, 2), key)})))

    async def work(loop: int) -> None:
        await asyncio.gather(*(put(loop, key) for key in range(20)))
        found[loop] = await asyncio.wrap_future(opened.call(lambda client: client.list_keys([f"p{loop}"])))

    threads = [threading.Thread(target=asyncio.run, args=(work(loop),)) for loop in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert {loop: sorted(map(int, keys[f"p{loop}"])) for loop, keys in found.items()} == {0: list(range(20)), 1: list(range(20))}


def test_what_a_call_raises_is_its_callers_and_the_next_one_works(opened: Door) -> None:
    failed = opened.call(lambda client: client.get("train", []))
    with pytest.raises(ValueError, match="keys"):
        failed.result(WAIT_S)
    assert opened.call(lambda client: client.list_keys()).result(WAIT_S) == {}


def test_a_call_inside_a_call_is_refused_and_does_not_wait_for_itself(opened: Door) -> None:
    with pytest.raises(RuntimeError, match="inside another one"):
        opened.call(lambda client: opened.call(lambda inner: inner.list_keys()).result(WAIT_S)).result(WAIT_S)


def test_what_was_put_and_read_is_let_go_at_once_also_after_an_error(opened: Door) -> None:
    class Held:
        pass

    gc.collect()
    gc.disable()
    try:
        for error in (None, ValueError("told")):
            held = Held()
            gone = weakref.ref(held)

            def ask(client: Any, held: Held = held, error: Exception | None = error) -> None:
                if error is not None:
                    raise error

            future = opened.call(ask)
            del held, ask
            caught = future.exception(WAIT_S)
            deadline = time.monotonic() + WAIT_S
            error = None
            if caught is not None:
                caught.__traceback__ = None  # a caller lets go of the error, and of its frames
            del future, caught
            while gone() is not None and time.monotonic() < deadline:
                time.sleep(0.01)
            assert gone() is None
    finally:
        gc.enable()


def _blocked(opened: Door) -> tuple[threading.Event, Future[Any]]:
    """A call that is under way until the event is set."""
    began, over = threading.Event(), threading.Event()

    def ask(client: Any) -> None:
        began.set()
        over.wait(WAIT_S)

    future = opened.call(ask)
    assert began.wait(WAIT_S)
    return over, future


def test_a_call_that_is_cancelled_before_its_turn_does_not_run(opened: Door) -> None:
    over, first = _blocked(opened)
    cancelled = opened.call(lambda client: client.put("train", ["a"], tags=[{}]))
    assert cancelled.cancel()
    over.set()
    first.result(WAIT_S)
    assert opened.call(lambda client: client.list_keys()).result(WAIT_S) == {}
    with pytest.raises(CancelledError):
        cancelled.result(0)


def test_more_calls_than_may_wait_are_refused(opened: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CALLS", 3)
    over, first = _blocked(opened)
    waiting = [opened.call(lambda client: client.list_keys()) for _ in range(3)]
    with pytest.raises(QueueError, match="too_many"):
        opened.call(lambda client: client.list_keys())
    over.set()
    assert [future.result(WAIT_S) for future in waiting] == [{}] * 3
    first.result(WAIT_S)


def test_closing_fails_what_waits_finishes_what_is_under_way_and_refuses_the_rest(store: LocalQueue) -> None:
    opened = Door(Address(store.url), join_s=10.0)
    over, first = _blocked(opened)
    waiting = opened.call(lambda client: client.list_keys())
    threading.Timer(0.3, over.set).start()
    opened.close()
    assert first.result(0) is None
    with pytest.raises(QueueGone, match="init"):
        waiting.result(0)
    with pytest.raises(QueueGone, match="init"):
        opened.call(lambda client: client.list_keys())
    assert [name for name in store.status().members if name.startswith("compat")] == []


def test_an_incarnation_that_was_ended_joins_again_and_the_call_is_made_once_more(store: LocalQueue) -> None:
    opened = Door(Address(store.url), join_s=10.0)
    try:
        with QueueClient.outsider(store.url) as outsider:
            outsider.member_dead(opened._name, "told so by a test").result(WAIT_S)
        put = opened.call(lambda client: client.put("train", ["a"], {"x": np.ones((1, 2))}, [{"s": 1}])).result(WAIT_S)
        assert put.tags == [{"s": 1}]
        assert opened.call(lambda client: client.get("train", ["a"]).keys).result(WAIT_S) == ["a"]
    finally:
        opened.close()


def test_a_queue_with_topics_keeps_a_silent_process_by_its_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT_S", 0.2)
    with LocalQueue([spec()], heartbeat_s=2.5) as running:
        opened = Door(Address(running.url), join_s=10.0)
        try:
            opened.call(lambda client: client.list_keys()).result(WAIT_S)
            time.sleep(5.0)
            assert f"{opened._name}#0" in running.status().members
        finally:
            opened.close()


def test_where_nobody_listens_opening_fails_within_its_time() -> None:
    began = time.monotonic()
    with pytest.raises(QueueTimeout):
        Door(Address("tcp://127.0.0.1:9"), join_s=1.0)
    assert time.monotonic() - began < WAIT_S
    assert "transfer queue" not in [thread.name for thread in threading.enumerate()]


def test_a_controller_that_is_killed_fails_calls_soon_and_the_door_knows_it() -> None:
    queue = QueueProcesses(Settings(shards=1, capacity_bytes=1 << 20, metrics_port=None))
    opened = Door(queue.address)
    try:
        assert opened.call(lambda client: client.list_keys()).result(WAIT_S) == {}
        queue.close()
        for _ in range(2):
            with pytest.raises(QueueGone):
                opened.call(lambda client: client.list_keys()).result(WAIT_S)
            assert opened.lost
    finally:
        opened.close()
        queue.close()


def test_a_thread_that_ends_by_a_fault_fails_what_waits_and_the_door_knows_it(store: LocalQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Door(Address(store.url), join_s=10.0)
    monkeypatch.setattr(threading, "excepthook", lambda told: None)
    over, first = _blocked(opened)
    monkeypatch.setattr(opened, "_answer", lambda *call: 1 // 0)
    waiting = [opened.call(lambda client: client.list_keys()) for _ in range(2)]
    over.set()
    first.result(WAIT_S)
    with pytest.raises(QueueGone, match="traceback"):
        waiting[1].result(WAIT_S)
    with pytest.raises(QueueGone, match="traceback"):
        opened.call(lambda client: client.list_keys())
    assert opened.lost
    opened.close()


def test_what_a_read_held_is_given_back_though_the_process_asks_nothing_more(
    store: LocalQueue, opened: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEAT_S", 0.1)
    rows = np.zeros((2, 1 << 18))  # so large that the shard is asked to hold them
    with store.keyed("other") as other:
        other.put("train", ["a", "b"], {"x": rows})
        read = opened.call(lambda client: client.get("train", ["a", "b"], writable=True)["x"]).result(WAIT_S)
        assert np.asarray(read).nbytes == rows.nbytes
        other.clear("train", ["a", "b"])
        deadline = time.monotonic() + WAIT_S
        while other.shard_status()[0].held_bytes and time.monotonic() < deadline:
            time.sleep(0.05)
        assert other.shard_status()[0].held_bytes == 0


def test_names_are_unlike_each_other_and_names_of_members() -> None:
    names = {module._name() for _ in range(100)}
    assert len(names) == 100
    assert all(name.count("#") == 0 and not any(map(str.isspace, name)) and len(name) <= 128 for name in names)
    assert f"-{os.getpid()}-" in names.pop()
    assert m.Register(name="x", role="compat", pid=1, host="h", endpoints={}).name == "x"

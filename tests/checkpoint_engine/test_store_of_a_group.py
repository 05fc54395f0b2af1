"""The store that a group is formed through, used from threads of a backend's own, as watchdogs of devices do: it never leads to the member's socket
once the group stands or was given up."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from ce_helpers import bits, eventually, plain_weights, policy, running_publisher

from checkpoint_engine import messages as m
from checkpoint_engine import seat
from checkpoint_engine.board_store import BoardStore
from checkpoint_engine.collective import Abandoned, Group, GroupError
from checkpoint_engine.link import Link
from checkpoint_engine.publisher_client import PublisherClient
from checkpoint_engine.receiver import Receiver


def test_a_store_that_is_over_drops_what_is_written_and_finds_nothing() -> None:
    posted: list[str] = []
    store = BoardStore(lambda key, value: posted.append(key), lambda key, timeout_s: b"note", 5.0)
    store.set("before", b"")
    assert store.get("before") == b"note"
    store.end()
    store.set("exception_dump", b"")
    with pytest.raises(Abandoned, match="'0' is looked for after"):
        store.get("0")
    with pytest.raises(Abandoned):
        store.wait(["0"])
    assert posted == ["before"]


def test_ending_waits_for_whoever_looks_and_a_look_that_can_be_cut_ends_with_it() -> None:
    looking, left = threading.Event(), threading.Event()

    def fetch(key: str, timeout_s: float) -> bytes:
        looking.set()
        while not store.over:
            threading.Event().wait(0.01)
        threading.Event().wait(0.1)
        left.set()
        raise GroupError("cut")

    store = BoardStore(lambda key, value: None, fetch, 20.0)

    def look() -> None:
        with pytest.raises(GroupError, match="cut"):
            store.get("never")

    looker = threading.Thread(target=look)
    looker.start()
    assert looking.wait(5)
    store.end()
    assert left.is_set(), "it returned while somebody was in there"
    looker.join(5)


class Watched(Group):
    """A group, and the store it was formed through. `hangs`: it connects on a thread that is left behind, as one of a device does."""

    stores: list[Any] = []  # noqa: RUF012
    hangs = False

    def __init__(self, store: Any, *arguments: Any) -> None:
        Watched.stores.append(store)
        if Watched.hangs:
            threading.Thread(target=self._look, args=(store,), name="group-look", daemon=True).start()
            threading.Event().wait(0.1)
            raise GroupError("a member is missing")
        super().__init__(store, *arguments)

    @staticmethod
    def _look(store: Any) -> None:
        with pytest.raises(Exception, match=r"ended|over"):
            store.get("a note that never comes")


@pytest.mark.parametrize("hangs", [False, True])
def test_only_the_receivers_thread_uses_its_socket_once_the_group_was_formed_or_given_up(hangs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, type]] = []
    plain, over = Link.ask, threading.Event()

    def ask(link: Link, question: m.ToPublisher) -> int:
        asked.append((threading.current_thread().name, type(question)))
        return plain(link, question)

    monkeypatch.setattr(Link, "ask", ask)
    monkeypatch.setattr(seat, "Group", Watched)
    monkeypatch.setattr(Watched, "hangs", hangs)
    monkeypatch.setattr(Watched, "stores", [])

    def write() -> None:
        """As a watchdog whose group has failed, again and again."""
        while not over.is_set():
            for store in Watched.stores:
                if store.over:
                    store.set("exception_dump", b"\0\0\0\0")
            threading.Event().wait(0.001)

    with running_publisher(bucket_bytes=4096) as publisher:
        client, receiver = PublisherClient(publisher.endpoint), Receiver("r", publisher.endpoint)
        eventually(lambda: len(publisher._fanout.members) == 1)
        watchdog = threading.Thread(target=write, name="watchdog")
        watchdog.start()
        for version in range(4):
            client.publish(policy(version), plain_weights(version), wait_s=5)
            weights = client.wait_published(policy(version), 5)
            eventually(lambda weights=weights: receiver.latest() == weights, what=f"{weights}")
            with receiver.get_weights() as held:
                assert [bits(tensor) for _, tensor in held] == [bits(tensor) for _, tensor in plain_weights(version)]
        counters = receiver.counters  # a version can be read a moment before it is counted
        eventually(lambda: counters.by_broadcast + counters.by_pull_shared + counters.by_pull_bytes == 4, what=f"{counters}")
        assert counters.by_broadcast == (0 if hangs else 4)
        began = time.monotonic()
        over.set()
        watchdog.join(5)
        receiver.close()
        assert time.monotonic() - began < 5
        client.close()
    assert Watched.stores
    assert all(store.over for store in Watched.stores)
    threads = {name for name, _ in asked}
    assert {name for name in threads if not name.startswith("receiver-")} <= {"group-look"}, f"{threads}"
    assert "watchdog" not in threads
